//! The cache: what an engine holds.

use crate::convert::{c_string, pointer_of, text_of};
use crate::device::{Device, Target};
use crate::events::{EventKeeper, PrefixEvents};
use crate::groups::{shapes_of, LayerGroup, RawGroups};
use crate::log::{LogKeeper, OperationLog};
use crate::memory::{Stream, StreamHandle};
use crate::slices::Staging;
use crate::status::{check, Error, Result, Status};
use crate::step::StepState;
use crate::sys;
use crate::values::{BlockOrder, Dtype, Duplicates, Eviction, Scrub, TileOrder};
use std::collections::HashMap;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

options! {
    /// Options of a cache, and of the layout of a pool. Zero means the default.
    CacheOptions to kvarena_cache_options {
        /// 1 .. 4096.
        num_layers: i32,
        /// 1 .. 4096.
        num_kv_heads: i32,
        /// 1 .. 4096.
        head_dim_k: i32,
        /// 1 .. 4096; 0: the same as `head_dim_k`.
        head_dim_v: i32,
        /// Of K and V.
        dtype: Dtype,
        /// 1 .. 65536; 0: 16.
        block_size_tokens: i32,
        /// The order inside a tile.
        tile_order: TileOrder,
        /// The order of planes and blocks.
        block_order: BlockOrder,
        /// The pool's size; exactly one of these three is set.
        num_blocks: i64,
        /// As many blocks as fit into this many bytes.
        budget_bytes: i64,
        /// All free memory of the device but this; -1: but nothing.
        all_free_but_bytes: i64,
        /// Query heads of attend; a multiple of the KV heads.
        num_q_heads: i32,
        /// Sequences at a time; 0: 1024.
        max_sequences: i32,
        /// Tokens of one sequence; 0: as many as the pool holds.
        max_sequence_tokens: i64,
        /// New tokens in a step; 0: 8192.
        max_step_tokens: i64,
        /// Table entries of a step's rows; 0: 4 x `num_blocks`.
        max_batch_blocks: i64,
        /// Admission leaves at least this many available.
        watermark_blocks: i64,
        /// References that wait for tickets; 0: 64 x `num_blocks`.
        max_fence_entries: i64,
        /// Pages of 128 table entries; 0: enough for 64 x `num_blocks`.
        max_table_pages: i64,
        /// Blocks checked in each step; 0: 64; -1: none.
        audit_blocks_per_step: i64,
        /// Not 0: a sequence's bits do not depend on the rest of its step, which has at most so many
        /// tokens together.
        batch_invariant_tokens: i64,
        /// Sequences in a step; 0: `max_sequences`.
        max_batch_rows: i32,
        /// Sliding window of windowed attend calls; 0: none.
        window_tokens: i32,
        /// Step n waits for step n - k, 1 .. 16; 0: 2.
        steps_in_flight: i32,
        /// Tickets that have not retired, 1 .. 65536; 0: 64.
        max_open_tickets: i32,
        /// Host: attention threads; 0: one a core.
        num_threads: i32,
        /// CUDA: most tokens of a recorded row, 1 .. 16; 0: 1.
        max_decode_tokens: i32,
        /// CUDA: sequences of a step that may read common leading blocks together, at most 4096; 0:
        /// 256; -1: none.
        max_shared_rows: i32,
        /// When zeros are written behind tokens.
        scrub: Scrub,
        /// Attend's tree mask may be set.
        draft_trees: bool,
        /// Pins at a time, at most 2^24; 0: 64; -1: none.
        max_pins: i32,
        /// Retire tickets as soon as their work has completed.
        eager_retire: bool,
        /// With groups: the page is chosen for sequences of up to so many tokens; 0:
        /// `max_sequence_tokens`, or 131,072.
        page_sequence_tokens: i64,
        /// With groups of states: kept at multiples of this length; 0: 2,048; -1: only where the
        /// engine says so.
        checkpoint_every_tokens: i64,
        /// Sequences that begin with the same tokens share blocks.
        prefix_cache: bool,
        /// When two sequences compute the same block at the same time.
        prefix_duplicates: Duplicates,
        /// Extra keys that a sequence may have, 0 .. 31.
        prefix_extra_keys: i32,
        /// Which cached block goes first.
        eviction: Eviction,
        /// Newest removals and registrations that are remembered for [`PrefixStop`](crate::PrefixStop);
        /// 0: one for each 16 blocks.
        prefix_history: i64,
        /// The key of the hash, for runs that can be repeated.
        prefix_key_low: u64,
        /// Its other half; both 0: drawn at create.
        prefix_key_high: u64,
        /// Salts that may have an account at a time, 0 .. 2^20; not 0: each block costs 12 bytes more.
        prefix_accounts: i32,
        /// A sequence may begin with the first tokens of a cached block whose other tokens differ; its
        /// first append copies them.
        prefix_share_parts: bool,
        /// Ids of the largest ghost cache, 4 .. 2^24; 0: no ghosts.
        prefix_ghost_blocks: i32,
    }
}

answer! {
    /// The memory that a cache takes.
    Footprint from kvarena_footprint {
        /// Blocks in the pool.
        num_blocks: i64,
        /// Of all blocks.
        pool_bytes: i64,
        /// Of all attention workspaces.
        workspace_bytes: i64,
        /// Of the step's block tables on CUDA.
        table_bytes: i64,
        /// Pinned host memory on CUDA.
        staging_bytes: i64,
        /// Pool, workspaces and tables.
        device_bytes: i64,
        /// Of block manager and tables; an upper bound.
        host_bytes: i64,
        /// Of device memory.
        device_allocations: i32,
        /// Of pinned host memory.
        staging_allocations: i32,
    }
}

/// What a new cache is given beside its options.
#[derive(Default)]
pub struct Attached<'a> {
    /// For logs, violations and health.
    pub name: Option<&'a str>,
    /// CUDA: of the first step; without it the cache creates one.
    pub stream: Option<&'a Stream>,
    /// Receives every mutating call.
    pub log: Option<OperationLog>,
    /// Receives what the prefix cache stores and removes.
    pub prefix_events: Option<PrefixEvents>,
    /// Layers that keep different data. Then the options' layout is not used, and `num_blocks`
    /// counts pages.
    pub groups: &'a [LayerGroup],
}

/// A pool of blocks with the tables and workspaces for the sequences in it. One thread at a time uses
/// it, and it may move from thread to thread; other threads ask an [`Observer`](crate::Observer).
///
/// Dropping it waits for its work and frees its memory.
pub struct Cache {
    pub(crate) raw: *mut sys::kvarena_cache,
    pub(crate) shape: Shape,
    /// With groups: of each layer.
    shapes: HashMap<i32, Shape>,
    pub(crate) step: Option<StepState>,
    pub(crate) staging: Staging,
    /// Keeps the stream of the present or last step.
    pub(crate) stream: Option<Arc<StreamHandle>>,
    /// Keeps the stream of the last recording.
    pub(crate) recorded: Option<Arc<StreamHandle>>,
    log: LogKeeper,
    events: EventKeeper,
    pub(crate) device: Device,
}

// SAFETY: any thread may call the library with the handle, one at a time; the pointers in `step`,
// `log` and `events` are to memory that does not belong to a thread. The handle is no pointer that is shared, so
// the cache is not `Sync`.
unsafe impl Send for Cache {}

/// The sizes by which slices are checked.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) q: usize,
    pub(crate) out: usize,
    pub(crate) index: usize,
    pub(crate) kv_heads: usize,
    pub(crate) q_heads: usize,
    pub(crate) is_cuda: bool,
}

impl Shape {
    fn of(options: &CacheOptions, is_cuda: bool) -> Self {
        let o = options;
        let dim_v = if o.head_dim_v == 0 { o.head_dim_k } else { o.head_dim_v };
        Self::from_heads(o.num_kv_heads, o.num_q_heads, o.head_dim_k, dim_v, is_cuda)
    }

    pub(crate) fn from_heads(
        kv_heads: i32,
        q_heads: i32,
        dim_k: i32,
        dim_v: i32,
        is_cuda: bool,
    ) -> Self {
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        let (kv_heads, q_heads) = (number(kv_heads), number(q_heads));
        let (dim_k, dim_v) = (number(dim_k), number(dim_v));
        Self {
            key: kv_heads * dim_k,
            value: kv_heads * dim_v,
            q: q_heads * dim_k,
            out: q_heads * dim_v,
            index: 0,
            kv_heads,
            q_heads,
            is_cuda,
        }
    }
}

impl Cache {
    /// Creates a cache: allocates the pool, the workspaces and all tables.
    pub fn create(device: &Device, options: &CacheOptions) -> Result<Self> {
        Self::create_with(device, options, Attached::default())
    }

    /// Creates a cache with a name, a stream, an operation log, events or groups.
    pub fn create_with(
        device: &Device,
        options: &CacheOptions,
        attached: Attached<'_>,
    ) -> Result<Self> {
        let is_cuda = device.info()?.is_cuda;
        let log = LogKeeper::new(attached.log);
        let events = EventKeeper::new(attached.prefix_events);
        let name = attached.name.map(c_string);
        let groups = RawGroups::of(attached.groups);
        let raw_options = sys::kvarena_cache_options {
            stream: Stream::raw_of(attached.stream, device)?,
            name: pointer_of(&name),
            log: log.function(),
            log_user: log.user(),
            prefix_events: events.function(),
            prefix_events_user: events.user(),
            groups: groups.groups.as_ptr(),
            num_groups: groups.groups.len() as i64,
            ..options.raw()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: device, options and result are valid; log and events live until the cache is released.
        check(unsafe { sys::kvarena_cache_create(device.raw(), &raw_options, &mut raw) })?;
        let mut cache = Self {
            raw,
            shape: Shape::of(options, is_cuda),
            shapes: shapes_of(attached.groups, options.num_q_heads, is_cuda),
            step: None,
            staging: Staging::default(),
            stream: attached.stream.map(|s| s.handle.clone()),
            recorded: None,
            log,
            events,
            device: device.clone(),
        };
        cache.shape = Shape::of(&cache.options()?, is_cuda);
        Ok(cache)
    }

    /// The sizes of a layer's slices. In a cache with groups a layer is in one of them.
    pub(crate) fn shape_of(&self, layer: i32) -> Result<Shape> {
        if self.shapes.is_empty() {
            return Ok(self.shape);
        }
        match self.shapes.get(&layer) {
            Some(shape) => Ok(*shape),
            None => Err(Status::no_layer(layer).into()),
        }
    }

    /// Returns the handle, for calls of [`crate::sys`]. It is valid while the cache lives.
    pub fn as_raw(&self) -> *mut sys::kvarena_cache {
        self.raw
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Turns a status into a result. When blocks are missing, the error has the explanation.
    pub(crate) fn check(&self, status: sys::kvarena_status) -> Result<()> {
        if Status(status).is_ok() {
            return Ok(());
        }
        Err(Error::new(status, |refused| {
            let mut answer = sys::kvarena_explanation::default();
            // SAFETY: the pointers are valid.
            let asked = unsafe { sys::kvarena_cache_explain(self.raw, refused, 0, 0, &mut answer) };
            Status(asked).is_ok().then_some(answer)
        }))
    }

    /// Describes an error, with what the cache knows: why blocks were refused, the device's memory,
    /// the next valid call for a call out of order.
    pub fn describe(&self, error: &Error) -> String {
        let status = error.status().as_raw();
        // SAFETY: handle, status and buffer are valid.
        text_of(|out, size, length| unsafe {
            sys::kvarena_cache_describe(self.raw, status, out, size, length)
        })
        .unwrap_or_else(|_| error.to_string())
    }

    /// Returns what the cache was made from, with every default filled in.
    pub fn options(&self) -> Result<CacheOptions> {
        let mut options = sys::kvarena_cache_options::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_cache_ask(self.raw, &mut options) })?;
        Ok((&options).into())
    }

    /// Returns the stream of the present or last step, for work of the caller's own.
    pub fn stream_ptr(&self) -> Result<*mut c_void> {
        let mut stream = ptr::null_mut();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_cache_stream(self.raw, &mut stream) })?;
        Ok(stream)
    }

    /// Publishes between steps, for an engine that goes idle, and retires the fences of steps, whose
    /// work it waits for.
    pub fn publish(&mut self) -> Result<()> {
        // SAFETY: the handle is valid, here and below.
        check(unsafe { sys::kvarena_cache_publish(self.raw) })
    }

    /// Waits for all work queued so far and returns its first failure, once.
    pub fn synchronize(&mut self) -> Result<()> {
        // SAFETY: see `publish`.
        check(unsafe { sys::kvarena_cache_synchronize(self.raw) })
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle. It waits for the observers that are inside.
        if !Status(unsafe { sys::kvarena_cache_release(self.raw) }).is_ok() {
            self.log.leak(); // the cache lives on
            self.events.leak();
        }
    }
}

/// Computes what a cache takes of such a device, without it. `free_bytes` matters only for
/// `all_free_but_bytes`.
pub fn footprint(options: &CacheOptions, target: &Target, free_bytes: i64) -> Result<Footprint> {
    let mut result = sys::kvarena_footprint::default();
    // SAFETY: options and result are valid.
    check(unsafe {
        sys::kvarena_cache_footprint(&options.raw(), &target.raw(), free_bytes, &mut result)
    })?;
    Ok((&result).into())
}

/// Computes the most blocks with which the whole cache takes at most `budget_bytes` of the device, and
/// what it takes; the size in `options` does not matter.
pub fn fit(options: &CacheOptions, target: &Target, budget_bytes: i64) -> Result<Footprint> {
    let mut result = sys::kvarena_footprint::default();
    // SAFETY: options and result are valid.
    check(unsafe {
        sys::kvarena_cache_fit(&options.raw(), &target.raw(), budget_bytes, &mut result)
    })?;
    Ok((&result).into())
}
