//! Sequences that begin with the cached blocks of others.

use crate::cache::Cache;
use crate::convert::string_at;
use crate::sequence::SequenceOptions;
use crate::status::{check, Result};
use crate::sys;
use crate::values::{PrefixRemoval, PrefixStop, Sequence, Urgency};
use std::fmt;

/// Something apart from the tokens that K and V depend on, such as an adapter or an image: `key`, the
/// engine's id of it, and `first_token`, the index of the first token that depends on it.
pub use crate::sys::kvarena_extra_key as ExtraKey;

impl PartialEq for ExtraKey {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.first_token) == (other.key, other.first_token)
    }
}

impl Eq for ExtraKey {}

/// What a sequence is to begin with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a> {
    /// From the beginning of the sequence.
    pub tokens: &'a [i32],
    /// The tenant: nothing of another salt is ever found.
    pub salt: u64,
    /// By `first_token`, rising or equal.
    pub extra_keys: &'a [ExtraKey],
}

impl Prompt<'_> {
    /// The options of a sequence with this prompt. They borrow from it.
    pub(crate) fn raw(&self, options: &SequenceOptions) -> sys::kvarena_sequence_options {
        sys::kvarena_sequence_options {
            tokens: self.tokens.as_ptr(),
            num_tokens: self.tokens.len() as u64,
            salt: self.salt,
            extra_keys: self.extra_keys.as_ptr(),
            num_extra_keys: self.extra_keys.len() as u64,
            ..options.raw()
        }
    }
}

answer! {
    /// The longest cached prefix of some tokens.
    Prefix from kvarena_prefix {
        /// Covered.
        tokens: i64,
        /// Covered to their ends.
        blocks: i64,
        /// Why not more.
        stop: PrefixStop,
        /// Stop `Evicted`: the cause.
        removal: PrefixRemoval,
        /// Stop `Evicted`: the removal, as [`PrefixStats::removals`] counts them.
        removal_serial: u64,
        /// Stop `NotYetPublished`: the block that is waited for; else -1.
        pending_block: i32,
        /// Covered in the group of layers that keeps all tokens.
        registered_tokens: i64,
        /// Of `tokens`, those of a part of one more block, with `prefix_share_parts`.
        part_tokens: i64,
        /// Stop `Evicted`: the sequence that took the block, if it has the salt of the query and
        /// that is still known; else 0.
        removal_by: u64,
        /// Removal `Evicted`: the time of `advance_clock` when the block was taken; else 0, also
        /// when it is not known any more.
        removal_time: i64,
    }
}

/// Figures of a prefix cache. Counters count since create.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PrefixStats {
    /// Blocks that are known now.
    pub registered: i64,
    /// Of these, those that can be found.
    pub published: i64,
    /// Blocks ever known.
    pub registrations: u64,
    /// Blocks that ceased to be known.
    pub removals: u64,
    /// Sequences created with tokens, and calls of `adopt`.
    pub queries: u64,
    /// Tokens of these.
    pub query_tokens: u64,
    /// Queries of which at least a block was covered.
    pub hits: u64,
    /// Blocks covered.
    pub hit_blocks: u64,
    /// Tokens covered.
    pub hit_tokens: u64,
    /// Blocks computed while an equal one was known.
    pub duplicates: u64,
    /// Of these, those given up for the known one.
    pub shared: u64,
    /// Sequences that stopped to register blocks.
    pub broken_chains: u64,
    stops: [u64; sys::KVARENA_MAX_PREFIX_REASONS],
    removals_by: [u64; sys::KVARENA_MAX_PREFIX_REASONS],
}

/// The entry of a reason; 0 for one that the library does not count.
fn entry(list: &[u64], reason: i32) -> u64 {
    usize::try_from(reason).ok().and_then(|i| list.get(i)).copied().unwrap_or(0)
}

impl From<&sys::kvarena_prefix_stats> for PrefixStats {
    fn from(raw: &sys::kvarena_prefix_stats) -> Self {
        Self {
            registered: raw.registered,
            published: raw.published,
            registrations: raw.registrations,
            removals: raw.removals,
            queries: raw.queries,
            query_tokens: raw.query_tokens,
            hits: raw.hits,
            hit_blocks: raw.hit_blocks,
            hit_tokens: raw.hit_tokens,
            duplicates: raw.duplicates,
            shared: raw.shared,
            broken_chains: raw.broken_chains,
            stops: raw.stops,
            removals_by: raw.removals_by,
        }
    }
}

impl PrefixStats {
    /// Queries that ended for this reason.
    pub fn stops(&self, stop: PrefixStop) -> u64 {
        entry(&self.stops, stop.into())
    }

    /// Removals for this reason.
    pub fn removals_by(&self, removal: PrefixRemoval) -> u64 {
        entry(&self.removals_by, removal.into())
    }
}

impl fmt::Display for PrefixStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the text is static.
        f.write_str(&unsafe { string_at(sys::kvarena_name_of_prefix_stop((*self).into())) })
    }
}

impl fmt::Display for PrefixRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the text is static.
        f.write_str(&unsafe { string_at(sys::kvarena_name_of_prefix_removal((*self).into())) })
    }
}

// SAFETY of the calls below: handle, options and results are valid, and slices live until the return.
impl Cache {
    /// Creates a sequence that begins with the longest cached prefix of a prompt;
    /// [`prefix_of`](Self::prefix_of) says what was found. Without a prefix cache it is empty.
    pub fn create_sequence_with(
        &mut self,
        prompt: &Prompt<'_>,
        options: &SequenceOptions,
    ) -> Result<Sequence> {
        let (raw, mut id) = (prompt.raw(options), 0);
        self.check(unsafe { sys::kvarena_sequence_create(self.raw, &raw, &mut id) })?;
        Ok(Sequence::written(id))
    }

    /// Does what [`import_sequence`](Self::import_sequence) does, for the salt and the extra keys of
    /// a prompt without tokens. [`register_tokens`](Self::register_tokens) tells the tokens when the
    /// import is published.
    pub fn import_sequence_with(
        &mut self,
        num_tokens: i64,
        prompt: &Prompt<'_>,
        options: &SequenceOptions,
        urgency: Urgency,
    ) -> Result<Sequence> {
        let (raw, mut id) = (prompt.raw(options), 0);
        self.check(unsafe {
            sys::kvarena_sequence_import(self.raw, num_tokens, &raw, urgency.into(), &mut id)
        })?;
        Ok(Sequence::written(id))
    }

    /// Returns the longest cached prefix of a prompt. Changes nothing.
    pub fn match_prefix(&self, prompt: &Prompt<'_>) -> Result<Prefix> {
        let raw = prompt.raw(&SequenceOptions::default());
        let mut prefix = sys::kvarena_prefix::default();
        self.check(unsafe { sys::kvarena_prefix_match(self.raw, &raw, &mut prefix) })?;
        Ok((&prefix).into())
    }

    /// Returns what the create or the last adopt of a sequence has found.
    pub fn prefix_of(&self, sequence: Sequence) -> Result<Prefix> {
        let mut prefix = sys::kvarena_prefix::default();
        check(unsafe { sys::kvarena_sequence_prefix(self.raw, sequence.raw(), &mut prefix) })?;
        Ok((&prefix).into())
    }

    /// Makes an empty sequence begin with the longest cached prefix of the tokens.
    pub fn adopt(&mut self, sequence: Sequence, tokens: &[i32]) -> Result<Prefix> {
        let mut prefix = sys::kvarena_prefix::default();
        let (list, count) = (tokens.as_ptr(), tokens.len());
        self.check(unsafe {
            sys::kvarena_sequence_adopt(self.raw, sequence.raw(), list, count, &mut prefix)
        })?;
        Ok((&prefix).into())
    }

    /// Tells the next tokens of a sequence that no step has told: of an import, or when a step ran
    /// before they were known. They have been written. Publishes the blocks that they fill.
    pub fn register_tokens(&mut self, sequence: Sequence, tokens: &[i32]) -> Result<()> {
        let (list, count) = (tokens.as_ptr(), tokens.len());
        check(unsafe { sys::kvarena_sequence_register(self.raw, sequence.raw(), list, count) })
    }

    /// Forgets the cached blocks of a sequence, and all behind them, also those of others.
    pub fn forget_prefix(&mut self, sequence: Sequence) -> Result<()> {
        check(unsafe { sys::kvarena_sequence_forget(self.raw, sequence.raw()) })
    }

    /// Forgets all cached blocks of a salt.
    pub fn forget_salt(&mut self, salt: u64) -> Result<()> {
        check(unsafe { sys::kvarena_prefix_forget_salt(self.raw, salt) })
    }

    /// Forgets all cached blocks.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        check(unsafe { sys::kvarena_prefix_forget_all(self.raw) })
    }

    /// Says how long the cached blocks of a range of tokens should stay: `priority` 0 (evicted first)
    /// .. 100, until `expires_at` of [`advance_clock`](Self::advance_clock) (0: for ever). Returns the
    /// number of blocks; those that are not full are left out.
    pub fn set_retention(
        &mut self,
        sequence: Sequence,
        first_token: i64,
        num_tokens: i64,
        priority: i32,
        expires_at: i64,
    ) -> Result<i64> {
        let mut blocks = 0;
        check(unsafe {
            sys::kvarena_sequence_set_retention(
                self.raw,
                sequence.raw(),
                first_token,
                num_tokens,
                priority,
                expires_at,
                &mut blocks,
            )
        })?;
        Ok(blocks)
    }

    /// Sets the clock of retentions, which begins at 0, in any unit of the engine.
    pub fn advance_clock(&mut self, now: i64) -> Result<()> {
        check(unsafe { sys::kvarena_prefix_advance_clock(self.raw, now) })
    }

    /// Returns the figures; all 0 without a prefix cache.
    pub fn prefix_stats(&self) -> Result<PrefixStats> {
        let mut raw = sys::kvarena_prefix_stats::default();
        check(unsafe { sys::kvarena_prefix_ask(self.raw, &mut raw) })?;
        Ok((&raw).into())
    }
}
