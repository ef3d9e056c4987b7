//! What the library tells without being asked: log lines, violations, operations.
//!
//! A function of the caller that panics ends the process: a panic cannot pass through the library.

use crate::convert::string_at;
use crate::status::{check, Result, Status};
use crate::sys;
use crate::values::{Holder, LogLevel, OperationKind};
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};
use std::{process, ptr, slice};

/// Runs a function of the caller. The panic's message has been printed when the process ends.
pub(crate) fn run_for_library(function: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(function)).is_err() {
        process::abort();
    }
}

/// Receives log lines without a newline. It must not call this crate, and must not wait for a lock
/// that may be held by a thread that calls it.
pub type LogFunction = Box<dyn FnMut(LogLevel, &str) + Send>;

static LOG: Mutex<Option<Box<LogFunction>>> = Mutex::new(None);

unsafe extern "C" fn pass_line(user: *mut c_void, level: i32, line: *const c_char, length: usize) {
    run_for_library(|| {
        let function = &mut *user.cast::<LogFunction>();
        let line = slice::from_raw_parts(line.cast::<u8>(), length);
        function(level.into(), &String::from_utf8_lossy(line));
    });
}

/// Sends every line of `minimum` and above to `function` from now on. `None` silences the library, as
/// it is at first. Lines come from any thread, one at a time.
pub fn set_log(minimum: LogLevel, function: Option<LogFunction>) -> Result<()> {
    let mut current = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let mut next = function.map(Box::new);
    let user: *mut LogFunction = next.as_deref_mut().map_or(ptr::null_mut(), |f| f);
    let callback: sys::kvarena_log_function = if user.is_null() { None } else { Some(pass_line) };
    // SAFETY: the box stays where it is until another function has taken its place; after that call
    // no thread is in it.
    check(unsafe { sys::kvarena_set_log(callback, user.cast(), minimum.into()) })?;
    *current = next;
    Ok(())
}

/// Receives a programmer error (double release, stale block, failed check), the name of the refused
/// call, and the name of the object that reported it ("" without one). Any thread may call it.
pub type ViolationFunction = Box<dyn Fn(&Status, &str, &str) + Send + Sync>;

unsafe extern "C" fn pass_violation(
    user: *mut c_void,
    status: *const sys::kvarena_status,
    call: *const c_char,
    object: *const c_char,
) {
    run_for_library(|| {
        let function = &*user.cast::<ViolationFunction>();
        function(&Status(*status), &string_at(call), &string_at(object));
    });
}

/// Installs the function that receives programmer errors; the refused call then returns the same
/// error. `None` restores the default, which logs them. A function that was replaced is kept for
/// ever, because a thread may still be in it.
pub fn set_violation(function: Option<ViolationFunction>) {
    let callback: sys::kvarena_violation_function = function.as_ref().and(Some(pass_violation));
    let user: *mut ViolationFunction =
        function.map_or(ptr::null_mut(), |f| Box::into_raw(Box::new(f)));
    // SAFETY: the function is never freed.
    unsafe { sys::kvarena_set_violation(callback, user.cast()) };
}

/// One mutating call of a block manager, with its outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// Which call.
    pub kind: OperationKind,
    /// The `kvarena_code` that it returned. A call that failed has changed nothing.
    pub outcome: i32,
    /// Argument, or result of register_holder.
    pub holder: Option<Holder>,
    /// A number that rises from ticket to ticket; 0: none of this manager.
    pub ticket: u64,
    /// Blocks asked for, or reserved.
    pub count: i64,
    /// Arguments, or the result of allocate.
    pub blocks: &'a [i32],
    /// allocate, reserve: 0 growth, 1 admission; set_content: the content.
    pub flag: i32,
    /// allocate: whose blocks; 0 in a pool without groups.
    pub group: i32,
    /// allocate in a pool with groups: entries of the same call that follow this one. A replay makes
    /// one call of them.
    pub left_in_call: i32,
}

/// Receives each mutating call of one cache or pool after it has ended, on the thread that made it.
/// It must not call that object.
pub type OperationLog = Box<dyn FnMut(&Operation<'_>) + Send>;

unsafe extern "C" fn pass_operation(user: *mut c_void, operation: *const sys::kvarena_operation) {
    run_for_library(|| {
        let raw = &*operation;
        let blocks = match raw.num_blocks {
            0 => &[],
            count => slice::from_raw_parts(raw.blocks, count as usize),
        };
        let log = &mut *user.cast::<OperationLog>();
        log(&Operation {
            kind: raw.kind.into(),
            outcome: raw.outcome,
            holder: Holder::from_raw(raw.holder),
            ticket: raw.ticket,
            count: raw.count,
            blocks,
            flag: raw.flag,
            group: raw.group,
            left_in_call: raw.left_in_call,
        });
    });
}

/// Owns the log of a cache or pool, which must outlive it.
pub(crate) struct LogKeeper(*mut OperationLog);

impl LogKeeper {
    pub(crate) fn new(log: Option<OperationLog>) -> Self {
        Self(log.map_or(ptr::null_mut(), |l| Box::into_raw(Box::new(l))))
    }

    pub(crate) fn function(&self) -> sys::kvarena_operation_function {
        if self.0.is_null() {
            None
        } else {
            Some(pass_operation)
        }
    }

    pub(crate) fn user(&self) -> *mut c_void {
        self.0.cast()
    }

    /// Keeps the log for ever.
    pub(crate) fn leak(&mut self) {
        self.0 = ptr::null_mut();
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the object that called it is gone.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}
