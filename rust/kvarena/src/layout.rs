//! How a pool lies in memory of the engine's.

use crate::cache::CacheOptions;
use crate::questions::Plane;
use crate::status::{check, Result};
use crate::sys;
use crate::values::PlaneKind;
use std::os::raw::c_void;

answer! {
    /// The sizes of a pool.
    PoolPlan from kvarena_pool_plan {
        /// Blocks.
        num_blocks: i64,
        /// Of all blocks.
        pool_bytes: i64,
        /// Unused bytes of the budget.
        slack_bytes: i64,
        /// Of one block, all layers, with padding.
        block_bytes: i64,
        /// In all layers, without padding.
        bytes_per_token: i64,
    }
}

/// Computes the blocks that a pool gets. Only the layout and the size of `options` matter.
pub fn plan_layout(options: &CacheOptions, free_bytes: i64) -> Result<PoolPlan> {
    let mut plan = sys::kvarena_pool_plan::default();
    // SAFETY: options and result are valid.
    check(unsafe { sys::kvarena_layout_plan(&options.raw(), free_bytes, &mut plan) })?;
    Ok((&plan).into())
}

/// Returns K or V of one layer of a pool of `num_blocks` blocks at `base`. `TileOrder::Best` is rows
/// here. The memory is not read.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
pub fn layout_plane(
    options: &CacheOptions,
    base: *mut c_void,
    num_blocks: i64,
    layer: i32,
    kind: PlaneKind,
) -> Result<Plane> {
    let (options, kind, mut plane) = (options.raw(), kind.into(), Plane::default());
    // SAFETY: options and result are valid, and the library adds to `base` only.
    check(unsafe {
        sys::kvarena_layout_plane(&options, base, num_blocks, layer, kind, &mut plane)
    })?;
    Ok(plane)
}
