//! A paged KV cache for engines that serve language models: the Rust side of `libkvarena.so`.
//!
//! A [`Cache`] is a pool of blocks on a [`Device`] with the tables of the sequences in it. A [`Step`]
//! grows sequences, writes K and V, and attends. `docs/reference/rust.md` has a guide.
//!
//! ```no_run
//! use kvarena::{Cache, CacheOptions, Demand, Device, HostOptions, SequenceOptions};
//!
//! # fn main() -> kvarena::Result<()> {
//! let device = Device::open_host(&HostOptions::default())?;
//! let mut cache = Cache::create(&device, &CacheOptions {
//!     num_layers: 1, num_kv_heads: 2, head_dim_k: 16, num_q_heads: 2, num_blocks: 8,
//!     ..Default::default()
//! })?;
//! let sequence = cache.create_sequence(&SequenceOptions::default())?;
//!
//! let mut step = cache.begin_step()?;
//! step.append(&[Demand::new(sequence, 3)])?;
//! let (key, value, q) = ([0.5_f32; 3 * 32], [1.0_f32; 3 * 32], [0.5_f32; 3 * 32]);
//! let mut out = [0.0_f32; 3 * 32];
//! step.write(0, &key, &value)?;
//! step.attend(0, &q, &mut out)?;
//! step.end()?;
//! assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-3));
//! # Ok(())
//! # }
//! ```
//!
//! # What the types promise
//!
//! - A [`Step`] borrows its cache mutably. Dropping it without [`Step::end`] aborts it.
//! - A [`Cache`] may move to another thread, but two threads cannot use it at the same time. Other
//!   threads ask an [`Observer`].
//! - Calls with slices return after the work, so that slices are free then. Calls with raw pointers
//!   queue work and are `unsafe`.
//! - An [`Error`] has one variant for each code of the library. [`Error::Exhausted`] has the
//!   [`Explanation`].
//! - Nothing here panics, except when a function of the caller's panics inside the library: then the
//!   process ends.
//!
//! A cache is not `Sync`:
//!
//! ```compile_fail,E0277
//! fn share<T: Sync>() {}
//! share::<kvarena::Cache>();
//! ```
//!
//! It is `Send`:
//!
//! ```
//! fn send<T: Send>() {}
//! send::<kvarena::Cache>();
//! ```
//!
//! It cannot be used beside its step, except through it:
//!
//! ```compile_fail,E0499
//! fn two_steps(cache: &mut kvarena::Cache) -> kvarena::Result<()> {
//!     let first = cache.begin_step()?;
//!     let second = cache.begin_step()?;
//!     first.end()?;
//!     second.end()
//! }
//! ```
//!
//! The slots of a step are not there after it:
//!
//! ```compile_fail,E0505
//! fn slots_after(step: kvarena::Step<'_>) -> kvarena::Result<usize> {
//!     let slots = step.slots();
//!     step.end()?;
//!     Ok(slots.len())
//! }
//! ```

#![warn(missing_docs, rust_2018_idioms)]

#[macro_use]
mod convert;
mod accounts;
mod cache;
mod device;
mod events;
mod explanation;
mod groups;
mod kernels;
mod layout;
mod log;
mod memory;
mod monitor;
mod plan;
mod pool;
mod pool_prefix;
mod prefix;
mod questions;
mod sequence;
mod slices;
mod states;
mod status;
mod step;
pub mod sys;
#[cfg(test)]
mod sys_test;
mod values;

pub use accounts::{Ghost, PrefixHistogram, PrefixUse, SaltInfo, SaltLimits, SaltShare};
pub use cache::{fit, footprint, Attached, Cache, CacheOptions, Footprint};
pub use device::{devices_json, CudaOptions, Device, DeviceInfo, HostOptions, Target, Verdict};
pub use events::{PrefixEvent, PrefixEvents};
pub use explanation::{Available, BlockCounts, BlockInfo, Explanation, HolderReport, Stats};
pub use groups::{
    GroupBlocks, GroupLayer, LayerGroup, PageStats, PartStats, WriteCrossArgs, WriteIndexArgs,
};
pub use kernels::{describe_kernels, Kernels, KernelsOptions, Tables};
pub use layout::{layout_plane, plan_layout, PoolPlan};
pub use log::{set_log, set_violation, LogFunction, Operation, OperationLog, ViolationFunction};
pub use memory::{AllocationRequest, Memory, Stream};
pub use monitor::{
    Monitor, MonitorOptions, MonitorParts, Pressure, PressureFunction, UnhealthyFunction,
};
pub use plan::{plan_json, presets_json, PlanError};
pub use pool::{HolderDemand, HolderOptions, Pool, PoolOptions};
pub use pool_prefix::PrefixPosition;
pub use prefix::{ExtraKey, Prefix, PrefixStats, Prompt};
pub use questions::{Observer, Plane, Question};
pub use sequence::{PinOptions, SequenceInfo, SequenceOptions};
pub use slices::{AttendOptions, Bf16, Element, Scales, F16};
pub use states::{DeviceStateSlots, StatePlane, StateSlots, StateView};
pub use status::{Error, Resource, Result, Status};
pub use step::{AttendArgs, Batch, Demand, DeviceBatch, RecordedStep, Recording, Step, WriteArgs};
pub use values::{
    BlockContent, BlockOrder, BlockState, Dtype, Duplicates, Eviction, GroupKind, Holder,
    ImportState, LogLevel, MemoryKind, OperationKind, Place, PlaneKind, PrefixEventKind,
    PrefixRemoval, PrefixStop, Purpose, Scrub, Sequence, StateMode, Ticket, TileOrder, Urgency,
};

/// Returns the library's version, "major.minor.patch".
pub fn version() -> String {
    // SAFETY: the text is static.
    unsafe { convert::string_at(sys::kvarena_version()) }
}

/// Returns the number of the library's interface. It rises with each addition, so that it may be
/// larger than [`sys::KVARENA_ABI`].
pub fn abi() -> u32 {
    // SAFETY: the call needs nothing.
    unsafe { sys::kvarena_abi() }
}

/// Returns whether the library contains the CUDA code.
pub fn has_cuda() -> bool {
    // SAFETY: the call needs nothing.
    unsafe { sys::kvarena_has_cuda() }
}

/// Returns the machine's monotonic time in nanoseconds, which all times of this crate are.
pub fn now_ns() -> i64 {
    // SAFETY: the call needs nothing.
    unsafe { sys::kvarena_now_ns() }
}
