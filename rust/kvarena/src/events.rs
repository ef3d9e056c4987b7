//! What a prefix cache tells about its blocks, for an index of it elsewhere.

use crate::convert::string_at;
use crate::log::run_for_library;
use crate::prefix::ExtraKey;
use crate::sys;
use crate::values::{PrefixEventKind, PrefixRemoval};
use std::os::raw::c_void;
use std::{fmt, ptr, slice};

/// One event. The events since create, or since the last `Cleared`, are enough to rebuild elsewhere
/// which prefixes are cached.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PrefixEvent<'a> {
    /// 1, 2, 3 ... without a gap.
    pub number: u64,
    /// What has happened.
    pub kind: PrefixEventKind,
    /// The block, which has this name until it is removed; cleared: -1.
    pub block: i32,
    /// Stored: the block before it, which may be stored later. None for a first block.
    pub parent: Option<i32>,
    /// Stored: the tenant.
    pub salt: u64,
    /// Stored: of the block.
    pub tokens: &'a [i32],
    /// Stored: those that begin in the block. Their first token counts from the block's.
    pub extra_keys: &'a [ExtraKey],
    /// Removed: why.
    pub removal: Option<PrefixRemoval>,
}

/// Receives each event within the call that makes it. It must not call that cache.
pub type PrefixEvents = Box<dyn FnMut(&PrefixEvent<'_>) + Send>;

/// The entries at `first`, which may be NULL when there are none.
unsafe fn entries<'a, T>(first: *const T, count: u64) -> &'a [T] {
    match count {
        0 => &[],
        count => slice::from_raw_parts(first, count as usize),
    }
}

unsafe extern "C" fn pass_event(user: *mut c_void, event: *const sys::kvarena_prefix_event) {
    run_for_library(|| {
        let raw = &*event;
        let kind = PrefixEventKind::from(raw.kind);
        let function = &mut *user.cast::<PrefixEvents>();
        function(&PrefixEvent {
            number: raw.number,
            kind,
            block: raw.block,
            parent: (raw.parent >= 0).then_some(raw.parent),
            salt: raw.salt,
            tokens: entries(raw.tokens, raw.num_tokens),
            extra_keys: entries(raw.extra_keys, raw.num_extra_keys),
            removal: (kind == PrefixEventKind::Removed).then(|| raw.removal.into()),
        });
    });
}

/// Owns the function of a cache, which must outlive it.
pub(crate) struct EventKeeper(*mut PrefixEvents);

impl EventKeeper {
    pub(crate) fn new(events: Option<PrefixEvents>) -> Self {
        Self(events.map_or(ptr::null_mut(), |e| Box::into_raw(Box::new(e))))
    }

    pub(crate) fn function(&self) -> sys::kvarena_prefix_event_function {
        if self.0.is_null() {
            None
        } else {
            Some(pass_event)
        }
    }

    pub(crate) fn user(&self) -> *mut c_void {
        self.0.cast()
    }

    /// Keeps the function for ever.
    pub(crate) fn leak(&mut self) {
        self.0 = ptr::null_mut();
    }
}

impl Drop for EventKeeper {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the cache that called it is gone.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

impl fmt::Display for PrefixEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the text is static.
        f.write_str(&unsafe { string_at(sys::kvarena_name_of_prefix_event((*self).into())) })
    }
}
