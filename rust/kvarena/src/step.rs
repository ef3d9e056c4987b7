//! Steps, recordings of steps, and tickets.

use crate::cache::Cache;
use crate::memory::Stream;
use crate::status::{check, Result, Status};
use crate::sys;
use crate::values::{Sequence, Ticket, Urgency};
use std::ops::{Deref, DerefMut};
use std::os::raw::c_void;
use std::slice;

/// What a step put on the device, for attention kernels of the engine's own.
pub use crate::sys::kvarena_device_batch as DeviceBatch;

/// K and V of the step's new tokens for one layer, by pointers to memory of the cache's device.
/// `WriteArgs::default()` has the size in `struct_size` and zero in all other members.
pub use crate::sys::kvarena_write_args as WriteArgs;

/// Attention of the step's new tokens over one layer, by pointers to memory of the cache's device.
pub use crate::sys::kvarena_attend_args as AttendArgs;

/// The growth of one sequence.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Demand(sys::kvarena_demand);

impl Demand {
    /// `num_tokens` new tokens, with the urgency of the call.
    pub fn new(sequence: Sequence, num_tokens: i32) -> Self {
        Self::with_urgency(sequence, num_tokens, Urgency::Default)
    }

    /// `num_tokens` new tokens, with an urgency of its own.
    pub fn with_urgency(sequence: Sequence, num_tokens: i32, urgency: Urgency) -> Self {
        Self(sys::kvarena_demand { sequence: sequence.raw(), num_tokens, urgency: urgency.into() })
    }

    /// Returns the number of the sequence.
    pub fn sequence(&self) -> Option<Sequence> {
        Sequence::from_raw(self.0.sequence)
    }

    /// Returns the new tokens.
    pub fn num_tokens(&self) -> i32 {
        self.0.num_tokens
    }
}

/// What an append made: the batch, in the order of the demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// New tokens: rows of key, value, q, out.
    pub num_tokens: i64,
    /// Copies on write that were queued.
    pub num_copies: i64,
    /// Blocks taken.
    pub new_blocks: i64,
    /// The slot of each new token in device memory, in the order of the step's stream.
    pub device_slots: *const i64,
}

options! {
    /// The shape of a recorded decode step.
    RecordedStep to kvarena_recorded_step {
        /// Sequences at most, 1 .. `max_batch_rows`.
        num_rows: i32,
        /// New tokens of each, 1 .. `max_decode_tokens`; 0: 1.
        tokens_per_row: i32,
        /// Each replay looks for sequences that begin with the same blocks.
        shares_prefixes: bool,
        /// Tokens that the sequences will have, about, which attention is then fastest for; 0:
        /// unknown.
        row_tokens: i32,
    }
}

/// A step that has begun. It is part of the cache, so that it stays right when caches change places.
pub(crate) struct StepState {
    batch: Option<sys::kvarena_batch>,
}

impl StepState {
    /// New tokens of the step.
    pub(crate) fn num_tokens(&self) -> Option<usize> {
        self.batch.map(|b| usize::try_from(b.num_tokens).unwrap_or(0))
    }
}

fn batch_of(raw: &sys::kvarena_batch) -> Batch {
    Batch {
        num_tokens: raw.num_tokens,
        num_copies: raw.num_copies,
        new_blocks: raw.new_blocks,
        device_slots: raw.device_slots,
    }
}

fn step_options(stream: *mut c_void) -> sys::kvarena_step_options {
    sys::kvarena_step_options { stream, ..Default::default() }
}

/// A step of a cache. It has all calls of the cache too: sequences may come and go inside it. Dropping
/// it without [`end`](Self::end) aborts it: its sequences have their old tokens again.
///
/// [`append`](Self::append); for each layer `write` and `attend`; `end`.
#[must_use = "a step that is dropped is aborted"]
pub struct Step<'c> {
    cache: &'c mut Cache,
}

impl Cache {
    /// Begins a step on the stream of the last step. Waits for step n - `steps_in_flight`.
    pub fn begin_step(&mut self) -> Result<Step<'_>> {
        self.begin(None)
    }

    /// Begins a step whose work is queued on `stream`. Another stream than the last step's waits for
    /// the last step's work by an event.
    pub fn begin_step_on(&mut self, stream: &Stream) -> Result<Step<'_>> {
        self.begin(Some(stream))
    }

    fn begin(&mut self, stream: Option<&Stream>) -> Result<Step<'_>> {
        let options = step_options(Stream::raw_of(stream, &self.device)?);
        // SAFETY: handle and options are valid.
        check(unsafe { sys::kvarena_step_begin(self.raw, &options) })?;
        self.step = Some(StepState { batch: None });
        if let Some(stream) = stream {
            self.stream = Some(stream.handle.clone());
        }
        Ok(Step { cache: self })
    }

    /// Begins a recording on the stream of the last step, or on `stream`: call it between steps while
    /// the stream is captured into a CUDA graph.
    pub fn begin_recording(
        &mut self,
        shape: &RecordedStep,
        stream: Option<&Stream>,
    ) -> Result<Recording<'_>> {
        let mut raw = sys::kvarena_batch::default();
        let options = step_options(Stream::raw_of(stream, &self.device)?);
        // SAFETY: handle, options and result are valid.
        check(unsafe { sys::kvarena_recording_begin(self.raw, &shape.raw(), &options, &mut raw) })?;
        if let Some(stream) = stream {
            self.recorded = Some(stream.handle.clone());
        }
        Ok(Recording { cache: self, batch: batch_of(&raw), is_open: true })
    }

    fn device_batch(&self) -> Result<DeviceBatch> {
        let mut batch = sys::kvarena_device_batch::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_step_device_batch(self.raw, &mut batch) })?;
        Ok(batch)
    }

    /// Opens a step's ticket for the work queued so far on `stream`, for short work: a step retires it
    /// `steps_in_flight` steps later and waits for the work if it has to.
    pub fn fence(&mut self, stream: &Stream) -> Result<Ticket> {
        let (stream, mut ticket) = (Stream::raw_of(Some(stream), &self.device)?, 0);
        // SAFETY: handle, stream and result are valid, here and below.
        check(unsafe { sys::kvarena_ticket_fence(self.raw, stream, &mut ticket) })?;
        Ok(Ticket::written(ticket))
    }

    /// Opens an open ticket, for work that takes longer than a few steps. No step waits for it, and
    /// the engine retires it. Without a stream no stream of this device knows the work, such as a
    /// write by another machine.
    pub fn open_ticket(&mut self, stream: Option<&Stream>) -> Result<Ticket> {
        let (stream, mut ticket) = (Stream::raw_of(stream, &self.device)?, 0);
        // SAFETY: see `fence`.
        check(unsafe { sys::kvarena_ticket_open(self.raw, stream, &mut ticket) })?;
        Ok(Ticket::written(ticket))
    }

    /// Retires an open ticket whose work has ended: the blocks released against it return.
    pub fn retire(&mut self, ticket: Ticket) -> Result<()> {
        // SAFETY: see `fence`.
        check(unsafe { sys::kvarena_ticket_retire(self.raw, ticket.raw()) })
    }
}

impl Step<'_> {
    /// Grows sequences, with the urgency of growth, queues copies on write, and plans attention. The
    /// rows are the demands. Succeeds once in a step; a failed append changes nothing, so that a
    /// sequence can be preempted and the append made again.
    pub fn append(&mut self, demands: &[Demand]) -> Result<Batch> {
        self.append_with(demands, Urgency::Growth)
    }

    /// Does what `append` does, with another urgency.
    pub fn append_with(&mut self, demands: &[Demand], urgency: Urgency) -> Result<Batch> {
        let (rows, count) = (demands.as_ptr().cast(), demands.len());
        self.append_by(|cache, batch| {
            // SAFETY: the handle is valid, and the demands have the form of the header's.
            unsafe { sys::kvarena_step_append(cache, rows, count, urgency.into(), batch) }
        })
    }

    /// Does what `append` does, for a step that a graph of `shape` runs. Launch the graph on the
    /// step's stream exactly once before the end of the step; when the launch fails, abort the step.
    pub fn append_recorded(
        &mut self,
        shape: &RecordedStep,
        demands: &[Demand],
        urgency: Urgency,
    ) -> Result<Batch> {
        let (rows, count, shape) = (demands.as_ptr().cast(), demands.len(), shape.raw());
        let urgency = urgency.into();
        self.append_by(|cache, batch| {
            // SAFETY: as in `append_with`.
            unsafe { sys::kvarena_step_append_recorded(cache, &shape, rows, count, urgency, batch) }
        })
    }

    /// Does what `append` does, and tells the prefix cache the new tokens: those of all demands, one
    /// demand behind the other. A demand whose first entry is negative is not told.
    pub fn append_tokens(&mut self, demands: &[Demand], tokens: &[i32]) -> Result<Batch> {
        self.append_told(None, demands, tokens, Urgency::Growth)
    }

    /// Does the same with another urgency, and with a `shape` for a step that a graph runs.
    pub fn append_told(
        &mut self,
        shape: Option<&RecordedStep>,
        demands: &[Demand],
        tokens: &[i32],
        urgency: Urgency,
    ) -> Result<Batch> {
        let (rows, count) = (demands.as_ptr().cast(), demands.len());
        let (told, num_told) = (tokens.as_ptr(), tokens.len());
        let shape = shape.map(RecordedStep::raw);
        let shape = shape.as_ref().map_or(std::ptr::null(), |s| s as *const _);
        let urgency = urgency.into();
        self.append_by(|cache, batch| {
            // SAFETY: as in `append_with`; the tokens live until the return.
            unsafe {
                sys::kvarena_step_append_tokens(
                    cache, shape, rows, count, told, num_told, urgency, batch,
                )
            }
        })
    }

    fn append_by(
        &mut self,
        call: impl FnOnce(*mut sys::kvarena_cache, *mut sys::kvarena_batch) -> sys::kvarena_status,
    ) -> Result<Batch> {
        let mut raw = sys::kvarena_batch::default();
        let status = call(self.cache.raw, &mut raw);
        self.cache.check(status)?;
        if let Some(step) = &mut self.cache.step {
            step.batch = Some(raw);
        }
        Ok(batch_of(&raw))
    }

    /// Returns the index of the demand at which the last append failed.
    pub fn failed_demand(&self) -> Result<Option<usize>> {
        let mut index = -1;
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_step_failed_demand(self.cache.raw, &mut index) })?;
        Ok(usize::try_from(index).ok())
    }

    /// Returns the slot of each new token: block * block_size + offset. Empty before the append.
    pub fn slots(&self) -> &[i64] {
        match self.cache.step.as_ref().and_then(|s| s.batch) {
            Some(batch) if !batch.slots.is_null() => {
                let count = usize::try_from(batch.num_tokens).unwrap_or(0);
                // SAFETY: the slots are valid until the step ends, for which it cannot be borrowed.
                unsafe { slice::from_raw_parts(batch.slots, count) }
            }
            _ => &[],
        }
    }

    /// Returns what the step put on the device, valid until the step ends.
    pub fn device_batch(&self) -> Result<DeviceBatch> {
        self.cache.device_batch()
    }

    /// Queues the write of K and V of the new tokens of one layer.
    ///
    /// # Safety
    /// The pointers are to memory of the cache's device, of the sizes that the header names, and stay
    /// valid until [`synchronize`](Cache::synchronize), or `steps_in_flight` steps later.
    pub unsafe fn write_raw(&mut self, args: &WriteArgs) -> Result<()> {
        check(sys::kvarena_step_write(self.cache.raw, args))
    }

    /// Queues attention of the new tokens of one layer over all tokens so far.
    ///
    /// # Safety
    /// As for [`write_raw`](Self::write_raw).
    pub unsafe fn attend_raw(&mut self, args: &AttendArgs) -> Result<()> {
        check(sys::kvarena_step_attend(self.cache.raw, args))
    }

    /// Marks the end of the step's work and publishes its figures. Does not wait. When it fails, the
    /// step is aborted.
    pub fn end(self) -> Result<()> {
        if self.cache.step.is_none() {
            return Err(Status::no_step().into());
        }
        // SAFETY: the handle is valid, here and below.
        check(unsafe { sys::kvarena_step_end(self.cache.raw) })?;
        self.cache.step = None;
        Ok(())
    }

    /// Gives the step up: its sequences have their old tokens again.
    pub fn abort(self) -> Result<()> {
        if self.cache.step.take().is_none() {
            return Err(Status::no_step().into());
        }
        // SAFETY: see `end`.
        check(unsafe { sys::kvarena_step_abort(self.cache.raw) })
    }
}

impl Deref for Step<'_> {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        self.cache
    }
}

impl DerefMut for Step<'_> {
    fn deref_mut(&mut self) -> &mut Cache {
        self.cache
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.cache.step.take().is_some() {
            // SAFETY: the handle is valid.
            unsafe { sys::kvarena_step_abort(self.cache.raw) };
        }
    }
}

/// A recording of a decode step, see [`Cache::begin_recording`]. Dropping it ends it.
pub struct Recording<'c> {
    cache: &'c mut Cache,
    batch: Batch,
    is_open: bool,
}

impl Recording<'_> {
    /// Returns the padded batch.
    pub fn batch(&self) -> Batch {
        self.batch
    }

    /// Returns what the recording put on the device.
    pub fn device_batch(&self) -> Result<DeviceBatch> {
        self.cache.device_batch()
    }

    pub(crate) fn raw_cache(&self) -> *mut sys::kvarena_cache {
        self.cache.raw
    }

    /// Returns the stream that is captured.
    pub fn stream_ptr(&self) -> Result<*mut c_void> {
        self.cache.stream_ptr()
    }

    /// Records the write of K and V of one layer.
    ///
    /// # Safety
    /// The pointers are to memory of the cache's device, of the sizes that the header names, and stay
    /// valid as long as the graph is launched.
    pub unsafe fn write_raw(&mut self, args: &WriteArgs) -> Result<()> {
        check(sys::kvarena_step_write(self.cache.raw, args))
    }

    /// Records attention of one layer.
    ///
    /// # Safety
    /// As for [`write_raw`](Self::write_raw).
    pub unsafe fn attend_raw(&mut self, args: &AttendArgs) -> Result<()> {
        check(sys::kvarena_step_attend(self.cache.raw, args))
    }

    /// Ends the recording, which holds the whole step.
    pub fn end(mut self) -> Result<()> {
        self.is_open = false;
        // SAFETY: the handle is valid.
        check(unsafe { sys::kvarena_recording_end(self.cache.raw) })
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: the handle is valid.
            unsafe { sys::kvarena_recording_end(self.cache.raw) };
        }
    }
}
