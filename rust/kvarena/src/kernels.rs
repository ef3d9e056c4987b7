//! Attention for an engine with block tables of its own.

use crate::device::Device;
use crate::questions::Plane;
use crate::status::{check, describe_by, Error, Result};
use crate::step::{AttendArgs, WriteArgs};
use crate::sys;
use crate::values::{Dtype, TileOrder};
use std::os::raw::c_void;
use std::ptr;

/// The rows of a step: the engine's own tables. The header says where each array lies.
/// `Tables::default()` has the size in `struct_size` and zero in all other members.
pub use crate::sys::kvarena_tables as Tables;

options! {
    /// The largest step that the kernels serve. Zero means the default where there is one.
    KernelsOptions to kvarena_kernels_options {
        /// KV heads.
        num_kv_heads: i32,
        /// Elements.
        head_dim_k: i32,
        /// Elements; 0: `head_dim_k`.
        head_dim_v: i32,
        /// Of the pool.
        dtype: Dtype,
        /// Tokens a block; 0: 16.
        block_size_tokens: i32,
        /// Of the pool; `Best` is rows.
        tile_order: TileOrder,
        /// A multiple of `num_kv_heads`.
        num_q_heads: i32,
        /// Sequences of a step, 1 .. 2^20.
        max_rows: i32,
        /// New tokens of a step.
        max_q_tokens: i64,
        /// Blocks of the pool.
        num_blocks: i64,
        /// As in `CacheOptions`.
        batch_invariant_tokens: i64,
        /// 1 .. 16; 0: 1.
        max_decode_tokens: i32,
        /// Rows that may read leading blocks together; 0: none.
        max_shared_rows: i32,
        /// Of calls with `windowed`; 0: none.
        window_tokens: i32,
        /// The tree mask may be set.
        draft_trees: bool,
        /// Host: 0: one a core.
        num_threads: i32,
        /// V is the leading `head_dim_v` elements of K: a latent.
        value_in_key: bool,
    }
}

/// The workspaces of one shape on one device. For each step: [`schedule`](Self::schedule) once, then
/// for each layer [`write`](Self::write) and [`attend`](Self::attend). One thread at a time uses it.
///
/// On CUDA, calls queue work on `stream` and can be captured. On the host they run in the call, and
/// `stream` is not read.
pub struct Kernels {
    raw: *mut sys::kvarena_kernels,
}

// SAFETY: any thread may call the library with the handle, one at a time.
unsafe impl Send for Kernels {}

impl Kernels {
    /// Creates kernels for a shape: allocates and prepares the workspaces.
    pub fn create(device: &Device, options: &KernelsOptions) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: device, options and result are valid.
        check(unsafe { sys::kvarena_kernels_create(device.raw(), &options.raw(), &mut raw) })?;
        Ok(Self { raw })
    }

    /// Returns the bytes of all workspaces.
    pub fn workspace_bytes(&self) -> Result<i64> {
        let mut bytes = 0;
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_kernels_workspace_bytes(self.raw, &mut bytes) })?;
        Ok(bytes)
    }

    /// Queues the schedule of a step, from the lengths. `windowed`: for calls with `windowed` set; a
    /// step with both kinds of layers has both schedules.
    ///
    /// # Safety
    /// The arrays are as the header says, and stay valid until the step's work has completed. The work
    /// has completed when the kernels are dropped.
    pub unsafe fn schedule(
        &mut self,
        tables: &Tables,
        windowed: bool,
        stream: *mut c_void,
    ) -> Result<()> {
        check(sys::kvarena_kernels_schedule(self.raw, tables, windowed.into(), stream))
    }

    /// Queues the write of K and V of one layer to `slots`: block * block_size + offset; -1: skip.
    /// `args.layer` is not read. With `overlap` it may begin while the kernel before it ends.
    ///
    /// # Safety
    /// Planes, slots and arrays are as the header says, of `num_tokens` tokens, and stay valid until
    /// the work has completed.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn write(
        &mut self,
        key: &Plane,
        value: &Plane,
        slots: *const i64,
        num_tokens: i64,
        args: &WriteArgs,
        overlap: bool,
        stream: *mut c_void,
    ) -> Result<()> {
        let overlap = overlap.into();
        check(sys::kvarena_kernels_write(
            self.raw, key, value, slots, num_tokens, args, overlap, stream,
        ))
    }

    /// Queues attention of one layer over the rows of the last schedule with the same `windowed`.
    /// `args.layer` and `kv_is_written` are not read. `overlap` is false in the first launch after the
    /// schedule.
    ///
    /// # Safety
    /// Planes and arrays are as the header says, for the rows of the schedule, and stay valid until
    /// the work has completed.
    pub unsafe fn attend(
        &mut self,
        key: &Plane,
        value: &Plane,
        args: &AttendArgs,
        overlap: bool,
        stream: *mut c_void,
    ) -> Result<()> {
        check(sys::kvarena_kernels_attend(self.raw, key, value, args, overlap.into(), stream))
    }

    /// Proves that every table entry of the rows of the last schedule is a block of the pool, for
    /// debugging. Waits for the stream.
    ///
    /// # Safety
    /// The arrays of the schedule are still valid, and `stream` is one of the device.
    pub unsafe fn check_tables(&mut self, windowed: bool, stream: *mut c_void) -> Result<()> {
        check(sys::kvarena_kernels_check_tables(self.raw, windowed.into(), stream))
    }
}

/// Describes an error of kernels: the sentence names the argument that was refused, and what is
/// supported.
pub fn describe_kernels(error: &Error) -> String {
    let status = error.status().as_raw();
    // SAFETY: status and buffer are valid.
    describe_by(|out, size| unsafe { sys::kvarena_kernels_describe(status, out, size) })
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle.
        unsafe { sys::kvarena_kernels_release(self.raw) };
    }
}
