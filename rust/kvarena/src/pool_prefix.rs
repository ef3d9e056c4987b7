//! A pool whose blocks are found by their tokens, for an engine with block tables of its own.

use crate::accounts::PrefixUse;
use crate::pool::{same_length, Pool};
use crate::prefix::{Prefix, PrefixStats, Prompt};
use crate::sequence::SequenceOptions;
use crate::status::{check, Result};
use crate::sys;
use crate::values::Holder;
use std::{fmt, ptr};

/// A place in a prefix, behind registered blocks. An engine keeps one for each sequence; a fork copies
/// it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct PrefixPosition(sys::kvarena_prefix_position);

impl PrefixPosition {
    /// Registered blocks before it.
    pub fn blocks(&self) -> usize {
        self.0.blocks.max(0) as usize
    }
}

impl fmt::Debug for PrefixPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixPosition").field("blocks", &self.0.blocks).finish()
    }
}

// SAFETY of the calls below: handle, options and results are valid, and slices live until the return.
impl Pool {
    /// Returns the position before the first block of a sequence of this salt.
    pub fn begin_prefix(&self, salt: u64) -> Result<PrefixPosition> {
        let mut position = sys::kvarena_prefix_position::default();
        check(unsafe { sys::kvarena_pool_begin_prefix(self.raw, salt, &mut position) })?;
        Ok(PrefixPosition(position))
    }

    /// Returns the longest cached prefix of a prompt, and writes as many of its blocks as there is room
    /// for. Changes nothing.
    pub fn match_prefix(
        &self,
        prompt: &Prompt<'_>,
        blocks: &mut [i32],
        generations: &mut [u32],
    ) -> Result<Prefix> {
        same_length(blocks.len(), generations.len())?;
        let raw = prompt.raw(&SequenceOptions::default());
        let mut prefix = sys::kvarena_prefix::default();
        let (room, blocks, generations) =
            (blocks.len(), blocks.as_mut_ptr(), generations.as_mut_ptr());
        check(unsafe {
            sys::kvarena_pool_match(self.raw, &raw, blocks, generations, room, &mut prefix)
        })?;
        Ok((&prefix).into())
    }

    /// Does the same, takes a reference on each block, and returns the position behind them. There must
    /// be room for all: (tokens - 1) / block size entries are enough.
    pub fn adopt(
        &mut self,
        holder: Holder,
        prompt: &Prompt<'_>,
        blocks: &mut [i32],
        generations: &mut [u32],
    ) -> Result<(Prefix, PrefixPosition)> {
        same_length(blocks.len(), generations.len())?;
        let raw = prompt.raw(&SequenceOptions::default());
        let mut prefix = sys::kvarena_prefix::default();
        let mut position = sys::kvarena_prefix_position::default();
        self.check(unsafe {
            sys::kvarena_pool_adopt(
                self.raw,
                holder.raw(),
                &raw,
                blocks.as_mut_ptr(),
                generations.as_mut_ptr(),
                blocks.len(),
                &mut prefix,
                &mut position,
            )
        })?;
        Ok(((&prefix).into(), PrefixPosition(position)))
    }

    /// Registers blocks behind a position, and moves it behind them. The prompt's tokens fill these
    /// blocks; its extra keys are those of the whole sequence; its salt is not read. Returns how many
    /// had no registered equal. A stale position is an error: begin anew, with all blocks.
    pub fn register(
        &mut self,
        position: &mut PrefixPosition,
        filled: &Prompt<'_>,
        blocks: &[i32],
        generations: &[u32],
    ) -> Result<usize> {
        same_length(blocks.len(), generations.len())?;
        let raw = filled.raw(&SequenceOptions::default());
        let mut registered = 0;
        check(unsafe {
            sys::kvarena_pool_register(
                self.raw,
                &mut position.0,
                &raw,
                blocks.as_ptr(),
                generations.as_ptr(),
                blocks.len(),
                &mut registered,
            )
        })?;
        Ok(registered)
    }

    /// Says that blocks have been written, or will be in the order of the home stream: those that are
    /// registered are found from now on. Returns their number.
    pub fn publish(&mut self, blocks: &[i32], generations: &[u32]) -> Result<usize> {
        same_length(blocks.len(), generations.len())?;
        let mut published = 0;
        let (count, blocks, generations) = (blocks.len(), blocks.as_ptr(), generations.as_ptr());
        check(unsafe {
            sys::kvarena_pool_publish(self.raw, blocks, generations, count, &mut published)
        })?;
        Ok(published)
    }

    /// Forgets blocks, and all behind them, also those of others.
    pub fn forget(&mut self, blocks: &[i32]) -> Result<()> {
        check(unsafe { sys::kvarena_pool_forget(self.raw, blocks.as_ptr(), blocks.len()) })
    }

    /// Forgets all blocks of a salt.
    pub fn forget_salt(&mut self, salt: u64) -> Result<()> {
        check(unsafe { sys::kvarena_pool_forget_salt(self.raw, salt) })
    }

    /// Forgets all blocks.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        check(unsafe { sys::kvarena_pool_forget_all(self.raw) })
    }

    /// Returns the figures of the prefix cache.
    pub fn prefix_stats(&self) -> Result<PrefixStats> {
        let mut raw = sys::kvarena_prefix_stats::default();
        check(unsafe { sys::kvarena_pool_ask_prefix(self.raw, &mut raw, ptr::null_mut()) })?;
        Ok((&raw).into())
    }

    /// Returns how the prefix cache is used.
    pub fn prefix_use(&self) -> Result<PrefixUse> {
        let mut raw = sys::kvarena_prefix_use::default();
        check(unsafe { sys::kvarena_pool_ask_prefix(self.raw, ptr::null_mut(), &mut raw) })?;
        Ok((&raw).into())
    }
}
