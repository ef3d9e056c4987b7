//! Why blocks can or cannot be had, and the figures of pools.

use crate::accounts::SaltShare;
use crate::convert::{string_at, FromC};
use crate::status::Status;
use crate::sys;
use crate::values::{BlockContent, BlockState, Holder, Ticket, Urgency};

/// A holder of blocks, in reports.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HolderReport {
    /// Its id.
    pub holder: Option<Holder>,
    /// The holder's own number, for example its sequence; 0: none.
    pub number: u64,
    /// For whom it holds; 0: unknown.
    pub owner: u64,
    /// What it is, for example "sequence".
    pub purpose: String,
    /// Block references that it has.
    pub references: i64,
    /// Blocks promised to it.
    pub reserved: i64,
    /// When it began to hold, as registered.
    pub since_ns: i64,
    /// When it should end, as registered.
    pub deadline_ns: i64,
}

impl HolderReport {
    /// # Safety
    /// The purpose is NULL or text that still lives.
    pub(crate) unsafe fn of(raw: &sys::kvarena_holder_report) -> Self {
        Self {
            holder: Holder::from_raw(raw.holder),
            number: raw.number,
            owner: raw.owner,
            purpose: string_at(raw.purpose),
            references: raw.references,
            reserved: raw.reserved,
            since_ns: raw.since_ns,
            deadline_ns: raw.deadline_ns,
        }
    }
}

answer! {
    /// The blocks of a pool beside a request.
    BlockCounts from kvarena_explanation {
        /// The part of the usable blocks that was promised to who asks.
        promised: i64,
        /// Of the pool.
        num_blocks: i64,
        /// By state.
        free_blocks: i64,
        /// By state.
        referenced: i64,
        /// By state.
        fenced: i64,
        /// By state.
        evictable: i64,
        /// By state.
        offline: i64,
        /// Promised to holders.
        reserved_blocks: i64,
        /// Blocks that admission leaves available.
        watermark: i64,
        /// Blocks that come back when all tickets retire.
        fenced_returning: i64,
        /// The ticket to wait for; none is open without it.
        oldest_open_ticket: Option<Ticket>,
        /// The urgency of the request.
        urgency: Urgency,
    }
}

/// Why a request fits or does not fit. With groups, figures are pages: all but the counts by state and
/// `num_blocks`, which are blocks of all groups, and references of holders.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The refused call; its code is "ok" in the answer to a question.
    pub status: Status,
    /// What was asked for: blocks, or what the status is about.
    pub requested: i64,
    /// The part of it that this request may use.
    pub usable: i64,
    /// Blocks that must come back before it fits.
    pub missing: i64,
    /// Whether it can be had.
    pub fits: bool,
    /// The pool's blocks. `None` when something else is exhausted: sequences, holders, streams.
    pub blocks: Option<BlockCounts>,
    /// The largest holders, largest first.
    pub largest: Vec<HolderReport>,
    /// Blocks that come back when `largest[0]` .. `largest[i]` release all that they hold; `None` in a
    /// pool without tables, where this is not known.
    pub returning: Vec<Option<i64>>,
    /// What eviction would give, and from whom: most blocks first; with
    /// accounts the salts that have one.
    pub evictable_salts: Vec<SaltShare>,
    /// Evictable blocks of all others; 0 of a pool.
    pub evictable_of_others: i64,
}

impl Explanation {
    pub(crate) fn of(status: Status, raw: &sys::kvarena_explanation) -> Self {
        let count = (raw.num_largest.max(0) as usize).min(sys::KVARENA_MAX_LARGEST);
        let salts = (raw.num_salts.max(0) as usize).min(sys::KVARENA_MAX_SALTS);
        Self {
            status,
            requested: raw.requested,
            usable: raw.usable,
            missing: raw.missing,
            fits: raw.fits != 0,
            blocks: Some(raw.into()),
            // SAFETY: the holders live on until the next call that ends one.
            largest: raw.largest[..count].iter().map(|r| unsafe { HolderReport::of(r) }).collect(),
            returning: raw.returning[..count].iter().map(|&b| (b >= 0).then_some(b)).collect(),
            evictable_salts: raw.evictable_salts[..salts].iter().map(SaltShare::from).collect(),
            evictable_of_others: raw.evictable_of_others,
        }
    }

    /// The explanation of a call that was not refused for want of blocks.
    pub(crate) fn without_blocks(status: Status) -> Self {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (requested, usable) = (number(status.required()), number(status.available()));
        Self {
            status,
            requested,
            usable,
            missing: (requested - usable).max(0),
            fits: false,
            blocks: None,
            largest: Vec::new(),
            returning: Vec::new(),
            evictable_salts: Vec::new(),
            evictable_of_others: 0,
        }
    }
}

answer! {
    /// The figures of a cache or pool. A pool has no tables and no steps; these members are 0 there.
    Stats from kvarena_stats {
        /// `free + referenced + fenced + evictable + offline`.
        num_blocks: i64,
        /// By state.
        free_blocks: i64,
        /// By state.
        referenced: i64,
        /// By state.
        fenced: i64,
        /// By state.
        evictable: i64,
        /// By state.
        offline: i64,
        /// Promised; still part of `free + evictable`.
        reserved_blocks: i64,
        /// Blocks that admission leaves available.
        watermark: i64,
        /// Registered holders.
        holders: i64,
        /// Of all holders, without fenced ones.
        references: i64,
        /// References that wait for tickets.
        fence_entries: i64,
        /// The most blocks that were not free at one time.
        peak_allocated: i64,
        /// Holders since create.
        holders_ever: u64,
        /// Blocks handed out since create.
        allocations: u64,
        /// References given up since create.
        releases: u64,
        /// Evictable blocks handed out since create.
        evictions: u64,
        /// Calls refused since create because blocks were missing.
        exhaustions: u64,
        /// Existing sequences.
        sequences: i64,
        /// Sum of their lengths.
        tokens: i64,
        /// Block references in tables.
        entries: i64,
        /// Slots in tables behind the end of their sequence.
        waste_tokens: i64,
        /// Pages of entries in use.
        pages_used: i64,
        /// Pages of entries there are.
        pages_total: i64,
        /// Sequences since create.
        sequences_ever: u64,
        /// Copies on write since create.
        copies_on_write: u64,
        /// Existing pins.
        pins: i64,
        /// Block references of pins; not part of `entries`.
        pinned_entries: i64,
        /// Tickets that have not retired.
        open_tickets: i64,
        /// The oldest of these.
        oldest_ticket: Option<Ticket>,
        /// Steps ended.
        step: u64,
        /// Time of the last publication.
        published_ns: i64,
        /// Ended steps that the device did not take.
        steps_lost: u64,
        /// Launches that found no step to run.
        missed_launches: u64,
        /// Open tickets for which a later step waits.
        awaited_tickets: i64,
        /// Blocks checked by the audit since create.
        audit_blocks: u64,
        /// Complete passes of the audit.
        audit_passes: u64,
        /// The first failure of the audit.
        audit_failure: Option<Status>,
    }
}

impl FromC<sys::kvarena_status> for Option<Status> {
    fn from_c(value: sys::kvarena_status) -> Self {
        let status = Status(value);
        (!status.is_ok()).then_some(status)
    }
}

answer! {
    /// What is known of one block.
    BlockInfo from kvarena_block_info {
        /// How often it has been handed out before.
        generation: u32,
        /// References that are not fenced.
        reference_count: u32,
        /// Claims on its bytes; a holder may write in place when it is 1.
        claims: u32,
        /// Its state.
        state: BlockState,
        /// What is known of its content.
        content: BlockContent,
        /// Of the retention that is in force; 35: the usual one.
        priority: i64,
        /// When the retention ends; 0: never.
        expires_at: i64,
    }
}

/// Whether blocks can be had now, and when tickets have retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Blocks that allocations can use now.
    pub now: i64,
    /// Blocks that they can use when every open ticket up to the one asked for has retired.
    pub after: i64,
}
