//! Accounts of salts, and what a prefix cache tells about its use.

use crate::cache::Cache;
use crate::prefix::PrefixStats;
use crate::questions::Observer;
use crate::status::{check, Result};
use crate::sys;
use crate::values::Eviction;
use std::ptr;

/// Counts of times. A time is the number of blocks that the cache has registered meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixHistogram {
    /// Entry i: times above 4^(i-1) and up to 4^i; the first one also 0, the last one all others too.
    pub counts: [u64; sys::KVARENA_PREFIX_BUCKETS],
    /// Of all times.
    pub sum: u64,
}

impl PrefixHistogram {
    fn of(raw: &sys::kvarena_prefix_histogram) -> Self {
        Self { counts: raw.counts, sum: raw.sum }
    }

    /// The number of times.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

answer! {
    /// Cached blocks of one salt.
    SaltShare from kvarena_salt_share {
        /// The tenant.
        salt: u64,
        /// Evictable.
        blocks: i64,
    }
}

/// What a cache of another size or policy would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ghost {
    /// Its policy.
    pub policy: Eviction,
    /// Its size in halves of the pool: 2 is as large as the pool.
    pub half_pools: i32,
    /// Hits of a million block references.
    pub hits_ppm: i64,
}

/// How a prefix cache is used, since create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixUse {
    /// Of blocks that could be found, until they go. Of a pool of more than 1,024 blocks each 16th is
    /// counted.
    pub lifetime: PrefixHistogram,
    /// Of an evicted block, since it was last registered or found.
    pub idle: PrefixHistogram,
    /// Of a block that is found, the same.
    pub reuse_gap: PrefixHistogram,
    /// Of a million block ids, those that the ghosts see.
    pub ghost_sampled_ppm: i64,
    /// Block references observed.
    pub ghost_references: u64,
    /// By policy and size; none without `prefix_ghost_blocks`.
    pub ghosts: Vec<Ghost>,
}

impl From<&sys::kvarena_prefix_use> for PrefixUse {
    fn from(raw: &sys::kvarena_prefix_use) -> Self {
        let count = (raw.num_ghosts.max(0) as usize).min(sys::KVARENA_MAX_GHOSTS);
        let ghost = |g: &sys::kvarena_ghost| Ghost {
            policy: g.policy.into(),
            half_pools: g.half_pools,
            hits_ppm: g.hits_ppm,
        };
        Self {
            lifetime: PrefixHistogram::of(&raw.lifetime),
            idle: PrefixHistogram::of(&raw.idle),
            reuse_gap: PrefixHistogram::of(&raw.reuse_gap),
            ghost_sampled_ppm: raw.ghost_sampled_ppm,
            ghost_references: raw.ghost_references,
            ghosts: raw.ghosts[..count].iter().map(ghost).collect(),
        }
    }
}

options! {
    /// Bounds of the blocks of one salt. Zero means none.
    SaltLimits to kvarena_salt_limits {
        /// So many blocks, those that the salt gave up last, are never evicted for others. The salt's
        /// own sequences use them when they lack blocks, the oldest first.
        floor_blocks: i64,
        /// At so many registered blocks a new one takes the place of the salt's oldest that nobody
        /// uses. Blocks in use may exceed it.
        cap_blocks: i64,
    }
}

answer! {
    /// The account of a salt.
    SaltInfo from kvarena_salt_info {
        /// Blocks that its sequences have registered.
        registered: i64,
        /// Of these, those that the floor keeps.
        kept: i64,
        /// That exist.
        sequences: i64,
        /// As set.
        floor_blocks: i64,
        /// As set; 0: none.
        cap_blocks: i64,
    }
}

// SAFETY of the calls below: handle, options and results are valid, or the handle is refused.
impl Cache {
    /// Bounds what the prefix cache keeps for a salt. Opens an account if the salt has none; blocks and
    /// sequences that exist then are not of the account. Needs `prefix_accounts`.
    pub fn set_salt_limits(&mut self, salt: u64, limits: &SaltLimits) -> Result<()> {
        check(unsafe { sys::kvarena_salt_set_limits(self.raw, salt, &limits.raw()) })
    }

    /// Returns the account of a salt.
    pub fn salt_info(&self, salt: u64) -> Result<SaltInfo> {
        let mut info = sys::kvarena_salt_info::default();
        check(unsafe { sys::kvarena_salt_ask(self.raw, salt, &mut info) })?;
        Ok((&info).into())
    }

    /// Ends the account of a salt that has no registered blocks ([`forget_salt`](Self::forget_salt)) and
    /// no sequences.
    pub fn close_salt(&mut self, salt: u64) -> Result<()> {
        check(unsafe { sys::kvarena_salt_close(self.raw, salt) })
    }

    /// Returns how the prefix cache is used; all 0 without one.
    pub fn prefix_use(&self) -> Result<PrefixUse> {
        let mut raw = sys::kvarena_prefix_use::default();
        check(unsafe { sys::kvarena_prefix_ask_use(self.raw, &mut raw) })?;
        Ok((&raw).into())
    }
}

impl Observer {
    /// Reads the figures of the prefix cache as of the last publication.
    pub fn prefix_stats(&self) -> Result<PrefixStats> {
        let mut raw = sys::kvarena_prefix_stats::default();
        check(unsafe { sys::kvarena_prefix_snapshot(self.raw, &mut raw, ptr::null_mut()) })?;
        Ok((&raw).into())
    }

    /// Reads how the prefix cache is used, as of the last publication.
    pub fn prefix_use(&self) -> Result<PrefixUse> {
        let mut raw = sys::kvarena_prefix_use::default();
        check(unsafe { sys::kvarena_prefix_snapshot(self.raw, ptr::null_mut(), &mut raw) })?;
        Ok((&raw).into())
    }
}
