//! `kvarena/kvarena.h`, written down in Rust: the same names, types and order. The header says what
//! each call does. A test compares this file with the header through the C compiler.
//!
//! `Default` of a struct is zero in every member, and the size in `struct_size`.

#![allow(non_camel_case_types, missing_docs)]

use std::mem;
use std::os::raw::{c_char, c_void};

/// The number of the interface that this file mirrors.
pub const KVARENA_ABI: u32 = 5;
/// CUDA's legacy default stream, as an integer.
pub const KVARENA_STREAM_LEGACY: usize = 0x1;
/// CUDA's default stream of the calling thread, as an integer.
pub const KVARENA_STREAM_PER_THREAD: usize = 0x2;
/// The length of [`kvarena_explanation`]'s list of holders.
pub const KVARENA_MAX_LARGEST: usize = 8;
/// The entries of the lists by reason in [`kvarena_prefix_stats`].
pub const KVARENA_MAX_PREFIX_REASONS: usize = 16;
/// The entries of [`kvarena_prefix_histogram`].
pub const KVARENA_PREFIX_BUCKETS: usize = 17;
/// The entries of the list in [`kvarena_prefix_use`].
pub const KVARENA_MAX_GHOSTS: usize = 32;
/// The length of [`kvarena_explanation`]'s list of salts.
pub const KVARENA_MAX_SALTS: usize = 4;

pub type kvarena_sequence = u64;
pub type kvarena_ticket = u64;
pub type kvarena_holder = u64;

/// Enumerators are constants of the type that carries them in structs and calls.
macro_rules! values {
    ($(enum $name:ident { $($value:ident = $number:literal,)* })*) => {
        $($(pub const $value: i32 = $number;)*)*

        /// Each enumeration with its enumerators.
        #[cfg(test)]
        pub(crate) fn mirrored_enums() -> Vec<mirror::Enum> {
            vec![$(mirror::Enum {
                name: stringify!($name),
                values: vec![$((stringify!($value), $value)),*],
            }),*]
        }
    };
}

/// Handles point to no memory of this process.
macro_rules! handles {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            pub struct $name {
                nothing: [u8; 0],
            }
        )*
    };
}

/// Functions that the library calls; `None` is NULL.
macro_rules! callbacks {
    ($(type $name:ident = fn($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(pub type $name = Option<unsafe extern "C" fn($($argument: $type),*)>;)*

        /// Each function type with the types of its arguments.
        #[cfg(test)]
        pub(crate) fn mirrored_callbacks() -> Vec<mirror::Function> {
            vec![$(mirror::Function {
                name: stringify!($name),
                arguments: vec![$(stringify!($type)),*],
                result: "",
            }),*]
        }
    };
}

macro_rules! declare_struct {
    ($name:ident { $($member:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(pub $member: $type,)*
        }

        #[cfg(test)]
        impl mirror::Mirrored for $name {
            fn layout() -> mirror::Struct {
                let place = mem::MaybeUninit::<$name>::uninit();
                let base = place.as_ptr();
                mirror::Struct {
                    name: stringify!($name),
                    size: mem::size_of::<$name>(),
                    alignment: mem::align_of::<$name>(),
                    members: vec![$({
                        // SAFETY: the address of a member is taken; nothing is read.
                        let member = unsafe { std::ptr::addr_of!((*base).$member) };
                        mirror::Member {
                            name: stringify!($member),
                            type_name: stringify!($type),
                            offset: member as usize - base as usize,
                            size: mirror::size_behind(member),
                        }
                    }),*],
                }
            }
        }
    };
}

macro_rules! plain_structs {
    ($(struct $name:ident { $($member:ident: $type:ty,)* })*) => {
        $(
            declare_struct! { $name { $($member: $type,)* } }

            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: all members are numbers and pointers, for which zero is a value.
                    unsafe { mem::zeroed() }
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn mirrored_plain_structs() -> Vec<mirror::Struct> {
            vec![$(<$name as mirror::Mirrored>::layout()),*]
        }
    };
}

macro_rules! sized_structs {
    ($(struct $name:ident { $($member:ident: $type:ty,)* })*) => {
        $(
            declare_struct! { $name { $($member: $type,)* } }

            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: all members are numbers and pointers, for which zero is a value.
                    let zero: Self = unsafe { mem::zeroed() };
                    Self { struct_size: mem::size_of::<Self>() as u64, ..zero }
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn mirrored_sized_structs() -> Vec<mirror::Struct> {
            vec![$(<$name as mirror::Mirrored>::layout()),*]
        }
    };
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        extern "C" {
            $(pub fn $name($($argument: $type),*) $(-> $result)?;)*
        }

        /// Each function with the types of its arguments and result.
        #[cfg(test)]
        pub(crate) fn mirrored_functions() -> Vec<mirror::Function> {
            vec![$(mirror::Function {
                name: stringify!($name),
                arguments: vec![$(stringify!($type)),*],
                result: concat!($(stringify!($result))?),
            }),*]
        }
    };
}

/// What the test of this file knows of its declarations.
#[cfg(test)]
pub(crate) mod mirror {
    pub(crate) struct Enum {
        pub name: &'static str,
        pub values: Vec<(&'static str, i32)>,
    }

    pub(crate) struct Function {
        pub name: &'static str,
        pub arguments: Vec<&'static str>,
        pub result: &'static str,
    }

    pub(crate) struct Member {
        pub name: &'static str,
        pub type_name: &'static str,
        pub offset: usize,
        pub size: usize,
    }

    pub(crate) struct Struct {
        pub name: &'static str,
        pub size: usize,
        pub alignment: usize,
        pub members: Vec<Member>,
    }

    pub(crate) trait Mirrored {
        fn layout() -> Struct;
    }

    pub(crate) fn size_behind<T>(_: *const T) -> usize {
        std::mem::size_of::<T>()
    }
}

handles! { kvarena_device kvarena_cache kvarena_pool kvarena_kernels kvarena_monitor }

values! {
    enum kvarena_code {
        KVARENA_OK = 0,
        KVARENA_INVALID_ARGUMENT = 1,
        KVARENA_UNSUPPORTED = 2,
        KVARENA_DUPLICATE_ARGUMENT = 3,
        KVARENA_NOT_FOUND = 4,
        KVARENA_FAILED_PRECONDITION = 5,
        KVARENA_EXHAUSTED = 6,
        KVARENA_INSUFFICIENT_VRAM = 7,
        KVARENA_CONTEXT_LENGTH_EXCEEDED = 8,
        KVARENA_DOUBLE_RELEASE = 9,
        KVARENA_STALE_HANDLE = 10,
        KVARENA_REFERENCE_UNDERFLOW = 11,
        KVARENA_INVARIANT_VIOLATED = 12,
        KVARENA_DEVICE_ERROR = 13,
        KVARENA_IO_ERROR = 14,
        KVARENA_PARSE_ERROR = 15,
        KVARENA_VERIFICATION_FAILED = 16,
        KVARENA_RESIDENCY_VIOLATED = 17,
        KVARENA_LIMIT_EXCEEDED = 18,
    }
    enum kvarena_resource {
        KVARENA_RESOURCE_NONE = 0,
        KVARENA_RESOURCE_BLOCK = 1,
        KVARENA_RESOURCE_RESERVATION = 2,
        KVARENA_RESOURCE_HOLDER = 3,
        KVARENA_RESOURCE_TICKET = 4,
        KVARENA_RESOURCE_FENCE_ENTRY = 5,
        KVARENA_RESOURCE_SEQUENCE = 6,
        KVARENA_RESOURCE_TABLE_PAGE = 7,
        KVARENA_RESOURCE_DEVICE_MEMORY = 8,
        KVARENA_RESOURCE_HOST_MEMORY = 9,
        KVARENA_RESOURCE_WORKSPACE = 10,
        KVARENA_RESOURCE_STREAM = 11,
        KVARENA_RESOURCE_EVENT = 12,
        KVARENA_RESOURCE_ALLOCATION = 13,
        KVARENA_RESOURCE_FILE = 14,
        KVARENA_RESOURCE_THREAD = 15,
        KVARENA_RESOURCE_STEP = 16,
        KVARENA_RESOURCE_NUM_GROUPS = 17,
        KVARENA_RESOURCE_NUM_PLANES = 18,
        KVARENA_RESOURCE_NUM_KV_HEADS = 19,
        KVARENA_RESOURCE_NUM_Q_HEADS = 20,
        KVARENA_RESOURCE_HEAD_DIM = 21,
        KVARENA_RESOURCE_BLOCK_SIZE = 22,
        KVARENA_RESOURCE_NUM_BLOCKS = 23,
        KVARENA_RESOURCE_DTYPE = 24,
        KVARENA_RESOURCE_TILE_ORDER = 25,
        KVARENA_RESOURCE_LAYER = 26,
        KVARENA_RESOURCE_ALIGNMENT = 27,
        KVARENA_RESOURCE_BLOCK_BYTES = 28,
        KVARENA_RESOURCE_POOL_BYTES = 29,
        KVARENA_RESOURCE_NUM_SEQUENCES = 30,
        KVARENA_RESOURCE_SEQUENCE_LENGTH = 31,
        KVARENA_RESOURCE_NUM_TOKENS = 32,
        KVARENA_RESOURCE_TOKEN_INDEX = 33,
        KVARENA_RESOURCE_BLOCK_INDEX = 34,
        KVARENA_RESOURCE_SPAN_SIZE = 35,
        KVARENA_RESOURCE_POINTER = 36,
        KVARENA_RESOURCE_CAPACITY = 37,
        KVARENA_RESOURCE_SCALE = 38,
        KVARENA_RESOURCE_WINDOW = 39,
        KVARENA_RESOURCE_SOFT_CAP = 40,
        KVARENA_RESOURCE_NUM_THREADS = 41,
        KVARENA_RESOURCE_NAME = 42,
        KVARENA_RESOURCE_DEVICE = 43,
        KVARENA_RESOURCE_ADDRESS = 44,
        KVARENA_RESOURCE_URGENCY = 45,
        KVARENA_RESOURCE_MEMORY_CHECK = 46,
        KVARENA_RESOURCE_CONTENT = 47,
        KVARENA_RESOURCE_PAGE = 48,
    }
    enum kvarena_dtype {
        KVARENA_F16 = 0,
        KVARENA_BF16 = 1,
        KVARENA_F32 = 2,
        KVARENA_FP8_E4M3 = 3,
        KVARENA_INT8 = 4,
        KVARENA_LATENT_FP8 = 5,
    }
    enum kvarena_tile_order {
        KVARENA_TILE_BEST = 0,
        KVARENA_TILE_ROWS = 1,
        KVARENA_TILE_CHUNKED = 2,
    }
    enum kvarena_block_order {
        KVARENA_BLOCK_MAJOR = 0,
        KVARENA_LAYER_MAJOR = 1,
    }
    enum kvarena_plane_kind {
        KVARENA_KEY = 0,
        KVARENA_VALUE = 1,
        KVARENA_INDEX = 2,
    }
    enum kvarena_group_kind {
        KVARENA_GROUP_FULL = 0,
        KVARENA_GROUP_WINDOW = 1,
        KVARENA_GROUP_CHUNK = 2,
        KVARENA_GROUP_STATE = 3,
        KVARENA_GROUP_CROSS = 4,
    }
    enum kvarena_state_mode {
        KVARENA_STATE_IN_PLACE = 0,
        KVARENA_STATE_READ_WRITE = 1,
    }
    enum kvarena_scrub {
        KVARENA_SCRUB_NEVER = 0,
        KVARENA_SCRUB_ON_OWNER_CHANGE = 1,
        KVARENA_SCRUB_ALWAYS = 2,
    }
    enum kvarena_urgency {
        KVARENA_URGENCY_DEFAULT = 0,
        KVARENA_GROWTH = 1,
        KVARENA_ADMISSION = 2,
    }
    enum kvarena_block_state {
        KVARENA_BLOCK_FREE = 0,
        KVARENA_BLOCK_REFERENCED = 1,
        KVARENA_BLOCK_FENCED = 2,
        KVARENA_BLOCK_EVICTABLE = 3,
        KVARENA_BLOCK_OFFLINE = 4,
        KVARENA_BLOCK_ABSENT = 5,
    }
    enum kvarena_block_content {
        KVARENA_CONTENT_UNWRITTEN = 0,
        KVARENA_CONTENT_BEING_WRITTEN = 1,
        KVARENA_CONTENT_PUBLISHED = 2,
        KVARENA_CONTENT_FAILED = 3,
    }
    enum kvarena_import_state {
        KVARENA_IMPORT_NONE = 0,
        KVARENA_IMPORT_FILLING = 1,
        KVARENA_IMPORT_FAILED = 2,
    }
    enum kvarena_eviction {
        KVARENA_TAIL_FIRST = 0,
        KVARENA_HEAD_FIRST = 1,
        KVARENA_FIFO = 2,
        KVARENA_LFU = 3,
        KVARENA_EVICT_PRIORITY = 4,
    }
    enum kvarena_duplicates {
        KVARENA_DUPLICATE = 0,
        KVARENA_SHARE_DUPLICATE = 1,
        KVARENA_WAIT = 2,
    }
    enum kvarena_prefix_stop {
        KVARENA_STOP_CAPPED = 0,
        KVARENA_STOP_LESS_THAN_BLOCK = 1,
        KVARENA_STOP_NEVER_SEEN = 2,
        KVARENA_STOP_EVICTED = 3,
        KVARENA_STOP_OTHER_SALT = 4,
        KVARENA_STOP_OTHER_EXTRA_KEY = 5,
        KVARENA_STOP_NOT_YET_PUBLISHED = 6,
        KVARENA_STOP_OTHER_GROUP = 7,
    }
    enum kvarena_prefix_removal {
        KVARENA_REMOVED_EVICTED = 0,
        KVARENA_REMOVED_WITH_PARENT = 1,
        KVARENA_REMOVED_FORGOTTEN = 2,
        KVARENA_REMOVED_ABORTED = 3,
        KVARENA_REMOVED_LOST = 4,
        KVARENA_REMOVED_OVER_CAP = 5,
    }
    enum kvarena_prefix_event_kind {
        KVARENA_PREFIX_STORED = 0,
        KVARENA_PREFIX_REMOVED = 1,
        KVARENA_PREFIX_CLEARED = 2,
    }
    enum kvarena_purpose {
        KVARENA_MODEL_WEIGHTS = 0,
        KVARENA_KV_CACHE = 1,
        KVARENA_INTERMEDIATE_BUFFERS = 2,
        KVARENA_PURPOSE_UNKNOWN = 3,
    }
    enum kvarena_memory_kind {
        KVARENA_MEMORY_DEVICE = 0,
        KVARENA_MEMORY_STAGING = 1,
    }
    enum kvarena_place {
        KVARENA_PLACE_VRAM = 0,
        KVARENA_PLACE_OTHER_DEVICE = 1,
        KVARENA_PLACE_INTEGRATED = 2,
        KVARENA_PLACE_MANAGED = 3,
        KVARENA_PLACE_PINNED_HOST = 4,
        KVARENA_PLACE_PAGEABLE_HOST = 5,
        KVARENA_PLACE_HOST_DEVICE = 6,
        KVARENA_PLACE_MIXED = 7,
    }
    enum kvarena_log_level {
        KVARENA_LOG_DEBUG = 0,
        KVARENA_LOG_INFO = 1,
        KVARENA_LOG_WARNING = 2,
        KVARENA_LOG_ERROR = 3,
        KVARENA_LOG_CRITICAL = 4,
        KVARENA_LOG_OFF = 5,
    }
    enum kvarena_operation_kind {
        KVARENA_OPERATION_REGISTER_HOLDER = 0,
        KVARENA_OPERATION_UNREGISTER_HOLDER = 1,
        KVARENA_OPERATION_RESERVE = 2,
        KVARENA_OPERATION_ALLOCATE = 3,
        KVARENA_OPERATION_RETAIN = 4,
        KVARENA_OPERATION_RELEASE = 5,
        KVARENA_OPERATION_RELEASE_AFTER = 6,
        KVARENA_OPERATION_SET_CONTENT = 7,
        KVARENA_OPERATION_QUARANTINE = 8,
        KVARENA_OPERATION_RESTORE = 9,
        KVARENA_OPERATION_OPEN_TICKET = 10,
        KVARENA_OPERATION_RETIRE = 11,
        KVARENA_OPERATION_SET_RETENTION = 12,
        KVARENA_OPERATION_ADVANCE_CLOCK = 13,
    }
}

callbacks! {
    type kvarena_log_function = fn(
        user: *mut c_void,
        level: i32,
        line: *const c_char,
        length: usize,
    );
    type kvarena_violation_function = fn(
        user: *mut c_void,
        status: *const kvarena_status,
        call: *const c_char,
        object: *const c_char,
    );
    type kvarena_operation_function = fn(user: *mut c_void, operation: *const kvarena_operation);
    type kvarena_prefix_event_function =
        fn(user: *mut c_void, event: *const kvarena_prefix_event);
    type kvarena_unhealthy_function = fn(
        user: *mut c_void,
        code: *const c_char,
        text: *const c_char,
    );
    type kvarena_pressure_function = fn(
        user: *mut c_void,
        name: *const c_char,
        from: i32,
        to: i32,
        text: *const c_char,
    );
}

plain_structs! {
    struct kvarena_status {
        code: u8,
        resource: u8,
        option: u16,
        native: i32,
        subject: u64,
        required: u64,
        available: u64,
    }
    struct kvarena_extra_key {
        key: u64,
        first_token: i64,
    }
    struct kvarena_demand {
        sequence: kvarena_sequence,
        num_tokens: i32,
        urgency: i32,
    }
    struct kvarena_prefix_histogram {
        counts: [u64; KVARENA_PREFIX_BUCKETS],
        sum: u64,
    }
    struct kvarena_ghost {
        policy: i32,
        half_pools: i32,
        hits_ppm: i64,
    }
    struct kvarena_salt_share {
        salt: u64,
        blocks: i64,
    }
    struct kvarena_holder_report {
        holder: kvarena_holder,
        number: u64,
        owner: u64,
        purpose: *const c_char,
        references: i64,
        reserved: i64,
        since_ns: i64,
        deadline_ns: i64,
    }
    struct kvarena_group_layer {
        layer: i32,
        reads_layer: i32,
    }
    struct kvarena_state_plane {
        shape: [i64; 4],
        num_dims: i32,
        dtype: i32,
    }
    struct kvarena_holder_demand {
        holder: kvarena_holder,
        count: u32,
        urgency: i32,
    }
}

sized_structs! {
    struct kvarena_host_options {
        struct_size: u64,
        capacity_bytes: u64,
        max_streams: u32,
        max_queued: u32,
        inline_calls: i32,
        reserved: i32,
    }
    struct kvarena_cuda_options {
        struct_size: u64,
        ordinal: i32,
        allow_host: i32,
        max_streams: u32,
        max_host_functions: u32,
        bounce_bytes: u64,
    }
    struct kvarena_device_info {
        struct_size: u64,
        total_bytes: u64,
        free_bytes: u64,
        tracked_bytes: u64,
        staging_bytes: u64,
        overhead_bytes: u64,
        bounce_bytes: u64,
        is_cuda: i32,
        ordinal: i32,
        compute_capability: i32,
        num_sms: i32,
        lost_to: i32,
        allows_host: i32,
    }
    struct kvarena_allocation {
        struct_size: u64,
        bytes: u64,
        alignment_bytes: u64,
        purpose: i32,
        kind: i32,
        description: *const c_char,
    }
    struct kvarena_operation {
        struct_size: u64,
        holder: u64,
        ticket: u64,
        count: i64,
        blocks: *const i32,
        num_blocks: u64,
        kind: i32,
        outcome: i32,
        flag: i32,
        reserved: i32,
        group: i32,
        left_in_call: i32,
    }
    struct kvarena_prefix_event {
        struct_size: u64,
        number: u64,
        salt: u64,
        tokens: *const i32,
        num_tokens: u64,
        extra_keys: *const kvarena_extra_key,
        num_extra_keys: u64,
        kind: i32,
        removal: i32,
        block: i32,
        parent: i32,
    }
    struct kvarena_layer_group {
        struct_size: u64,
        layers: *const kvarena_group_layer,
        limit_tokens: i64,
        num_layers: i32,
        kind: i32,
        num_kv_heads: i32,
        head_dim_k: i32,
        head_dim_v: i32,
        dtype: i32,
        has_dtype_v: i32,
        dtype_v: i32,
        value_in_key: i32,
        block_size_tokens: i32,
        rollback_tokens: i32,
        num_planes: i32,
        planes: *const kvarena_state_plane,
        state_mode: i32,
        loses_on_abort: i32,
        has_token_scales: i32,
        index_dim: i32,
    }
    struct kvarena_cache_options {
        struct_size: u64,
        num_layers: i32,
        num_kv_heads: i32,
        head_dim_k: i32,
        head_dim_v: i32,
        dtype: i32,
        block_size_tokens: i32,
        tile_order: i32,
        block_order: i32,
        num_blocks: i64,
        budget_bytes: i64,
        all_free_but_bytes: i64,
        num_q_heads: i32,
        max_sequences: i32,
        max_sequence_tokens: i64,
        max_step_tokens: i64,
        max_batch_blocks: i64,
        watermark_blocks: i64,
        max_fence_entries: i64,
        max_table_pages: i64,
        audit_blocks_per_step: i64,
        batch_invariant_tokens: i64,
        max_batch_rows: i32,
        window_tokens: i32,
        steps_in_flight: i32,
        max_open_tickets: i32,
        num_threads: i32,
        max_decode_tokens: i32,
        max_shared_rows: i32,
        scrub: i32,
        draft_trees: i32,
        max_pins: i32,
        eager_retire: i32,
        reserved: i32,
        stream: *mut c_void,
        name: *const c_char,
        log: kvarena_operation_function,
        log_user: *mut c_void,
        groups: *const kvarena_layer_group,
        num_groups: i64,
        page_sequence_tokens: i64,
        checkpoint_every_tokens: i64,
        prefix_cache: i32,
        prefix_duplicates: i32,
        prefix_extra_keys: i32,
        eviction: i32,
        prefix_history: i64,
        prefix_key_low: u64,
        prefix_key_high: u64,
        prefix_accounts: i32,
        prefix_ghost_blocks: i32,
        prefix_events: kvarena_prefix_event_function,
        prefix_events_user: *mut c_void,
        prefix_share_parts: i32,
        prefix_reserved: i32,
    }
    struct kvarena_footprint {
        struct_size: u64,
        num_blocks: i64,
        pool_bytes: i64,
        workspace_bytes: i64,
        table_bytes: i64,
        staging_bytes: i64,
        device_bytes: i64,
        host_bytes: i64,
        device_allocations: i32,
        staging_allocations: i32,
    }
    struct kvarena_target {
        struct_size: u64,
        bounce_bytes: i64,
        is_cuda: i32,
        num_sms: i32,
        num_threads: i32,
        reserved: i32,
    }
    struct kvarena_sequence_options {
        struct_size: u64,
        max_length_tokens: i64,
        since_ns: i64,
        deadline_ns: i64,
        owner: u64,
        cross_tokens: i32,
        reserved: i32,
        tokens: *const i32,
        num_tokens: u64,
        salt: u64,
        extra_keys: *const kvarena_extra_key,
        num_extra_keys: u64,
    }
    struct kvarena_prefix {
        struct_size: u64,
        tokens: i64,
        blocks: i64,
        removal_serial: u64,
        pending_block: i32,
        stop: i32,
        removal: i32,
        reserved: i32,
        registered_tokens: i64,
        part_tokens: i64,
        removal_by: kvarena_sequence,
        removal_time: i64,
    }
    struct kvarena_prefix_stats {
        struct_size: u64,
        registered: i64,
        published: i64,
        registrations: u64,
        removals: u64,
        queries: u64,
        query_tokens: u64,
        hits: u64,
        hit_blocks: u64,
        hit_tokens: u64,
        duplicates: u64,
        shared: u64,
        broken_chains: u64,
        stops: [u64; 16],
        removals_by: [u64; 16],
    }
    struct kvarena_prefix_use {
        struct_size: u64,
        lifetime: kvarena_prefix_histogram,
        idle: kvarena_prefix_histogram,
        reuse_gap: kvarena_prefix_histogram,
        ghost_sampled_ppm: i64,
        ghost_references: u64,
        num_ghosts: i64,
        ghosts: [kvarena_ghost; KVARENA_MAX_GHOSTS],
    }
    struct kvarena_salt_limits {
        struct_size: u64,
        floor_blocks: i64,
        cap_blocks: i64,
    }
    struct kvarena_salt_info {
        struct_size: u64,
        registered: i64,
        kept: i64,
        sequences: i64,
        floor_blocks: i64,
        cap_blocks: i64,
    }
    struct kvarena_sequence_info {
        struct_size: u64,
        length_tokens: i64,
        num_blocks: i64,
        max_length_tokens: i64,
        waste_tokens: i64,
        since_ns: i64,
        deadline_ns: i64,
        owner: u64,
        holder: kvarena_holder,
        import_state: i32,
        reserved: i32,
        known_tokens: i64,
        registered_blocks: i64,
        published_blocks: i64,
    }
    struct kvarena_group_blocks {
        struct_size: u64,
        first_block: i64,
        blocks: *const i32,
        generations: *const u32,
        num_blocks: u64,
    }
    struct kvarena_pin_options {
        struct_size: u64,
        first_block: i64,
        num_blocks: i64,
        owner: u64,
        purpose: *const c_char,
        since_ns: i64,
        deadline_ns: i64,
    }
    struct kvarena_step_options {
        struct_size: u64,
        stream: *mut c_void,
    }
    struct kvarena_batch {
        struct_size: u64,
        slots: *const i64,
        device_slots: *const i64,
        num_tokens: i64,
        num_copies: i64,
        new_blocks: i64,
    }
    struct kvarena_device_batch {
        struct_size: u64,
        block_tables: *const i32,
        table_stride: i64,
        row_slots: *const i32,
        row_offsets: *const i64,
        lengths: *const i32,
        num_blocks: *const i32,
        q_offsets: *const i64,
        slots: *const i64,
        num_tokens: i64,
        num_rows: i32,
        max_length_tokens: i32,
        max_new_tokens: i32,
        num_table_slots: i32,
    }
    struct kvarena_recorded_step {
        struct_size: u64,
        num_rows: i32,
        tokens_per_row: i32,
        shares_prefixes: i32,
        row_tokens: i32,
    }
    struct kvarena_write_args {
        struct_size: u64,
        key: *const c_void,
        value: *const c_void,
        key_token_stride_bytes: i64,
        value_token_stride_bytes: i64,
        layer: i32,
        dtype: i32,
        key_scale: *const f32,
        value_scale: *const f32,
        scale_per_head: i32,
        reserved: i32,
    }
    struct kvarena_state_slots {
        struct_size: u64,
        read: *const i32,
        write: *const i32,
        extra_offsets: *const i32,
        extra_tokens: *const i32,
        extra_slots: *const i32,
        num_rows: i32,
        num_extras: i32,
        num_parts: i32,
        part: i32,
        device_read: *const i32,
        device_write: *const i32,
        device_extra_offsets: *const i32,
        device_extra_tokens: *const i32,
        device_extra_slots: *const i32,
        max_extras: i32,
        reserved: i32,
    }
    struct kvarena_state_view {
        struct_size: u64,
        base: *mut c_void,
        slot_stride_bytes: i64,
        num_slots: i64,
        index: i32,
        part: i32,
        num_planes: i32,
        reserved: i32,
        offsets: [i64; 8],
        planes: [kvarena_state_plane; 8],
    }
    struct kvarena_write_cross_args {
        struct_size: u64,
        sequence: kvarena_sequence,
        key: *const c_void,
        value: *const c_void,
        key_token_stride_bytes: i64,
        value_token_stride_bytes: i64,
        layer: i32,
        dtype: i32,
        key_scale: *const f32,
        value_scale: *const f32,
        scale_per_head: i32,
        reserved: i32,
    }
    struct kvarena_write_index_args {
        struct_size: u64,
        key: *const c_void,
        key_token_stride_bytes: i64,
        layer: i32,
        dtype: i32,
    }
    struct kvarena_attend_args {
        struct_size: u64,
        q: *const c_void,
        out: *mut c_void,
        q_token_stride_bytes: i64,
        out_token_stride_bytes: i64,
        lse: *mut f32,
        sinks: *const f32,
        tree_mask: *const u64,
        layer: i32,
        q_dtype: i32,
        out_dtype: i32,
        windowed: i32,
        scale: f32,
        soft_cap: f32,
        key_scale: *const f32,
        value_scale: *const f32,
        scale_per_head: i32,
        kv_is_written: i32,
    }
    struct kvarena_stats {
        struct_size: u64,
        num_blocks: i64,
        free_blocks: i64,
        referenced: i64,
        fenced: i64,
        evictable: i64,
        offline: i64,
        reserved_blocks: i64,
        watermark: i64,
        holders: i64,
        references: i64,
        fence_entries: i64,
        peak_allocated: i64,
        holders_ever: u64,
        allocations: u64,
        releases: u64,
        evictions: u64,
        exhaustions: u64,
        sequences: i64,
        tokens: i64,
        entries: i64,
        waste_tokens: i64,
        pages_used: i64,
        pages_total: i64,
        sequences_ever: u64,
        copies_on_write: u64,
        pins: i64,
        pinned_entries: i64,
        open_tickets: i64,
        oldest_ticket: kvarena_ticket,
        step: u64,
        published_ns: i64,
        steps_lost: u64,
        missed_launches: u64,
        awaited_tickets: i64,
        audit_blocks: u64,
        audit_passes: u64,
        audit_failure: kvarena_status,
    }
    struct kvarena_explanation {
        struct_size: u64,
        requested: i64,
        usable: i64,
        promised: i64,
        missing: i64,
        num_blocks: i64,
        free_blocks: i64,
        referenced: i64,
        fenced: i64,
        evictable: i64,
        offline: i64,
        reserved_blocks: i64,
        watermark: i64,
        fenced_returning: i64,
        oldest_open_ticket: kvarena_ticket,
        urgency: i32,
        fits: i32,
        num_largest: i64,
        largest: [kvarena_holder_report; KVARENA_MAX_LARGEST],
        returning: [i64; KVARENA_MAX_LARGEST],
        num_salts: i64,
        evictable_salts: [kvarena_salt_share; KVARENA_MAX_SALTS],
        evictable_of_others: i64,
    }
    struct kvarena_block_info {
        struct_size: u64,
        generation: u32,
        reference_count: u32,
        claims: u32,
        state: i32,
        content: i32,
        reserved: i32,
        priority: i64,
        expires_at: i64,
    }
    struct kvarena_page_stats {
        struct_size: u64,
        page_bytes: i64,
        num_pages: i64,
        free: i64,
        of_groups: i64,
        offline: i64,
        evictable: i64,
        reserved: i64,
        watermark: i64,
        peak_used: i64,
        turned: u64,
    }
    struct kvarena_part_stats {
        struct_size: u64,
        group: i32,
        block_size_tokens: i32,
        block_bytes: i64,
        blocks_per_page: i64,
        pages: i64,
        free: i64,
        referenced: i64,
        fenced: i64,
        evictable: i64,
        offline: i64,
        stranded: i64,
    }
    struct kvarena_plane {
        struct_size: u64,
        base: *mut c_void,
        block_stride_bytes: i64,
        head_stride_bytes: i64,
        token_stride_bytes: i64,
        num_blocks: i64,
        num_heads: i32,
        head_dim: i32,
        block_size: i32,
        dtype: i32,
        tile_order: i32,
        reserved: i32,
        scales_offset_bytes: i64,
    }
    struct kvarena_pool_plan {
        struct_size: u64,
        num_blocks: i64,
        pool_bytes: i64,
        slack_bytes: i64,
        block_bytes: i64,
        bytes_per_token: i64,
    }
    struct kvarena_pool_options {
        struct_size: u64,
        num_blocks: i64,
        watermark_blocks: i64,
        max_fence_entries: i64,
        max_holders: i32,
        max_open_tickets: i32,
        name: *const c_char,
        log: kvarena_operation_function,
        log_user: *mut c_void,
        eviction: i32,
        reserved: i32,
        prefix_cache: i32,
        block_size_tokens: i32,
        prefix_duplicates: i32,
        prefix_extra_keys: i32,
        prefix_history: i64,
        prefix_key_low: u64,
        prefix_key_high: u64,
        prefix_ghost_blocks: i64,
        prefix_events: kvarena_prefix_event_function,
        prefix_events_user: *mut c_void,
    }
    struct kvarena_prefix_position {
        struct_size: u64,
        blocks: i32,
        reserved: i32,
        state: [u64; 8],
    }
    struct kvarena_holder_options {
        struct_size: u64,
        number: u64,
        owner: u64,
        purpose: *const c_char,
        since_ns: i64,
        deadline_ns: i64,
    }
    struct kvarena_kernels_options {
        struct_size: u64,
        num_kv_heads: i32,
        head_dim_k: i32,
        head_dim_v: i32,
        dtype: i32,
        block_size_tokens: i32,
        tile_order: i32,
        num_q_heads: i32,
        max_rows: i32,
        max_q_tokens: i64,
        num_blocks: i64,
        batch_invariant_tokens: i64,
        max_decode_tokens: i32,
        max_shared_rows: i32,
        window_tokens: i32,
        draft_trees: i32,
        num_threads: i32,
        value_in_key: i32,
    }
    struct kvarena_tables {
        struct_size: u64,
        tables: *const i32,
        table_stride: i64,
        row_offsets: *const i64,
        row_slots: *const i32,
        lengths: *const i32,
        q_offsets: *const i64,
        query_tokens: *const i32,
        total_q: i64,
        num_rows: i32,
        shares_prefixes: i32,
        host_lengths: *const i32,
    }
    struct kvarena_monitor_options {
        struct_size: u64,
        period_ns: i64,
        pressure_period_ns: i64,
        check_limit_ns: i64,
        ticket_limit_ns: i64,
        holder_grace_ns: i64,
        step_limit_ns: i64,
        drift_warning_bytes: i64,
        drift_limit_bytes: i64,
        blocks_elevated: f64,
        blocks_critical: f64,
        vram_elevated: f64,
        vram_critical: f64,
        vram_exhausted: f64,
        hysteresis: f64,
        ignore_vram: i32,
        no_thread: i32,
        serve_http: i32,
        http_port: i32,
        http_address: *const c_char,
        http_token: *const c_char,
        http_max_connections: i32,
        http_request_limit_ms: i32,
        http_max_request_bytes: u64,
        on_unhealthy: kvarena_unhealthy_function,
        on_pressure: kvarena_pressure_function,
        user: *mut c_void,
    }
}

functions! {
    fn kvarena_version() -> *const c_char;
    fn kvarena_abi() -> u32;
    fn kvarena_has_cuda() -> bool;
    fn kvarena_now_ns() -> i64;
    fn kvarena_name_of_code(code: u8) -> *const c_char;
    fn kvarena_name_of_resource(resource: u8) -> *const c_char;
    fn kvarena_name_of_option(option: u16) -> *const c_char;
    fn kvarena_describe(status: *const kvarena_status, out: *mut c_char, size: usize) -> usize;
    fn kvarena_set_log(
        function: kvarena_log_function,
        user: *mut c_void,
        minimum_level: i32,
    ) -> kvarena_status;
    fn kvarena_set_violation(function: kvarena_violation_function, user: *mut c_void);
    fn kvarena_device_open_host(
        options: *const kvarena_host_options,
        device: *mut *mut kvarena_device,
    ) -> kvarena_status;
    fn kvarena_device_open_cuda(
        options: *const kvarena_cuda_options,
        device: *mut *mut kvarena_device,
    ) -> kvarena_status;
    fn kvarena_device_release(device: *mut kvarena_device) -> kvarena_status;
    fn kvarena_device_ask(
        device: *mut kvarena_device,
        info: *mut kvarena_device_info,
    ) -> kvarena_status;
    fn kvarena_device_name(
        device: *mut kvarena_device,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_device_json(
        device: *mut kvarena_device,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_device_report(
        device: *mut kvarena_device,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_device_describe(
        device: *mut kvarena_device,
        status: *const kvarena_status,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_devices_json(
        with_memory: i32,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_memory_allocate(
        device: *mut kvarena_device,
        request: *const kvarena_allocation,
        memory: *mut *mut c_void,
    ) -> kvarena_status;
    fn kvarena_memory_free(device: *mut kvarena_device, memory: *mut c_void) -> kvarena_status;
    fn kvarena_memory_register(
        device: *mut kvarena_device,
        memory: *mut c_void,
        request: *const kvarena_allocation,
        defer: i32,
    ) -> kvarena_status;
    fn kvarena_memory_unregister(
        device: *mut kvarena_device,
        memory: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_memory_report(
        device: *mut kvarena_device,
        name: *const c_char,
        purpose: i32,
        bytes: u64,
    ) -> kvarena_status;
    fn kvarena_memory_place(
        device: *mut kvarena_device,
        memory: *const c_void,
        bytes: u64,
        place: *mut i32,
        ordinal: *mut i32,
    ) -> kvarena_status;
    fn kvarena_memory_verify(
        device: *mut kvarena_device,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_memory_copy(
        device: *mut kvarena_device,
        target: *mut c_void,
        source: *const c_void,
        bytes: u64,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_memory_fill(
        device: *mut kvarena_device,
        target: *mut c_void,
        value: u8,
        bytes: u64,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_stream_create(
        device: *mut kvarena_device,
        stream: *mut *mut c_void,
    ) -> kvarena_status;
    fn kvarena_stream_destroy(device: *mut kvarena_device, stream: *mut c_void) -> kvarena_status;
    fn kvarena_stream_synchronize(
        device: *mut kvarena_device,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_cache_create(
        device: *mut kvarena_device,
        options: *const kvarena_cache_options,
        cache: *mut *mut kvarena_cache,
    ) -> kvarena_status;
    fn kvarena_cache_release(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_cache_footprint(
        options: *const kvarena_cache_options,
        target: *const kvarena_target,
        free_bytes: i64,
        footprint: *mut kvarena_footprint,
    ) -> kvarena_status;
    fn kvarena_cache_fit(
        options: *const kvarena_cache_options,
        target: *const kvarena_target,
        budget_bytes: i64,
        footprint: *mut kvarena_footprint,
    ) -> kvarena_status;
    fn kvarena_device_target(
        device: *mut kvarena_device,
        target: *mut kvarena_target,
    ) -> kvarena_status;
    fn kvarena_cache_describe(
        cache: *mut kvarena_cache,
        status: *const kvarena_status,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_sequence_create(
        cache: *mut kvarena_cache,
        options: *const kvarena_sequence_options,
        sequence: *mut kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_fork(
        cache: *mut kvarena_cache,
        parent: kvarena_sequence,
        length_tokens: i64,
        options: *const kvarena_sequence_options,
        sequence: *mut kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_create_from(
        cache: *mut kvarena_cache,
        length_tokens: i64,
        parts: *const kvarena_group_blocks,
        num_parts: usize,
        options: *const kvarena_sequence_options,
        sequence: *mut kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_restorable_length(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        length_tokens: i64,
        restorable: *mut i64,
    ) -> kvarena_status;
    fn kvarena_sequence_group_blocks(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        part: i32,
        blocks: *mut i32,
        room: usize,
        count: *mut usize,
        first_block: *mut i64,
    ) -> kvarena_status;
    fn kvarena_step_group_batch(
        cache: *mut kvarena_cache,
        part: i32,
        batch: *mut kvarena_device_batch,
    ) -> kvarena_status;
    fn kvarena_sequence_checkpoint(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_checkpoints(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        lengths: *mut i64,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_sequence_state_blocks(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        length_tokens: i64,
        part: i32,
        blocks: *mut i32,
        generations: *mut u32,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_step_states(
        cache: *mut kvarena_cache,
        index: i32,
        slots: *mut kvarena_state_slots,
    ) -> kvarena_status;
    fn kvarena_cache_state_view(
        cache: *mut kvarena_cache,
        layer: i32,
        view: *mut kvarena_state_view,
    ) -> kvarena_status;
    fn kvarena_step_write_index(
        cache: *mut kvarena_cache,
        args: *const kvarena_write_index_args,
    ) -> kvarena_status;
    fn kvarena_step_write_cross(
        cache: *mut kvarena_cache,
        args: *const kvarena_write_cross_args,
    ) -> kvarena_status;
    fn kvarena_cache_pages(
        cache: *mut kvarena_cache,
        stats: *mut kvarena_page_stats,
    ) -> kvarena_status;
    fn kvarena_cache_num_parts(
        cache: *mut kvarena_cache,
        num_parts: *mut i32,
    ) -> kvarena_status;
    fn kvarena_cache_part(
        cache: *mut kvarena_cache,
        part: i32,
        stats: *mut kvarena_part_stats,
    ) -> kvarena_status;
    fn kvarena_sequence_import(
        cache: *mut kvarena_cache,
        num_tokens: i64,
        options: *const kvarena_sequence_options,
        urgency: i32,
        sequence: *mut kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_publish_import(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_fail_import(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_truncate(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        length_tokens: i64,
        ticket: kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_sequence_destroy(
        cache: *mut kvarena_cache,
        sequences: *const kvarena_sequence,
        count: usize,
        ticket: kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_sequence_reserve(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        capacity_tokens: i64,
        urgency: i32,
    ) -> kvarena_status;
    fn kvarena_sequence_promise(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        capacity_tokens: i64,
    ) -> kvarena_status;
    fn kvarena_sequence_set_deadline(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        deadline_ns: i64,
    ) -> kvarena_status;
    fn kvarena_sequence_ask(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        info: *mut kvarena_sequence_info,
    ) -> kvarena_status;
    fn kvarena_sequence_blocks(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        blocks: *mut i32,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_sequence_slot(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        index: i64,
        slot: *mut i64,
    ) -> kvarena_status;
    fn kvarena_sequence_tables(
        cache: *mut kvarena_cache,
        sequences: *const kvarena_sequence,
        count: usize,
        tables: *mut i32,
        row_stride: usize,
        lengths: *mut i32,
    ) -> kvarena_status;
    fn kvarena_sequence_list(
        cache: *mut kvarena_cache,
        sequences: *mut kvarena_sequence,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pin_create(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        options: *const kvarena_pin_options,
        pin: *mut kvarena_holder,
    ) -> kvarena_status;
    fn kvarena_pin_blocks(
        cache: *mut kvarena_cache,
        pin: kvarena_holder,
        blocks: *mut i32,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pin_release(
        cache: *mut kvarena_cache,
        pin: kvarena_holder,
        ticket: kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_step_begin(
        cache: *mut kvarena_cache,
        options: *const kvarena_step_options,
    ) -> kvarena_status;
    fn kvarena_step_append(
        cache: *mut kvarena_cache,
        demands: *const kvarena_demand,
        count: usize,
        urgency: i32,
        batch: *mut kvarena_batch,
    ) -> kvarena_status;
    fn kvarena_step_append_tokens(
        cache: *mut kvarena_cache,
        shape: *const kvarena_recorded_step,
        demands: *const kvarena_demand,
        count: usize,
        tokens: *const i32,
        num_tokens: usize,
        urgency: i32,
        batch: *mut kvarena_batch,
    ) -> kvarena_status;
    fn kvarena_name_of_prefix_stop(stop: i32) -> *const c_char;
    fn kvarena_name_of_prefix_removal(removal: i32) -> *const c_char;
    fn kvarena_name_of_prefix_event(kind: i32) -> *const c_char;
    fn kvarena_prefix_match(
        cache: *mut kvarena_cache,
        prompt: *const kvarena_sequence_options,
        prefix: *mut kvarena_prefix,
    ) -> kvarena_status;
    fn kvarena_sequence_prefix(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        prefix: *mut kvarena_prefix,
    ) -> kvarena_status;
    fn kvarena_sequence_adopt(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        tokens: *const i32,
        count: usize,
        prefix: *mut kvarena_prefix,
    ) -> kvarena_status;
    fn kvarena_sequence_register(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        tokens: *const i32,
        count: usize,
    ) -> kvarena_status;
    fn kvarena_sequence_forget(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
    ) -> kvarena_status;
    fn kvarena_sequence_set_retention(
        cache: *mut kvarena_cache,
        sequence: kvarena_sequence,
        first_token: i64,
        num_tokens: i64,
        priority: i32,
        expires_at: i64,
        blocks: *mut i64,
    ) -> kvarena_status;
    fn kvarena_prefix_advance_clock(cache: *mut kvarena_cache, now: i64) -> kvarena_status;
    fn kvarena_prefix_forget_salt(cache: *mut kvarena_cache, salt: u64) -> kvarena_status;
    fn kvarena_prefix_forget_all(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_prefix_ask(
        cache: *mut kvarena_cache,
        stats: *mut kvarena_prefix_stats,
    ) -> kvarena_status;
    fn kvarena_prefix_ask_use(
        cache: *mut kvarena_cache,
        usage: *mut kvarena_prefix_use,
    ) -> kvarena_status;
    fn kvarena_prefix_snapshot(
        cache: *mut kvarena_cache,
        stats: *mut kvarena_prefix_stats,
        usage: *mut kvarena_prefix_use,
    ) -> kvarena_status;
    fn kvarena_salt_set_limits(
        cache: *mut kvarena_cache,
        salt: u64,
        limits: *const kvarena_salt_limits,
    ) -> kvarena_status;
    fn kvarena_salt_ask(
        cache: *mut kvarena_cache,
        salt: u64,
        info: *mut kvarena_salt_info,
    ) -> kvarena_status;
    fn kvarena_salt_close(cache: *mut kvarena_cache, salt: u64) -> kvarena_status;
    fn kvarena_step_failed_demand(cache: *mut kvarena_cache, index: *mut i64) -> kvarena_status;
    fn kvarena_step_device_batch(
        cache: *mut kvarena_cache,
        batch: *mut kvarena_device_batch,
    ) -> kvarena_status;
    fn kvarena_step_write(
        cache: *mut kvarena_cache,
        args: *const kvarena_write_args,
    ) -> kvarena_status;
    fn kvarena_step_attend(
        cache: *mut kvarena_cache,
        args: *const kvarena_attend_args,
    ) -> kvarena_status;
    fn kvarena_step_end(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_step_abort(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_recording_begin(
        cache: *mut kvarena_cache,
        shape: *const kvarena_recorded_step,
        options: *const kvarena_step_options,
        batch: *mut kvarena_batch,
    ) -> kvarena_status;
    fn kvarena_recording_end(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_step_append_recorded(
        cache: *mut kvarena_cache,
        shape: *const kvarena_recorded_step,
        demands: *const kvarena_demand,
        count: usize,
        urgency: i32,
        batch: *mut kvarena_batch,
    ) -> kvarena_status;
    fn kvarena_cache_publish(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_cache_synchronize(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_cache_stream(cache: *mut kvarena_cache, stream: *mut *mut c_void) -> kvarena_status;
    fn kvarena_ticket_fence(
        cache: *mut kvarena_cache,
        stream: *mut c_void,
        ticket: *mut kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_ticket_open(
        cache: *mut kvarena_cache,
        stream: *mut c_void,
        ticket: *mut kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_ticket_retire(cache: *mut kvarena_cache, ticket: kvarena_ticket) -> kvarena_status;
    fn kvarena_cache_stats(cache: *mut kvarena_cache, stats: *mut kvarena_stats) -> kvarena_status;
    fn kvarena_cache_snapshot(
        cache: *mut kvarena_cache,
        stats: *mut kvarena_stats,
    ) -> kvarena_status;
    fn kvarena_cache_request_details(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_cache_details_json(
        cache: *mut kvarena_cache,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_cache_has_pending_work(
        cache: *mut kvarena_cache,
        pending: *mut bool,
    ) -> kvarena_status;
    fn kvarena_cache_stats_json(
        cache: *mut kvarena_cache,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_cache_can_allocate(
        cache: *mut kvarena_cache,
        blocks: i64,
        urgency: i32,
        can: *mut bool,
    ) -> kvarena_status;
    fn kvarena_cache_available(
        cache: *mut kvarena_cache,
        ticket: kvarena_ticket,
        now: *mut i64,
        after: *mut i64,
    ) -> kvarena_status;
    fn kvarena_cache_explain(
        cache: *mut kvarena_cache,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        explanation: *mut kvarena_explanation,
    ) -> kvarena_status;
    fn kvarena_cache_explain_json(
        cache: *mut kvarena_cache,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_cache_explain_text(
        cache: *mut kvarena_cache,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_cache_holders(
        cache: *mut kvarena_cache,
        reports: *mut kvarena_holder_report,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_cache_block(
        cache: *mut kvarena_cache,
        block: i32,
        info: *mut kvarena_block_info,
    ) -> kvarena_status;
    fn kvarena_cache_plane(
        cache: *mut kvarena_cache,
        layer: i32,
        kind: i32,
        plane: *mut kvarena_plane,
    ) -> kvarena_status;
    fn kvarena_cache_ask(
        cache: *mut kvarena_cache,
        options: *mut kvarena_cache_options,
    ) -> kvarena_status;
    fn kvarena_cache_check(cache: *mut kvarena_cache) -> kvarena_status;
    fn kvarena_layout_plan(
        options: *const kvarena_cache_options,
        free_bytes: i64,
        plan: *mut kvarena_pool_plan,
    ) -> kvarena_status;
    fn kvarena_layout_plane(
        options: *const kvarena_cache_options,
        base: *mut c_void,
        num_blocks: i64,
        layer: i32,
        kind: i32,
        plane: *mut kvarena_plane,
    ) -> kvarena_status;
    fn kvarena_pool_create(
        options: *const kvarena_pool_options,
        pool: *mut *mut kvarena_pool,
    ) -> kvarena_status;
    fn kvarena_pool_release(pool: *mut kvarena_pool) -> kvarena_status;
    fn kvarena_pool_open_holder(
        pool: *mut kvarena_pool,
        options: *const kvarena_holder_options,
        holder: *mut kvarena_holder,
    ) -> kvarena_status;
    fn kvarena_pool_close_holder(pool: *mut kvarena_pool, holder: kvarena_holder) -> kvarena_status;
    fn kvarena_pool_set_deadline(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        deadline_ns: i64,
    ) -> kvarena_status;
    fn kvarena_pool_holder(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        report: *mut kvarena_holder_report,
    ) -> kvarena_status;
    fn kvarena_pool_holders(
        pool: *mut kvarena_pool,
        reports: *mut kvarena_holder_report,
        room: usize,
        count: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_reserve(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        blocks: i64,
        urgency: i32,
    ) -> kvarena_status;
    fn kvarena_pool_allocate(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        count: usize,
        urgency: i32,
        blocks: *mut i32,
        generations: *mut u32,
        evicted: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_allocate_each(
        pool: *mut kvarena_pool,
        demands: *const kvarena_holder_demand,
        num_demands: usize,
        urgency: i32,
        blocks: *mut i32,
        generations: *mut u32,
        room: usize,
        evicted: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_retain(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        blocks: *const i32,
        generations: *const u32,
        count: usize,
    ) -> kvarena_status;
    fn kvarena_pool_free(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        blocks: *const i32,
        generations: *const u32,
        count: usize,
        ticket: kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_pool_set_content(
        pool: *mut kvarena_pool,
        block: i32,
        generation: u32,
        content: i32,
    ) -> kvarena_status;
    fn kvarena_pool_set_retention(
        pool: *mut kvarena_pool,
        block: i32,
        generation: u32,
        priority: i32,
        expires_at: i64,
    ) -> kvarena_status;
    fn kvarena_pool_advance_clock(pool: *mut kvarena_pool, now: i64) -> kvarena_status;
    fn kvarena_pool_quarantine(
        pool: *mut kvarena_pool,
        block: i32,
        offline: *mut bool,
    ) -> kvarena_status;
    fn kvarena_pool_restore(pool: *mut kvarena_pool, block: i32) -> kvarena_status;
    fn kvarena_pool_open_ticket(
        pool: *mut kvarena_pool,
        ticket: *mut kvarena_ticket,
    ) -> kvarena_status;
    fn kvarena_pool_retire(pool: *mut kvarena_pool, ticket: kvarena_ticket) -> kvarena_status;
    fn kvarena_pool_is_open(
        pool: *mut kvarena_pool,
        ticket: kvarena_ticket,
        is_open: *mut bool,
    ) -> kvarena_status;
    fn kvarena_pool_block(
        pool: *mut kvarena_pool,
        block: i32,
        info: *mut kvarena_block_info,
    ) -> kvarena_status;
    fn kvarena_pool_stats(pool: *mut kvarena_pool, stats: *mut kvarena_stats) -> kvarena_status;
    fn kvarena_pool_can_allocate(
        pool: *mut kvarena_pool,
        blocks: i64,
        urgency: i32,
        can: *mut bool,
    ) -> kvarena_status;
    fn kvarena_pool_available(
        pool: *mut kvarena_pool,
        ticket: kvarena_ticket,
        now: *mut i64,
        after: *mut i64,
    ) -> kvarena_status;
    fn kvarena_pool_explain(
        pool: *mut kvarena_pool,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        explanation: *mut kvarena_explanation,
    ) -> kvarena_status;
    fn kvarena_pool_explain_json(
        pool: *mut kvarena_pool,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_explain_text(
        pool: *mut kvarena_pool,
        refused: *const kvarena_status,
        blocks: i64,
        urgency: i32,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_check(pool: *mut kvarena_pool) -> kvarena_status;
    fn kvarena_pool_begin_prefix(
        pool: *mut kvarena_pool,
        salt: u64,
        position: *mut kvarena_prefix_position,
    ) -> kvarena_status;
    fn kvarena_pool_match(
        pool: *mut kvarena_pool,
        prompt: *const kvarena_sequence_options,
        blocks: *mut i32,
        generations: *mut u32,
        room: usize,
        prefix: *mut kvarena_prefix,
    ) -> kvarena_status;
    fn kvarena_pool_adopt(
        pool: *mut kvarena_pool,
        holder: kvarena_holder,
        prompt: *const kvarena_sequence_options,
        blocks: *mut i32,
        generations: *mut u32,
        room: usize,
        prefix: *mut kvarena_prefix,
        position: *mut kvarena_prefix_position,
    ) -> kvarena_status;
    fn kvarena_pool_register(
        pool: *mut kvarena_pool,
        position: *mut kvarena_prefix_position,
        prompt: *const kvarena_sequence_options,
        blocks: *const i32,
        generations: *const u32,
        count: usize,
        registered: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_publish(
        pool: *mut kvarena_pool,
        blocks: *const i32,
        generations: *const u32,
        count: usize,
        published: *mut usize,
    ) -> kvarena_status;
    fn kvarena_pool_forget(
        pool: *mut kvarena_pool,
        blocks: *const i32,
        count: usize,
    ) -> kvarena_status;
    fn kvarena_pool_forget_salt(pool: *mut kvarena_pool, salt: u64) -> kvarena_status;
    fn kvarena_pool_forget_all(pool: *mut kvarena_pool) -> kvarena_status;
    fn kvarena_pool_ask_prefix(
        pool: *mut kvarena_pool,
        stats: *mut kvarena_prefix_stats,
        use_: *mut kvarena_prefix_use,
    ) -> kvarena_status;
    fn kvarena_kernels_create(
        device: *mut kvarena_device,
        options: *const kvarena_kernels_options,
        kernels: *mut *mut kvarena_kernels,
    ) -> kvarena_status;
    fn kvarena_kernels_release(kernels: *mut kvarena_kernels) -> kvarena_status;
    fn kvarena_kernels_workspace_bytes(
        kernels: *mut kvarena_kernels,
        bytes: *mut i64,
    ) -> kvarena_status;
    fn kvarena_kernels_schedule(
        kernels: *mut kvarena_kernels,
        tables: *const kvarena_tables,
        windowed: i32,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_kernels_write(
        kernels: *mut kvarena_kernels,
        key: *const kvarena_plane,
        value: *const kvarena_plane,
        slots: *const i64,
        num_tokens: i64,
        args: *const kvarena_write_args,
        overlap: i32,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_kernels_attend(
        kernels: *mut kvarena_kernels,
        key: *const kvarena_plane,
        value: *const kvarena_plane,
        args: *const kvarena_attend_args,
        overlap: i32,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_kernels_check_tables(
        kernels: *mut kvarena_kernels,
        windowed: i32,
        stream: *mut c_void,
    ) -> kvarena_status;
    fn kvarena_kernels_describe(
        status: *const kvarena_status,
        out: *mut c_char,
        size: usize,
    ) -> usize;
    fn kvarena_plan_json(
        request: *const c_char,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_presets_json(out: *mut c_char, size: usize, length: *mut usize) -> kvarena_status;
    fn kvarena_monitor_start(
        options: *const kvarena_monitor_options,
        monitor: *mut *mut kvarena_monitor,
    ) -> kvarena_status;
    fn kvarena_monitor_release(monitor: *mut kvarena_monitor) -> kvarena_status;
    fn kvarena_monitor_watch_device(
        monitor: *mut kvarena_monitor,
        device: *mut kvarena_device,
    ) -> kvarena_status;
    fn kvarena_monitor_unwatch_device(
        monitor: *mut kvarena_monitor,
        device: *mut kvarena_device,
    ) -> kvarena_status;
    fn kvarena_monitor_watch(
        monitor: *mut kvarena_monitor,
        cache: *mut kvarena_cache,
        name: *const c_char,
    ) -> kvarena_status;
    fn kvarena_monitor_unwatch(
        monitor: *mut kvarena_monitor,
        name: *const c_char,
    ) -> kvarena_status;
    fn kvarena_monitor_report_engine(
        monitor: *mut kvarena_monitor,
        name: *const c_char,
        waiting_requests: i64,
        new_preemptions: i64,
    ) -> kvarena_status;
    fn kvarena_monitor_check(monitor: *mut kvarena_monitor, healthy: *mut bool) -> kvarena_status;
    fn kvarena_monitor_is_healthy(
        monitor: *mut kvarena_monitor,
        healthy: *mut bool,
    ) -> kvarena_status;
    fn kvarena_monitor_acknowledge(monitor: *mut kvarena_monitor) -> kvarena_status;
    fn kvarena_monitor_port(monitor: *mut kvarena_monitor, port: *mut i32) -> kvarena_status;
    fn kvarena_monitor_health_json(
        monitor: *mut kvarena_monitor,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_monitor_stats_json(
        monitor: *mut kvarena_monitor,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
    fn kvarena_monitor_metrics(
        monitor: *mut kvarena_monitor,
        out: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> kvarena_status;
}
