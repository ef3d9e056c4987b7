//! Questions about a cache, also from other threads.

use crate::cache::Cache;
use crate::convert::{list_of, text_of};
use crate::explanation::{Available, BlockInfo, Explanation, HolderReport, Stats};
use crate::status::{check, failed, Error, Result, Status};
use crate::sys;
use crate::values::{raw_ticket, PlaneKind, Ticket, Urgency};
use std::ptr;

/// K or V of one layer of a pool. In rows order, element (block, head, token, dim) lies at `base +
/// block * block_stride_bytes + head * head_stride_bytes + token * token_stride_bytes + dim * element
/// size`.
pub use crate::sys::kvarena_plane as Plane;

/// What is to be explained.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// Whether so many more blocks fit. The default urgency is growth.
    Blocks(i64, Urgency),
    /// Why a call of this object was refused: an [`Error::Exhausted`] of blocks.
    Refused(&'a Error),
}

impl Question<'_> {
    /// Calls with the arguments of the header.
    pub(crate) fn ask<T>(&self, call: impl FnOnce(*const sys::kvarena_status, i64, i32) -> T) -> T {
        match *self {
            Self::Blocks(blocks, urgency) => call(ptr::null(), blocks, urgency.into()),
            Self::Refused(error) => call(error.status().as_raw(), 0, 0),
        }
    }

    /// The status that the answer is about.
    pub(crate) fn status(&self) -> Status {
        match *self {
            Self::Blocks(..) => Status(sys::kvarena_status::default()),
            Self::Refused(error) => *error.status(),
        }
    }
}

/// Calls of other threads to a cache. It keeps nothing alive: when the cache is gone, its calls return
/// [`Error::StaleHandle`].
#[derive(Clone, Copy, Debug)]
pub struct Observer {
    pub(crate) raw: *mut sys::kvarena_cache,
}

// SAFETY: the calls below are for any thread, and a handle that was released is found by its number.
unsafe impl Send for Observer {}
// SAFETY: as above.
unsafe impl Sync for Observer {}

// SAFETY of the calls below: results and buffers are valid; so are handles, or they are refused.
impl Observer {
    /// Reads the figures of the last publication: the end of a step, or [`Cache::publish`].
    pub fn snapshot(&self) -> Result<Stats> {
        let mut stats = sys::kvarena_stats::default();
        check(unsafe { sys::kvarena_cache_snapshot(self.raw, &mut stats) })?;
        Ok((&stats).into())
    }

    /// Asks for details (holders, an explanation for one more block) with the next publication.
    pub fn request_details(&self) -> Result<()> {
        check(unsafe { sys::kvarena_cache_request_details(self.raw) })
    }

    /// Returns the details of the last publication that had them, as JSON.
    pub fn details_json(&self) -> Result<String> {
        text_of(|out, size, length| unsafe {
            sys::kvarena_cache_details_json(self.raw, out, size, length)
        })
        .map_err(failed)
    }

    /// Says whether work is pending: a step has begun and not ended, or tickets of steps are open.
    pub fn has_pending_work(&self) -> Result<bool> {
        let mut pending = false;
        check(unsafe { sys::kvarena_cache_has_pending_work(self.raw, &mut pending) })?;
        Ok(pending)
    }
}

impl Cache {
    /// Returns what other threads may ask.
    pub fn observer(&self) -> Observer {
        Observer { raw: self.raw }
    }

    /// Reads the figures of now.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = sys::kvarena_stats::default();
        check(unsafe { sys::kvarena_cache_stats(self.raw, &mut stats) })?;
        Ok((&stats).into())
    }

    /// Returns the figures as JSON.
    pub fn stats_json(&self) -> Result<String> {
        text_of(|out, size, length| unsafe {
            sys::kvarena_cache_stats_json(self.raw, out, size, length)
        })
        .map_err(failed)
    }

    /// Says whether `blocks` blocks can be had. The default urgency is growth.
    pub fn can_allocate(&self, blocks: i64, urgency: Urgency) -> Result<bool> {
        let mut can = false;
        check(unsafe {
            sys::kvarena_cache_can_allocate(self.raw, blocks, urgency.into(), &mut can)
        })?;
        Ok(can)
    }

    /// Returns the blocks that allocations can use now, and those when every open ticket up to
    /// `ticket` has retired.
    pub fn available(&self, ticket: Option<Ticket>) -> Result<Available> {
        let (mut now, mut after) = (0, 0);
        check(unsafe {
            sys::kvarena_cache_available(self.raw, raw_ticket(ticket), &mut now, &mut after)
        })?;
        Ok(Available { now, after })
    }

    /// Explains why blocks fit or do not fit.
    pub fn explain(&self, question: Question<'_>) -> Result<Explanation> {
        let mut answer = sys::kvarena_explanation::default();
        check(question.ask(|refused, blocks, urgency| unsafe {
            sys::kvarena_cache_explain(self.raw, refused, blocks, urgency, &mut answer)
        }))?;
        Ok(Explanation::of(question.status(), &answer))
    }

    /// Returns the explanation as JSON.
    pub fn explain_json(&self, question: Question<'_>) -> Result<String> {
        text_of(|out, size, length| {
            question.ask(|refused, blocks, urgency| unsafe {
                let cache = self.raw;
                sys::kvarena_cache_explain_json(cache, refused, blocks, urgency, out, size, length)
            })
        })
        .map_err(failed)
    }

    /// Returns the explanation as lines for a person. The last says what would make it fit.
    pub fn explain_text(&self, question: Question<'_>) -> Result<String> {
        text_of(|out, size, length| {
            question.ask(|refused, blocks, urgency| unsafe {
                let cache = self.raw;
                sys::kvarena_cache_explain_text(cache, refused, blocks, urgency, out, size, length)
            })
        })
        .map_err(failed)
    }

    /// Returns the holders by id: in an idle engine the leak report.
    pub fn holders(&self) -> Result<Vec<HolderReport>> {
        let reports = list_of(|out, room, count| unsafe {
            sys::kvarena_cache_holders(self.raw, out, room, count)
        })
        .map_err(failed)?;
        Ok(reports.iter().map(|r| unsafe { HolderReport::of(r) }).collect())
    }

    /// Reads one block.
    pub fn block(&self, block: i32) -> Result<BlockInfo> {
        let mut info = sys::kvarena_block_info::default();
        check(unsafe { sys::kvarena_cache_block(self.raw, block, &mut info) })?;
        Ok((&info).into())
    }

    /// Returns K or V of one layer of the pool.
    pub fn plane(&self, layer: i32, kind: PlaneKind) -> Result<Plane> {
        let mut plane = Plane::default();
        check(unsafe { sys::kvarena_cache_plane(self.raw, layer, kind.into(), &mut plane) })?;
        Ok(plane)
    }

    /// Proves the accounts and the tables. O(blocks + entries).
    pub fn verify_accounts(&self) -> Result<()> {
        check(unsafe { sys::kvarena_cache_check(self.raw) })
    }
}
