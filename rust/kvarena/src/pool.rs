//! Block ids for an engine with block tables of its own.

use crate::convert::{c_string, list_of, pointer_of, text_of};
use crate::events::{EventKeeper, PrefixEvents};
use crate::explanation::{Available, BlockInfo, Explanation, HolderReport, Stats};
use crate::log::{LogKeeper, OperationLog};
use crate::questions::Question;
use crate::status::{check, failed, Error, Result, Status};
use crate::sys;
use crate::values::{raw_ticket, BlockContent, Duplicates, Eviction, Holder, Ticket, Urgency};
use std::ptr;

options! {
    /// Options of a pool. Zero means the default.
    PoolOptions to kvarena_pool_options {
        /// 1 .. 2^29 - 1.
        num_blocks: i64,
        /// Admission leaves at least this many available.
        watermark_blocks: i64,
        /// References that wait for tickets; 0: 64 x `num_blocks`.
        max_fence_entries: i64,
        /// Holders at a time, 1 .. 2^24; 0: 4096.
        max_holders: i32,
        /// Tickets at a time, 1 .. 2^30; 0: 64.
        max_open_tickets: i32,
        /// Which published block that nobody holds goes first.
        eviction: Eviction,
        /// Blocks are found by their tokens: [`Pool::adopt`].
        prefix_cache: bool,
        /// With a prefix cache: 1 .. 65536; 0: 16.
        block_size_tokens: i32,
        /// When two sequences compute one block; a pool has no `Share`.
        prefix_duplicates: Duplicates,
        /// Extra keys that a sequence may have, 0 .. 31.
        prefix_extra_keys: i32,
        /// Newest removals and registrations that [`Prefix::stop`](crate::Prefix::stop) knows; 0: one
        /// for each 16 blocks.
        prefix_history: i64,
        /// The key of the hash, for runs that can be repeated.
        prefix_key_low: u64,
        /// Its other half; both 0: drawn at create.
        prefix_key_high: u64,
        /// Ids of the largest ghost cache, 4 .. 2^24; 0: no ghosts.
        prefix_ghost_blocks: i64,
    }
}

/// The facts about a holder. Zero means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HolderOptions {
    /// The engine's number for it, for example its sequence.
    pub number: u64,
    /// For whom it holds, for example a request; 0: unknown.
    pub owner: u64,
    /// For reports; without it "engine".
    pub purpose: Option<String>,
    /// When it began to hold; 0: unknown.
    pub since_ns: i64,
    /// When it should end; 0: none.
    pub deadline_ns: i64,
}

/// The blocks that one holder wants, in a call for many holders.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct HolderDemand(sys::kvarena_holder_demand);

impl HolderDemand {
    /// `count` blocks, with an urgency of its own or that of the call.
    pub fn new(holder: Holder, count: u32, urgency: Urgency) -> Self {
        let (holder, urgency) = (holder.raw(), urgency.into());
        Self(sys::kvarena_holder_demand { holder, count, urgency })
    }
}

/// The record of who holds which block: ids only, no bytes. A block is named by its id and its
/// generation. Calls for many blocks take all or nothing. One thread at a time uses a pool, and it may
/// move from thread to thread.
pub struct Pool {
    pub(crate) raw: *mut sys::kvarena_pool,
    /// Freed after the pool.
    _log: LogKeeper,
    _events: EventKeeper,
}

// SAFETY: any thread may call the library with the handle, one at a time; log and events may move.
unsafe impl Send for Pool {}

/// Checks that blocks and generations are as many.
pub(crate) fn same_length(blocks: usize, generations: usize) -> Result<()> {
    if blocks == generations {
        return Ok(());
    }
    Err(Status::wrong_length(generations, blocks).into())
}

// SAFETY of the calls below: handle, options and results are valid, and slices live until the return.
impl Pool {
    /// Creates a pool.
    pub fn create(options: &PoolOptions) -> Result<Self> {
        Self::create_with(options, None, None)
    }

    /// Creates a pool with a name for logs and violations, and an operation log.
    pub fn create_with(
        options: &PoolOptions,
        name: Option<&str>,
        log: Option<OperationLog>,
    ) -> Result<Self> {
        Self::create_heard(options, name, log, None)
    }

    /// Creates a pool with a name, an operation log, and a function that is told what its prefix cache
    /// stores and removes. The function must not call the pool.
    pub fn create_heard(
        options: &PoolOptions,
        name: Option<&str>,
        log: Option<OperationLog>,
        events: Option<PrefixEvents>,
    ) -> Result<Self> {
        let (log, name) = (LogKeeper::new(log), name.map(c_string));
        let events = EventKeeper::new(events);
        let raw_options = sys::kvarena_pool_options {
            name: pointer_of(&name),
            log: log.function(),
            log_user: log.user(),
            prefix_events: events.function(),
            prefix_events_user: events.user(),
            ..options.raw()
        };
        let mut raw = ptr::null_mut();
        check(unsafe { sys::kvarena_pool_create(&raw_options, &mut raw) })?;
        Ok(Self { raw, _log: log, _events: events })
    }

    /// Returns the handle, for calls of [`crate::sys`]. It is valid while the pool lives.
    pub fn as_raw(&self) -> *mut sys::kvarena_pool {
        self.raw
    }

    /// Turns a status into a result. When blocks are missing, the error has the explanation.
    pub(crate) fn check(&self, status: sys::kvarena_status) -> Result<()> {
        if Status(status).is_ok() {
            return Ok(());
        }
        Err(Error::new(status, |refused| {
            let mut answer = sys::kvarena_explanation::default();
            let asked = unsafe { sys::kvarena_pool_explain(self.raw, refused, 0, 0, &mut answer) };
            Status(asked).is_ok().then_some(answer)
        }))
    }

    /// Registers a holder.
    pub fn open_holder(&mut self, options: &HolderOptions) -> Result<Holder> {
        let purpose = options.purpose.as_deref().map(c_string);
        let raw = sys::kvarena_holder_options {
            number: options.number,
            owner: options.owner,
            purpose: pointer_of(&purpose),
            since_ns: options.since_ns,
            deadline_ns: options.deadline_ns,
            ..Default::default()
        };
        let mut holder = 0;
        self.check(unsafe { sys::kvarena_pool_open_holder(self.raw, &raw, &mut holder) })?;
        Ok(Holder::written(holder))
    }

    /// Ends a holder and its promise. Fails while it has references.
    pub fn close_holder(&mut self, holder: Holder) -> Result<()> {
        check(unsafe { sys::kvarena_pool_close_holder(self.raw, holder.raw()) })
    }

    /// Sets when a holder should end, for reports; 0: none.
    pub fn set_deadline(&mut self, holder: Holder, deadline_ns: i64) -> Result<()> {
        check(unsafe { sys::kvarena_pool_set_deadline(self.raw, holder.raw(), deadline_ns) })
    }

    /// Reads a holder.
    pub fn holder(&self, holder: Holder) -> Result<HolderReport> {
        let mut report = sys::kvarena_holder_report::default();
        check(unsafe { sys::kvarena_pool_holder(self.raw, holder.raw(), &mut report) })?;
        Ok(unsafe { HolderReport::of(&report) })
    }

    /// Returns the holders by id.
    pub fn holders(&self) -> Result<Vec<HolderReport>> {
        let reports = list_of(|out, room, count| unsafe {
            sys::kvarena_pool_holders(self.raw, out, room, count)
        })
        .map_err(failed)?;
        Ok(reports.iter().map(|r| unsafe { HolderReport::of(r) }).collect())
    }

    /// Promises `blocks` available blocks to a holder, in place of its earlier promise; with groups
    /// pages, and from then on nobody takes single blocks of the pages that it turns. The default
    /// urgency is admission.
    pub fn reserve(&mut self, holder: Holder, blocks: i64, urgency: Urgency) -> Result<()> {
        self.check(unsafe {
            sys::kvarena_pool_reserve(self.raw, holder.raw(), blocks, urgency.into())
        })
    }

    /// Takes as many blocks as the slices have room for, with one reference each, and writes their ids
    /// and generations. Returns how many at the end of the slices were cached until now: forget what
    /// was found in them. The default urgency is growth.
    pub fn allocate(
        &mut self,
        holder: Holder,
        urgency: Urgency,
        blocks: &mut [i32],
        generations: &mut [u32],
    ) -> Result<usize> {
        same_length(blocks.len(), generations.len())?;
        let (count, urgency, mut evicted) = (blocks.len(), urgency.into(), 0);
        let (blocks, generations) = (blocks.as_mut_ptr(), generations.as_mut_ptr());
        self.check(unsafe {
            let (pool, holder, evicted) = (self.raw, holder.raw(), &mut evicted);
            sys::kvarena_pool_allocate(pool, holder, count, urgency, blocks, generations, evicted)
        })?;
        Ok(evicted)
    }

    /// Takes blocks for many holders in one all-or-nothing call, written holder by holder. The slices
    /// have room for the sum of the counts.
    pub fn allocate_each(
        &mut self,
        demands: &[HolderDemand],
        urgency: Urgency,
        blocks: &mut [i32],
        generations: &mut [u32],
    ) -> Result<usize> {
        same_length(blocks.len(), generations.len())?;
        let mut evicted = 0;
        self.check(unsafe {
            sys::kvarena_pool_allocate_each(
                self.raw,
                demands.as_ptr().cast(),
                demands.len(),
                urgency.into(),
                blocks.as_mut_ptr(),
                generations.as_mut_ptr(),
                blocks.len(),
                &mut evicted,
            )
        })?;
        Ok(evicted)
    }

    /// Takes one more reference on each block. A cached block comes back to life.
    pub fn retain(&mut self, holder: Holder, blocks: &[i32], generations: &[u32]) -> Result<()> {
        same_length(blocks.len(), generations.len())?;
        let (count, blocks, generations) = (blocks.len(), blocks.as_ptr(), generations.as_ptr());
        self.check(unsafe {
            sys::kvarena_pool_retain(self.raw, holder.raw(), blocks, generations, count)
        })
    }

    /// Gives up one reference on each block; with a ticket the references stay fenced until it
    /// retires.
    pub fn free(
        &mut self,
        holder: Holder,
        blocks: &[i32],
        generations: &[u32],
        ticket: Option<Ticket>,
    ) -> Result<()> {
        same_length(blocks.len(), generations.len())?;
        let (count, blocks, generations) = (blocks.len(), blocks.as_ptr(), generations.as_ptr());
        self.check(unsafe {
            let (pool, ticket) = (self.raw, raw_ticket(ticket));
            sys::kvarena_pool_free(pool, holder.raw(), blocks, generations, count, ticket)
        })
    }

    /// Sets what is known of a held block's content. A published block becomes evictable instead of
    /// free when its last reference goes.
    pub fn set_content(
        &mut self,
        block: i32,
        generation: u32,
        content: BlockContent,
    ) -> Result<()> {
        check(unsafe { sys::kvarena_pool_set_content(self.raw, block, generation, content.into()) })
    }

    /// Says how long a published block should stay: `priority` 0 (evicted first) .. 100, until
    /// `expires_at` of [`advance_clock`](Self::advance_clock) (0: for ever).
    pub fn set_retention(
        &mut self,
        block: i32,
        generation: u32,
        priority: i32,
        expires_at: i64,
    ) -> Result<()> {
        check(unsafe {
            sys::kvarena_pool_set_retention(self.raw, block, generation, priority, expires_at)
        })
    }

    /// Sets the clock of retentions, which begins at 0, in any unit of the engine.
    pub fn advance_clock(&mut self, now: i64) -> Result<()> {
        check(unsafe { sys::kvarena_pool_advance_clock(self.raw, now) })
    }

    /// Takes a block out of service, at once or when its last reference goes. Says whether it is
    /// offline now.
    pub fn quarantine(&mut self, block: i32) -> Result<bool> {
        let mut offline = false;
        self.check(unsafe { sys::kvarena_pool_quarantine(self.raw, block, &mut offline) })?;
        Ok(offline)
    }

    /// Returns an offline block to service.
    pub fn restore(&mut self, block: i32) -> Result<()> {
        check(unsafe { sys::kvarena_pool_restore(self.raw, block) })
    }

    /// Opens a ticket for work that is about to be queued.
    pub fn open_ticket(&mut self) -> Result<Ticket> {
        let mut ticket = 0;
        check(unsafe { sys::kvarena_pool_open_ticket(self.raw, &mut ticket) })?;
        Ok(Ticket::written(ticket))
    }

    /// Retires a ticket whose work has completed.
    pub fn retire(&mut self, ticket: Ticket) -> Result<()> {
        check(unsafe { sys::kvarena_pool_retire(self.raw, ticket.raw()) })
    }

    /// Says whether a ticket is open.
    pub fn is_open(&self, ticket: Ticket) -> Result<bool> {
        let mut is_open = false;
        check(unsafe { sys::kvarena_pool_is_open(self.raw, ticket.raw(), &mut is_open) })?;
        Ok(is_open)
    }

    /// Reads one block.
    pub fn block(&self, block: i32) -> Result<BlockInfo> {
        let mut info = sys::kvarena_block_info::default();
        check(unsafe { sys::kvarena_pool_block(self.raw, block, &mut info) })?;
        Ok((&info).into())
    }

    /// Reads the figures.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = sys::kvarena_stats::default();
        check(unsafe { sys::kvarena_pool_stats(self.raw, &mut stats) })?;
        Ok((&stats).into())
    }

    /// Says whether `blocks` blocks can be had. The default urgency is growth.
    pub fn can_allocate(&self, blocks: i64, urgency: Urgency) -> Result<bool> {
        let mut can = false;
        check(unsafe {
            sys::kvarena_pool_can_allocate(self.raw, blocks, urgency.into(), &mut can)
        })?;
        Ok(can)
    }

    /// Returns the blocks that allocations can use now, and those when every open ticket up to
    /// `ticket` has retired.
    pub fn available(&self, ticket: Option<Ticket>) -> Result<Available> {
        let (mut now, mut after) = (0, 0);
        check(unsafe {
            sys::kvarena_pool_available(self.raw, raw_ticket(ticket), &mut now, &mut after)
        })?;
        Ok(Available { now, after })
    }

    /// Explains why blocks fit or do not fit.
    pub fn explain(&self, question: Question<'_>) -> Result<Explanation> {
        let mut answer = sys::kvarena_explanation::default();
        check(question.ask(|refused, blocks, urgency| unsafe {
            sys::kvarena_pool_explain(self.raw, refused, blocks, urgency, &mut answer)
        }))?;
        Ok(Explanation::of(question.status(), &answer))
    }

    /// Returns the explanation as JSON.
    pub fn explain_json(&self, question: Question<'_>) -> Result<String> {
        text_of(|out, size, length| {
            question.ask(|refused, blocks, urgency| unsafe {
                let pool = self.raw;
                sys::kvarena_pool_explain_json(pool, refused, blocks, urgency, out, size, length)
            })
        })
        .map_err(failed)
    }

    /// Returns the explanation as lines for a person.
    pub fn explain_text(&self, question: Question<'_>) -> Result<String> {
        text_of(|out, size, length| {
            question.ask(|refused, blocks, urgency| unsafe {
                let pool = self.raw;
                sys::kvarena_pool_explain_text(pool, refused, blocks, urgency, out, size, length)
            })
        })
        .map_err(failed)
    }

    /// Proves the accounts. O(blocks).
    pub fn verify_accounts(&self) -> Result<()> {
        check(unsafe { sys::kvarena_pool_check(self.raw) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle.
        unsafe { sys::kvarena_pool_release(self.raw) };
    }
}
