//! States of recurrent layers: `docs/states.md` says what a kernel does with them.

use crate::cache::Cache;
use crate::convert::list_of;
use crate::groups::GroupBlocks;
use crate::status::{check, failed, Result};
use crate::step::Step;
use crate::sys;
use crate::values::{Dtype, Sequence};
use std::slice;

/// The states of one recurrent layer of a pool: `kvarena_state_view` of the header.
pub use crate::sys::kvarena_state_view as StateView;

/// One tensor of a layer's state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatePlane {
    /// The type of its elements.
    pub dtype: Dtype,
    /// 1 .. 4 dimensions.
    pub shape: Vec<i64>,
}

impl StatePlane {
    pub(crate) fn raw(&self) -> sys::kvarena_state_plane {
        let mut raw = sys::kvarena_state_plane {
            shape: [0; 4],
            num_dims: i32::try_from(self.shape.len()).unwrap_or(i32::MAX),
            dtype: self.dtype.into(),
        };
        for (to, from) in raw.shape.iter_mut().zip(&self.shape) {
            *to = *from;
        }
        raw
    }
}

/// The slots of a group of states in a step, by row of the demands. Slots of row r and part p are at
/// `r * num_parts + p`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StateSlots<'s> {
    /// Before the step; -1: a state of zeros.
    pub read: &'s [i32],
    /// After it; -1: the row has no new tokens.
    pub write: &'s [i32],
    /// The extras of row r are `extra_offsets[r] .. extra_offsets[r + 1]`.
    pub extra_offsets: &'s [i32],
    /// After which new token of its row an extra is, from 0.
    pub extra_tokens: &'s [i32],
    /// Where that state is to be written too, by extra and part.
    pub extra_slots: &'s [i32],
    /// Slots of one state.
    pub num_parts: i32,
    /// The part of the pool, for [`Cache::group_blocks`].
    pub part: i32,
    /// The same lists in memory of the device, for kernels on the step's stream.
    pub device: DeviceStateSlots,
}

/// The lists of [`StateSlots`] in memory of the device, in the order of the step's stream. On the host
/// device they are those of [`StateSlots`]. On CUDA the addresses are the same in every step and in a
/// recording, where rows behind those of the step that runs have -1 and no extras.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceStateSlots {
    /// As [`StateSlots::read`].
    pub read: *const i32,
    /// As [`StateSlots::write`].
    pub write: *const i32,
    /// As [`StateSlots::extra_offsets`].
    pub extra_offsets: *const i32,
    /// As [`StateSlots::extra_tokens`].
    pub extra_tokens: *const i32,
    /// As [`StateSlots::extra_slots`].
    pub extra_slots: *const i32,
    /// Rows of the step or the recording.
    pub num_rows: i32,
    /// The extras that any step has at most.
    pub max_extras: i32,
}

// SAFETY of the calls below: handle and results are valid, and slices live until the return.
impl Cache {
    /// Keeps the states of a sequence at its present length as a checkpoint, until its pages are
    /// needed. Between steps.
    pub fn checkpoint(&mut self, sequence: Sequence) -> Result<()> {
        check(unsafe { sys::kvarena_sequence_checkpoint(self.raw, sequence.raw()) })
    }

    /// Returns the lengths of a sequence's checkpoints, ascending.
    pub fn checkpoints(&self, sequence: Sequence) -> Result<Vec<i64>> {
        list_of(|out, room, count| unsafe {
            sys::kvarena_sequence_checkpoints(self.raw, sequence.raw(), out, room, count)
        })
        .map_err(failed)
    }

    /// Returns the blocks of the state at exactly `length_tokens`, held or a checkpoint, as
    /// [`create_sequence_from`](Self::create_sequence_from) takes them.
    pub fn state_blocks(
        &self,
        sequence: Sequence,
        length_tokens: i64,
        part: i32,
    ) -> Result<GroupBlocks> {
        let (id, mut generations) = (sequence.raw(), Vec::new());
        let blocks = list_of(|out, room, count| {
            generations = vec![0; room];
            let its: *mut u32 = generations.as_mut_ptr();
            unsafe {
                sys::kvarena_sequence_state_blocks(
                    self.raw,
                    id,
                    length_tokens,
                    part,
                    out,
                    its,
                    room,
                    count,
                )
            }
        })
        .map_err(failed)?;
        generations.truncate(blocks.len());
        Ok(GroupBlocks { first_block: 0, blocks, generations })
    }

    /// Returns where the states of a recurrent layer lie, for kernels of the engine's own.
    pub fn state_view(&self, layer: i32) -> Result<StateView> {
        let mut view = StateView::default();
        check(unsafe { sys::kvarena_cache_state_view(self.raw, layer, &mut view) })?;
        Ok(view)
    }
}

impl Step<'_> {
    /// Returns the slots of the step's `index`-th group of states, counted from 0.
    pub fn states(&self, index: i32) -> Result<StateSlots<'_>> {
        let mut raw = sys::kvarena_state_slots::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_step_states(self.raw, index, &mut raw) })?;
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        let (rows, extras) = (number(raw.num_rows), number(raw.num_extras));
        let parts = number(raw.num_parts);
        let at = |first: *const i32, count: usize| -> &[i32] {
            if count == 0 || first.is_null() {
                return &[]; // a recording has lists on the device alone
            }
            // SAFETY: the slots are valid until the step ends, for which it cannot be borrowed.
            unsafe { slice::from_raw_parts(first, count) }
        };
        Ok(StateSlots {
            read: at(raw.read, rows * parts),
            write: at(raw.write, rows * parts),
            extra_offsets: at(raw.extra_offsets, rows + 1),
            extra_tokens: at(raw.extra_tokens, extras),
            extra_slots: at(raw.extra_slots, extras * parts),
            num_parts: raw.num_parts,
            part: raw.part,
            device: DeviceStateSlots {
                read: raw.device_read,
                write: raw.device_write,
                extra_offsets: raw.device_extra_offsets,
                extra_tokens: raw.device_extra_tokens,
                extra_slots: raw.device_extra_slots,
                num_rows: raw.num_rows,
                max_extras: raw.max_extras,
            },
        })
    }
}
