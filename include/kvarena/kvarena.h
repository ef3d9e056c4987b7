#pragma once

/// @file
/// The C interface of kvarena: C11 and C++20, without a C++ type and without a CUDA header. The
/// library is `libkvarena.so.0` (pkg-config `kvarena-c`, CMake component `c`). Everything that an
/// engine needs of the C++ interface is here; docs/reference/c-api.md has a guide.
///
/// - Status: every call that can fail returns a kvarena_status by value. Code 0 is success. No
///   state is kept for a thread. A call that fails has changed nothing, and leaves its results as
///   they were, unless its comment says otherwise. No call throws, ends the process or prints.
/// - Option structs begin with `struct_size`, which the caller sets to sizeof of the struct. Zero
///   in a member means its default: zero the whole struct and set what differs, for example
///   `kvarena_host_options options = {.struct_size = sizeof options};`. A shorter struct (an older
///   caller) means defaults for the rest. A longer struct (a newer caller) is accepted when the
///   part that the library does not know is zero; otherwise the call returns unsupported
///   (span_size). A pointer to options may be NULL where the comment says so: all defaults. Members
///   named `reserved` must be zero: else the call returns unsupported (span_size).
/// - Result structs begin with `struct_size` too. The library fills the part that both know and
///   sets the rest to zero. It does not change `struct_size`. New members come at the end.
/// - A `struct_size` below 16, above 65536, or no multiple of 8 is invalid_argument (span_size).
/// - Handles are opaque and counted: a cache keeps its device, a monitor keeps the devices that it
///   watches. A handle is a number in the form of a pointer and points to no memory. The library
///   looks it up in a table whose places are never given back, so a released handle, a handle of
///   another kind and a value that never was a handle are found safely: stale_handle (pointer).
///   (After 2^32 uses of one place, its first handles come again.) NULL is invalid_argument
///   (pointer). A release of NULL does nothing and succeeds.
/// - Threads: one thread at a time uses a handle. A second thread that enters it gets
///   failed_precondition (thread), and nothing has happened. Different handles may be used at the
///   same time. Calls marked "any thread" may run at any time beside others.
/// - A release lets no more calls in: they get stale_handle. It waits until the "any thread" calls
///   that are inside have returned. It does not wait for another call: while a thread is inside by
///   one, and in a callback of a call on the same handle, the release returns failed_precondition
///   (thread), and nothing has happened.
/// - Text is written to memory of the caller by the rule of snprintf: at most `size` bytes with the
///   NUL at the end; the result is the length of the whole text without the NUL. Call with size 0
///   (`out` may be NULL) to learn the length. kvarena_describe and kvarena_kernels_describe return
///   the length, and take any size as 0 when `out` is NULL. All other calls return a status and
///   write the length to `length`, which may be NULL; `out` NULL with a size that is not 0 is
///   invalid_argument (pointer). Text that was cut is no failure. JSON is text.
/// - Strings that the caller passes are UTF-8 and end with NUL. Strings and arrays are borrowed for
///   the call, unless a comment says otherwise.
/// - Streams and device memory are `void*`. On CUDA a stream is a cudaStream_t (CUstream) of the
///   device's GPU, which the device remembers when it first sees it: kvarena_stream_destroy makes
///   it forget, before the caller destroys the stream. NULL means the default that the comment
///   names, never CUDA's default stream. CUDA's default streams have handles of their own:
///   KVARENA_STREAM_LEGACY and KVARENA_STREAM_PER_THREAD. On the host device a stream is what
///   kvarena_stream_create returned.
/// - Lengths and sizes are in tokens, blocks or bytes, as the names say. Times are nanoseconds of
///   kvarena_now_ns.
/// - Functions that the caller passes must not throw and must not call back into the object that
///   calls them.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Makes a declaration visible to users of the shared library.
#define KVARENA_API __attribute__((visibility("default")))

/// The number of this header's interface. It rises by one in each change that adds to the header: a
/// program asks kvarena_abi() whether the library has what its header has.
#define KVARENA_ABI 5

/// CUDA's legacy default stream (cudaStreamLegacy), as an integer: `(void*)KVARENA_STREAM_LEGACY`.
#define KVARENA_STREAM_LEGACY 0x1
/// CUDA's default stream of the calling thread (cudaStreamPerThread), as an integer.
#define KVARENA_STREAM_PER_THREAD 0x2

#ifdef __cplusplus
extern "C" {
#endif

// ---- status -------------------------------------------------------------------------------------

/// The outcome of a call: the 32 bytes of kvarena::Status. The meaning of the numbers depends on
/// the code:
/// - invalid_argument: `subject` is the value given, `required` .. `available` the accepted range.
///   The value is that of `option` when it is set, else of the argument `resource`.
/// - exhausted, insufficient_vram: `required` was asked for, and `available` could be had. `option`
///   sets the pool's size; it is 0 when no option does.
/// - limit_exceeded: `required` is the size of the call, `available` the limit, and `option` sets
///   the limit.
/// - context_length_exceeded: `subject` is the sequence, `required` the length asked for, and
///   `available` its maximum.
/// - unsupported: `subject` is the value given, a kvarena_dtype where it is about dtype.
/// - not_found, stale_handle, double_release, invariant_violated: `subject` is the raw id.
/// - device_error, io_error: `native` is the number of the driver or errno.
typedef struct kvarena_status {
  uint8_t code;        ///< kvarena_code
  uint8_t resource;    ///< kvarena_resource: what the numbers are about
  uint16_t option;     ///< only for kvarena_name_of_option: numbers change between versions
  int32_t native;      ///< the number of the driver, of errno or of the check
  uint64_t subject;    ///< raw id or refused value
  uint64_t required;   ///< what was asked for, or the smallest accepted value
  uint64_t available;  ///< what could be had, or the largest accepted value
} kvarena_status;

/// The kind of outcome. docs/reference/errors.md says when each occurs and what to do.
typedef enum kvarena_code {
  KVARENA_OK = 0,                       ///< success
  KVARENA_INVALID_ARGUMENT = 1,         ///< an argument or option is outside its range
  KVARENA_UNSUPPORTED = 2,              ///< valid, but this build, device or kernel cannot do it
  KVARENA_DUPLICATE_ARGUMENT = 3,       ///< the same object was named twice in one call
  KVARENA_NOT_FOUND = 4,                ///< no such sequence, holder, ticket, allocation or file
  KVARENA_FAILED_PRECONDITION = 5,      ///< the object is in a state that forbids the call
  KVARENA_EXHAUSTED = 6,                ///< a pool is empty
  KVARENA_INSUFFICIENT_VRAM = 7,        ///< the device cannot provide that many bytes
  KVARENA_CONTEXT_LENGTH_EXCEEDED = 8,  ///< a sequence would grow past its maximum length
  KVARENA_DOUBLE_RELEASE = 9,           ///< a block reference was released that nobody holds
  KVARENA_STALE_HANDLE = 10,            ///< a handle of this header, or of a block, is over
  KVARENA_REFERENCE_UNDERFLOW = 11,     ///< a holder released more references than it took
  KVARENA_INVARIANT_VIOLATED = 12,      ///< an integrity check failed
  KVARENA_DEVICE_ERROR = 13,            ///< the device or its driver reported `native`
  KVARENA_IO_ERROR = 14,                ///< the operating system reported `native`
  KVARENA_PARSE_ERROR = 15,             ///< malformed input text
  KVARENA_VERIFICATION_FAILED = 16,     ///< data read back differ from the data written
  KVARENA_RESIDENCY_VIOLATED = 17,      ///< memory is not where the device's policy requires it
  KVARENA_LIMIT_EXCEEDED = 18           ///< one call is larger than a limit set at create
} kvarena_code;

/// What the numbers of a status are about: an object, a pool or an argument.
typedef enum kvarena_resource {
  KVARENA_RESOURCE_NONE = 0,              ///< nothing, or `option`
  KVARENA_RESOURCE_BLOCK = 1,             ///< blocks of a pool
  KVARENA_RESOURCE_RESERVATION = 2,       ///< promised blocks
  KVARENA_RESOURCE_HOLDER = 3,            ///< a holder
  KVARENA_RESOURCE_TICKET = 4,            ///< a ticket
  KVARENA_RESOURCE_FENCE_ENTRY = 5,       ///< references that wait for tickets
  KVARENA_RESOURCE_SEQUENCE = 6,          ///< a sequence
  KVARENA_RESOURCE_TABLE_PAGE = 7,        ///< pages of block tables
  KVARENA_RESOURCE_DEVICE_MEMORY = 8,     ///< device memory
  KVARENA_RESOURCE_HOST_MEMORY = 9,       ///< host memory
  KVARENA_RESOURCE_WORKSPACE = 10,        ///< attention's workspace
  KVARENA_RESOURCE_STREAM = 11,           ///< a stream
  KVARENA_RESOURCE_EVENT = 12,            ///< an event
  KVARENA_RESOURCE_ALLOCATION = 13,       ///< an allocation
  KVARENA_RESOURCE_FILE = 14,             ///< a file
  KVARENA_RESOURCE_THREAD = 15,           ///< a thread
  KVARENA_RESOURCE_STEP = 16,             ///< a step, or the order of its calls
  KVARENA_RESOURCE_NUM_GROUPS = 17,       ///< argument
  KVARENA_RESOURCE_NUM_PLANES = 18,       ///< argument
  KVARENA_RESOURCE_NUM_KV_HEADS = 19,     ///< argument
  KVARENA_RESOURCE_NUM_Q_HEADS = 20,      ///< argument
  KVARENA_RESOURCE_HEAD_DIM = 21,         ///< argument
  KVARENA_RESOURCE_BLOCK_SIZE = 22,       ///< argument
  KVARENA_RESOURCE_NUM_BLOCKS = 23,       ///< argument
  KVARENA_RESOURCE_DTYPE = 24,            ///< argument
  KVARENA_RESOURCE_TILE_ORDER = 25,       ///< argument
  KVARENA_RESOURCE_LAYER = 26,            ///< argument
  KVARENA_RESOURCE_ALIGNMENT = 27,        ///< argument
  KVARENA_RESOURCE_BLOCK_BYTES = 28,      ///< argument
  KVARENA_RESOURCE_POOL_BYTES = 29,       ///< argument
  KVARENA_RESOURCE_NUM_SEQUENCES = 30,    ///< argument
  KVARENA_RESOURCE_SEQUENCE_LENGTH = 31,  ///< argument
  KVARENA_RESOURCE_NUM_TOKENS = 32,       ///< argument
  KVARENA_RESOURCE_TOKEN_INDEX = 33,      ///< argument
  KVARENA_RESOURCE_BLOCK_INDEX = 34,      ///< argument
  KVARENA_RESOURCE_SPAN_SIZE = 35,        ///< argument: the length of an array, or struct_size
  KVARENA_RESOURCE_POINTER = 36,          ///< argument: a pointer, or a handle
  KVARENA_RESOURCE_CAPACITY = 37,         ///< argument
  KVARENA_RESOURCE_SCALE = 38,            ///< argument
  KVARENA_RESOURCE_WINDOW = 39,           ///< argument
  KVARENA_RESOURCE_SOFT_CAP = 40,         ///< argument
  KVARENA_RESOURCE_NUM_THREADS = 41,      ///< argument
  KVARENA_RESOURCE_NAME = 42,             ///< argument
  KVARENA_RESOURCE_DEVICE = 43,           ///< argument
  KVARENA_RESOURCE_ADDRESS = 44,          ///< argument
  KVARENA_RESOURCE_URGENCY = 45,          ///< argument
  KVARENA_RESOURCE_MEMORY_CHECK = 46,     ///< argument
  KVARENA_RESOURCE_CONTENT = 47,          ///< argument
  KVARENA_RESOURCE_PAGE = 48              ///< a pool: of pages that groups of blocks share
} kvarena_resource;

// ---- enumerations; 0 is the default where there is one ------------------------------------------

/// The type of an element.
typedef enum kvarena_dtype {
  KVARENA_F16 = 0,        ///< IEEE half
  KVARENA_BF16 = 1,       ///< bfloat16
  KVARENA_F32 = 2,        ///< IEEE single
  KVARENA_FP8_E4M3 = 3,   ///< layouts on CUDA only
  KVARENA_INT8 = 4,       ///< layouts only
  KVARENA_LATENT_FP8 = 5  ///< groups and kernels on CUDA only: latents of 576 elements, 656 bytes
} kvarena_dtype;

/// The order of elements inside one head's tile of a block.
typedef enum kvarena_tile_order {
  KVARENA_TILE_BEST = 0,    ///< chunked on CUDA where the layout permits it, else rows
  KVARENA_TILE_ROWS = 1,    ///< plain [block_size, head_dim]
  KVARENA_TILE_CHUNKED = 2  ///< the order of the tensor cores' operands
} kvarena_tile_order;

/// The order of planes and blocks in a pool.
typedef enum kvarena_block_order {
  KVARENA_BLOCK_MAJOR = 0,  ///< all planes of a block lie together
  KVARENA_LAYER_MAJOR = 1   ///< all blocks of a plane lie together
} kvarena_block_order;

/// What a plane keeps.
typedef enum kvarena_plane_kind {
  KVARENA_KEY = 0,    ///< K
  KVARENA_VALUE = 1,  ///< V
  KVARENA_INDEX = 2   ///< the keys of a sparse-attention index; in a cache with groups
} kvarena_plane_kind;

/// When a cache writes zeros behind the tokens of a sequence.
typedef enum kvarena_scrub {
  KVARENA_SCRUB_NEVER = 0,            ///< a block keeps its old bytes
  KVARENA_SCRUB_ON_OWNER_CHANGE = 1,  ///< except when all content of the block has the same owner
  KVARENA_SCRUB_ALWAYS = 2            ///< always
} kvarena_scrub;

/// Which blocks an allocation may use.
typedef enum kvarena_urgency {
  KVARENA_URGENCY_DEFAULT = 0,  ///< what the call's comment says
  KVARENA_GROWTH = 1,           ///< a running sequence grows: all blocks not promised to others
  KVARENA_ADMISSION = 2         ///< new work: the watermark stays available
} kvarena_urgency;

/// The state of a block.
typedef enum kvarena_block_state {
  KVARENA_BLOCK_FREE = 0,        ///< nobody holds it, and its content is not kept
  KVARENA_BLOCK_REFERENCED = 1,  ///< it has a reference that is not fenced
  KVARENA_BLOCK_FENCED = 2,      ///< it has only references whose ticket has not retired
  KVARENA_BLOCK_EVICTABLE = 3,   ///< nobody holds it, and its content is cached
  KVARENA_BLOCK_OFFLINE = 4,     ///< out of service
  KVARENA_BLOCK_ABSENT = 5       ///< its page is not carved into blocks of its group
} kvarena_block_state;

/// What is known of a block's content.
typedef enum kvarena_block_content {
  KVARENA_CONTENT_UNWRITTEN = 0,      ///< only the block's holders rely on its bytes
  KVARENA_CONTENT_BEING_WRITTEN = 1,  ///< others may find it later; not yet readable
  KVARENA_CONTENT_PUBLISHED = 2,      ///< complete and open to others; never rewritten
  KVARENA_CONTENT_FAILED = 3          ///< writing it failed
} kvarena_block_content;

/// The state of a sequence whose tokens others write.
typedef enum kvarena_import_state {
  KVARENA_IMPORT_NONE = 0,     ///< no import, or one that was published
  KVARENA_IMPORT_FILLING = 1,  ///< others write its blocks
  KVARENA_IMPORT_FAILED = 2    ///< others gave up; only destroy is left
} kvarena_import_state;

/// Which cached block goes first; docs/howto/choose-an-eviction-policy.md.
typedef enum kvarena_eviction {
  KVARENA_TAIL_FIRST = 0,     ///< least recently used; of a sequence its tail before its head
  KVARENA_HEAD_FIRST = 1,     ///< the same; of a sequence its head before its tail
  KVARENA_FIFO = 2,           ///< that became evictable for the first time first
  KVARENA_LFU = 3,            ///< used least often
  KVARENA_EVICT_PRIORITY = 4  ///< of the lowest priority: kvarena_sequence_set_retention
} kvarena_eviction;

/// What is done when two sequences compute the same block at the same time.
typedef enum kvarena_duplicates {
  KVARENA_DUPLICATE = 0,        ///< each computes and keeps its own block; the first is registered
  KVARENA_SHARE_DUPLICATE = 1,  ///< the second gives its own up when both are published
  KVARENA_WAIT = 2              ///< kvarena_sequence_create refuses: failed_precondition (content)
} kvarena_duplicates;

/// Why a cached prefix covers no more tokens.
typedef enum kvarena_prefix_stop {
  KVARENA_STOP_CAPPED = 0,             ///< all full blocks, but one token is left to compute
  KVARENA_STOP_LESS_THAN_BLOCK = 1,    ///< the tokens that are left do not fill a block
  KVARENA_STOP_NEVER_SEEN = 2,         ///< no such block is known
  KVARENA_STOP_EVICTED = 3,            ///< it was known and is gone; `removal` says why
  KVARENA_STOP_OTHER_SALT = 4,         ///< known under another salt
  KVARENA_STOP_OTHER_EXTRA_KEY = 5,    ///< known under this salt with other extra keys
  KVARENA_STOP_NOT_YET_PUBLISHED = 6,  ///< another sequence computes it now
  KVARENA_STOP_OTHER_GROUP = 7  ///< a longer prefix is known (registered_tokens), but another group
                                ///< of layers has not what a sequence needs there
} kvarena_prefix_stop;

/// Why a block is not known any more.
typedef enum kvarena_prefix_removal {
  KVARENA_REMOVED_EVICTED = 0,      ///< an allocation took it
  KVARENA_REMOVED_WITH_PARENT = 1,  ///< a block before it went
  KVARENA_REMOVED_FORGOTTEN = 2,    ///< the engine forgot it
  KVARENA_REMOVED_ABORTED = 3,      ///< cut, undone or ended before it was published
  KVARENA_REMOVED_LOST = 4,         ///< others took it
  KVARENA_REMOVED_OVER_CAP = 5      ///< a newer block of its salt took its place
} kvarena_prefix_removal;

/// What has happened to a block that can be found.
typedef enum kvarena_prefix_event_kind {
  KVARENA_PREFIX_STORED = 0,   ///< it was published
  KVARENA_PREFIX_REMOVED = 1,  ///< it cannot be found any more
  KVARENA_PREFIX_CLEARED = 2   ///< all blocks have gone at once
} kvarena_prefix_event_kind;

/// What an allocation is for.
typedef enum kvarena_purpose {
  KVARENA_MODEL_WEIGHTS = 0,         ///< "ModelWeights"
  KVARENA_KV_CACHE = 1,              ///< "KVCache"
  KVARENA_INTERMEDIATE_BUFFERS = 2,  ///< "IntermediateBuffers"
  KVARENA_PURPOSE_UNKNOWN = 3        ///< "Unknown"
} kvarena_purpose;

/// Which kind of memory an allocation must be.
typedef enum kvarena_memory_kind {
  KVARENA_MEMORY_DEVICE = 0,  ///< VRAM, or the host device's own memory
  KVARENA_MEMORY_STAGING = 1  ///< page-locked host memory; never for KV or weights
} kvarena_memory_kind;

/// Where memory lies, according to the driver.
typedef enum kvarena_place {
  KVARENA_PLACE_VRAM = 0,           ///< device-local memory of this GPU
  KVARENA_PLACE_OTHER_DEVICE = 1,   ///< device-local memory of another GPU
  KVARENA_PLACE_INTEGRATED = 2,     ///< an integrated GPU's memory, which is the machine's
  KVARENA_PLACE_MANAGED = 3,        ///< unified memory, which can migrate
  KVARENA_PLACE_PINNED_HOST = 4,    ///< page-locked host memory
  KVARENA_PLACE_PAGEABLE_HOST = 5,  ///< host memory that the driver does not know
  KVARENA_PLACE_HOST_DEVICE = 6,    ///< memory that a host device allocated
  KVARENA_PLACE_MIXED = 7           ///< the range is not one allocation
} kvarena_place;

/// The severity of a log line.
typedef enum kvarena_log_level {
  KVARENA_LOG_DEBUG = 0,     ///< every allocation
  KVARENA_LOG_INFO = 1,      ///< what an operator wants to know
  KVARENA_LOG_WARNING = 2,   ///< something is not as it should be
  KVARENA_LOG_ERROR = 3,     ///< something failed
  KVARENA_LOG_CRITICAL = 4,  ///< accounts or memory are violated
  KVARENA_LOG_OFF = 5        ///< no lines
} kvarena_log_level;

/// The mutating calls of a block manager, as an operation log has them.
typedef enum kvarena_operation_kind {
  KVARENA_OPERATION_REGISTER_HOLDER = 0,    ///< a holder has begun
  KVARENA_OPERATION_UNREGISTER_HOLDER = 1,  ///< a holder has ended
  KVARENA_OPERATION_RESERVE = 2,            ///< blocks were promised
  KVARENA_OPERATION_ALLOCATE = 3,           ///< blocks were taken
  KVARENA_OPERATION_RETAIN = 4,             ///< references were added
  KVARENA_OPERATION_RELEASE = 5,            ///< references were given up
  KVARENA_OPERATION_RELEASE_AFTER = 6,      ///< references were fenced
  KVARENA_OPERATION_SET_CONTENT = 7,        ///< what is known of a content has changed
  KVARENA_OPERATION_QUARANTINE = 8,         ///< a block leaves service
  KVARENA_OPERATION_RESTORE = 9,            ///< a block returns to service
  KVARENA_OPERATION_OPEN_TICKET = 10,       ///< a ticket was opened
  KVARENA_OPERATION_RETIRE = 11,            ///< a ticket has retired
  KVARENA_OPERATION_SET_RETENTION = 12,     ///< how long a block should stay was said
  KVARENA_OPERATION_ADVANCE_CLOCK = 13      ///< the clock of retentions went on
} kvarena_operation_kind;

// ---- ids and handles ----------------------------------------------------------------------------

/// A sequence; 0: none. Its cache never uses the id again, but two caches can have equal ids: the
/// engine must not mix them up. So caches of ranks that get the same calls give the same ids.
typedef uint64_t kvarena_sequence;
/// A registered holder of block references; 0: none. Two caches or pools can have equal ids too.
typedef uint64_t kvarena_holder;
/// Queued work on another stream; 0: none. No two objects of the process have equal tickets.
typedef uint64_t kvarena_ticket;

typedef struct kvarena_device kvarena_device;    ///< memory, streams and accounts of one device
typedef struct kvarena_cache kvarena_cache;      ///< a KvCache: what an engine holds
typedef struct kvarena_pool kvarena_pool;        ///< block ids for an engine with its own tables
typedef struct kvarena_kernels kvarena_kernels;  ///< attention for an engine with its own tables
typedef struct kvarena_monitor kvarena_monitor;  ///< health, with an HTTP server if asked

// ---- library: any thread ------------------------------------------------------------------------

/// Returns the library's version, "major.minor.patch".
KVARENA_API const char* kvarena_version(void);
/// Returns the KVARENA_ABI of the library, which may be newer than this header's.
KVARENA_API uint32_t kvarena_abi(void);
/// Returns whether this build contains the CUDA code.
KVARENA_API bool kvarena_has_cuda(void);
/// Returns the machine's monotonic time in nanoseconds, which all times here are.
KVARENA_API int64_t kvarena_now_ns(void);
/// Returns the name of a kvarena_code, for example "exhausted"; "unknown" for another number.
KVARENA_API const char* kvarena_name_of_code(uint8_t code);
/// Returns the name of a kvarena_resource, for example "block"; "unknown" for another number.
KVARENA_API const char* kvarena_name_of_resource(uint8_t resource);
/// Returns the name of an option, for example "max_batch_rows"; "unknown" for another number.
KVARENA_API const char* kvarena_name_of_option(uint16_t option);
/// Writes one line for a person: what happened, the numbers, and what was expected. With a cache or
/// device at hand, kvarena_cache_describe and kvarena_device_describe say more.
KVARENA_API size_t kvarena_describe(const kvarena_status* status, char* out, size_t size);

/// Receives one log line of `length` bytes without a newline (a NUL follows). The thread that logs
/// calls it under a lock: it must not call this library, and must not wait for a lock that its
/// caller may hold.
typedef void (*kvarena_log_function)(void* user, int32_t level, const char* line, size_t length);
/// Sends every line of `minimum_level` (kvarena_log_level) and above to `function` from now on.
/// NULL silences the library, as it is at first. After the return, no thread is in the function
/// before it. Returns invalid_argument for another level.
KVARENA_API kvarena_status kvarena_set_log(kvarena_log_function function, void* user,
                                           int32_t minimum_level);

/// Receives a programmer error (double release, stale block, failed check), the name of the refused
/// call, and the name of the object that reported it ("" without one). The strings are borrowed.
/// The refused call then returns the same status.
typedef void (*kvarena_violation_function)(void* user, const kvarena_status* status,
                                           const char* call, const char* object);
/// Installs the function. NULL restores the default, which logs at level critical.
KVARENA_API void kvarena_set_violation(kvarena_violation_function function, void* user);

// ---- devices ------------------------------------------------------------------------------------
// Calls on a device are "any thread", unless their comment says otherwise: a device may be used
// beside the caches that live on it. One thread at a time may use a stream.

/// Options of a host device: memory of the process, which serves machines without a GPU.
typedef struct kvarena_host_options {
  uint64_t struct_size;     ///< sizeof(kvarena_host_options)
  uint64_t capacity_bytes;  ///< at most 2^48; 0: what the machine has available
  uint32_t max_streams;     ///< 1 .. 4096; 0: 64
  uint32_t max_queued;      ///< 1 .. 2^20 operations queued on a stream; 0: 4096
  int32_t inline_calls;     ///< 1: work runs in the call that queues it, without threads
  int32_t reserved;         ///< 0
} kvarena_host_options;

/// Options of a CUDA device.
typedef struct kvarena_cuda_options {
  uint64_t struct_size;         ///< sizeof(kvarena_cuda_options)
  int32_t ordinal;              ///< the GPU, as CUDA_VISIBLE_DEVICES numbers them
  int32_t allow_host;           ///< 1: host memory is accepted for KV and weights; logged
  uint32_t max_streams;         ///< 1 .. 4096; 0: 64
  uint32_t max_host_functions;  ///< 1 .. 2^20 queued on a stream; 0: 1024
  uint64_t bounce_bytes;        ///< 4 KiB .. 64 MiB of pinned memory a stream; 0: 256 KiB
} kvarena_cuda_options;

/// Facts about a device.
typedef struct kvarena_device_info {
  uint64_t struct_size;        ///< sizeof(kvarena_device_info)
  uint64_t total_bytes;        ///< all memory; the capacity of a host device
  uint64_t free_bytes;         ///< what the driver can give now, next to other processes
  uint64_t tracked_bytes;      ///< recorded by this device, of kind device
  uint64_t staging_bytes;      ///< recorded by this device, of kind staging
  uint64_t overhead_bytes;     ///< used when the device was opened: contexts, other processes
  uint64_t bounce_bytes;       ///< as in kvarena_cuda_options; 0 on the host
  int32_t is_cuda;             ///< 1: a GPU; 0: the host
  int32_t ordinal;             ///< of the GPU; -1 on the host
  int32_t compute_capability;  ///< 10 * major + minor; 0 on the host
  int32_t num_sms;             ///< multiprocessors; 0 on the host
  int32_t lost_to;             ///< the sticky CUDA error by which the device was lost, or 0
  int32_t allows_host;         ///< 1: host memory is accepted for KV and weights
} kvarena_device_info;

/// Opens a host device. `options` may be NULL. Returns invalid_argument with the option.
KVARENA_API kvarena_status kvarena_device_open_host(const kvarena_host_options* options,
                                                    kvarena_device** device);
/// Opens a GPU. `options` may be NULL. Returns invalid_argument with the option (ordinal: no such
/// GPU), device_error when the driver or the GPU is missing or unusable, or unsupported (device) in
/// a build without CUDA. The host never takes the place of a GPU by itself.
KVARENA_API kvarena_status kvarena_device_open_cuda(const kvarena_cuda_options* options,
                                                    kvarena_device** device);
/// Gives the handle up. The device lives on while caches, kernels or monitors keep it; then its
/// memory and streams are released, and a warning names what was leaked. Returns stale_handle, or
/// failed_precondition (thread) while another thread releases it.
KVARENA_API kvarena_status kvarena_device_release(kvarena_device* device);
/// Reads the facts. Returns device_error when the driver cannot tell the free memory.
KVARENA_API kvarena_status kvarena_device_ask(kvarena_device* device, kvarena_device_info* info);
/// Writes the device's name for people: "host", "cuda:0 NVIDIA H200".
KVARENA_API kvarena_status kvarena_device_name(kvarena_device* device, char* out, size_t size,
                                               size_t* length);
/// Writes JSON: name, memory, usage by purpose, reported totals, the drift between driver and
/// accounts, and all allocations by address.
KVARENA_API kvarena_status kvarena_device_json(kvarena_device* device, char* out, size_t size,
                                               size_t* length);
/// Writes a table for people: usage by purpose, and the largest allocations.
KVARENA_API kvarena_status kvarena_device_report(kvarena_device* device, char* out, size_t size,
                                                 size_t* length);
/// Does what kvarena_describe does, with the memory breakdown or CUDA's own text where the device
/// knows more.
KVARENA_API kvarena_status kvarena_device_describe(kvarena_device* device,
                                                   const kvarena_status* status, char* out,
                                                   size_t size, size_t* length);
/// Writes JSON of the machine's GPUs and, when there is none, why. With `with_memory` 1 it reads
/// their free memory, which creates a CUDA context on each. Takes no handle.
KVARENA_API kvarena_status kvarena_devices_json(int32_t with_memory, char* out, size_t size,
                                                size_t* length);

// Memory, for engines that keep a pool of their own.

/// A request for memory.
typedef struct kvarena_allocation {
  uint64_t struct_size;      ///< sizeof(kvarena_allocation)
  uint64_t bytes;            ///< 1 .. 2^48
  uint64_t alignment_bytes;  ///< power of two, at most 4096; 0: 256
  int32_t purpose;           ///< kvarena_purpose
  int32_t kind;              ///< kvarena_memory_kind
  const char* description;   ///< for reports; NULL: none
} kvarena_allocation;

/// Allocates uninitialised memory and records it. Returns invalid_argument with the member,
/// unsupported (allocation) for KV or weights in staging memory, insufficient_vram, exhausted
/// (host_memory), residency_violated or device_error.
KVARENA_API kvarena_status kvarena_memory_allocate(kvarena_device* device,
                                                   const kvarena_allocation* request,
                                                   void** memory);
/// Frees memory of kvarena_memory_allocate. The work that uses it must have completed. Returns
/// not_found (allocation), also for the memory of a cache or of kernels, which they free
/// themselves, or failed_precondition (allocation) for registered memory.
KVARENA_API kvarena_status kvarena_memory_free(kvarena_device* device, void* memory);
/// Records memory that the engine allocated itself, so that it is counted and checked. `request`
/// has its bytes, purpose, kind and description. With `defer` 0 the driver is asked now, and memory
/// that the device's policy forbids is refused: residency_violated. Unregister it before it is
/// freed. Returns failed_precondition (allocation) for a range that is recorded already.
KVARENA_API kvarena_status kvarena_memory_register(kvarena_device* device, void* memory,
                                                   const kvarena_allocation* request,
                                                   int32_t defer);
/// Removes the record. Returns not_found (allocation), or failed_precondition (allocation) for
/// memory that the device allocated.
KVARENA_API kvarena_status kvarena_memory_unregister(kvarena_device* device, void* memory);
/// Sets how many bytes the allocator `name` holds now for `purpose`, in place of its earlier
/// report: for an allocator that cannot name addresses. Returns invalid_argument (name,
/// pool_bytes).
KVARENA_API kvarena_status kvarena_memory_report(kvarena_device* device, const char* name,
                                                 int32_t purpose, uint64_t bytes);
/// Asks the driver what the `bytes` bytes from `memory` on are, and writes a kvarena_place and the
/// GPU that owns them (-1: none). Returns invalid_argument (pointer, span_size).
KVARENA_API kvarena_status kvarena_memory_place(kvarena_device* device, const void* memory,
                                                uint64_t bytes, int32_t* place, int32_t* ordinal);
/// Checks that every recorded allocation is where it must be, and writes the verdict as JSON.
/// Returns residency_violated with the first address that is wrong; the JSON is written then too.
KVARENA_API kvarena_status kvarena_memory_verify(kvarena_device* device, char* out, size_t size,
                                                 size_t* length);
/// Queues a copy of `bytes` bytes on `stream`. Both are host or device memory, do not overlap, and
/// must stay valid until the copy has completed. Returns invalid_argument (pointer, span_size) or
/// not_found (stream).
KVARENA_API kvarena_status kvarena_memory_copy(kvarena_device* device, void* target,
                                               const void* source, uint64_t bytes, void* stream);
/// Queues setting `bytes` bytes at `target` to `value`. Returns the same.
KVARENA_API kvarena_status kvarena_memory_fill(kvarena_device* device, void* target, uint8_t value,
                                               uint64_t bytes, void* stream);
/// Creates a stream of the device. Returns exhausted (stream, host_memory), io_error (thread) when
/// the system has no thread for it, or device_error.
KVARENA_API kvarena_status kvarena_stream_create(kvarena_device* device, void** stream);
/// Waits for the stream's work and destroys it. A stream that the caller made with CUDA is only
/// forgotten then. Returns not_found (stream), on the host also for a stream that a cache made for
/// itself, or a failure that no wait has returned yet.
KVARENA_API kvarena_status kvarena_stream_destroy(kvarena_device* device, void* stream);
/// Waits until all work of the stream has completed and returns its first failure, once.
KVARENA_API kvarena_status kvarena_stream_synchronize(kvarena_device* device, void* stream);

// ---- operation log ------------------------------------------------------------------------------

/// One mutating call of a block manager, with its outcome. A call that failed has changed nothing.
/// With the log, a second manager with the same options can be brought to the same state, and ranks
/// can compare their histories. A call that allocates for many has an entry for each demand; in a
/// pool with groups a replay must make one call of them (left_in_call).
typedef struct kvarena_operation {
  uint64_t struct_size;   ///< of the library's struct
  uint64_t holder;        ///< argument, or result of register_holder
  uint64_t ticket;        ///< a number that rises from ticket to ticket; 0: none of this manager
  int64_t count;          ///< blocks asked for, or reserved; the end of a retention; the clock
  const int32_t* blocks;  ///< [num_blocks] arguments, or the result of allocate; borrowed
  uint64_t num_blocks;    ///< entries of `blocks`
  int32_t kind;           ///< kvarena_operation_kind
  int32_t outcome;        ///< kvarena_code
  int32_t flag;           ///< allocate, reserve: 0 growth, 1 admission; set_content: the content;
                          ///< set_retention: the priority
  int32_t reserved;       ///< 0
  int32_t group;          ///< of allocate: whose blocks; 0 in a pool without groups
  int32_t left_in_call;   ///< of allocate in a pool with groups: entries of the same call that
                          ///< follow this one
} kvarena_operation;

/// Receives each mutating call after it has ended, on the thread that made it.
typedef void (*kvarena_operation_function)(void* user, const kvarena_operation* operation);

// ---- events of a prefix cache -------------------------------------------------------------------

/// Something apart from the tokens that K and V depend on, such as an adapter or an image. It
/// counts for the block that has its first token, and for all blocks behind that one. Equal ids
/// that begin at different tokens are different.
typedef struct kvarena_extra_key {
  uint64_t key;         ///< the engine's id of it
  int64_t first_token;  ///< index of the first token that depends on it
} kvarena_extra_key;

/// One event. The events since create, or since the last KVARENA_PREFIX_CLEARED, are enough to
/// rebuild elsewhere which prefixes are cached. Arrays are borrowed for the call.
typedef struct kvarena_prefix_event {
  uint64_t struct_size;                 ///< of the library's struct
  uint64_t number;                      ///< 1, 2, 3 ... without a gap
  uint64_t salt;                        ///< stored: the tenant
  const int32_t* tokens;                ///< [num_tokens] stored: of the block
  uint64_t num_tokens;                  ///< stored: the block size; else 0
  const kvarena_extra_key* extra_keys;  ///< [num_extra_keys] stored: those that begin in the block;
                                        ///< first_token counts from the block's first token
  uint64_t num_extra_keys;              ///< entries of `extra_keys`
  int32_t kind;                         ///< kvarena_prefix_event_kind
  int32_t removal;                      ///< removed: kvarena_prefix_removal
  int32_t block;   ///< the block, which has this name until it is removed; cleared: -1
  int32_t parent;  ///< stored: the block before it, which may be stored later; -1: none
} kvarena_prefix_event;

/// Receives each event within the call that makes it, on the thread of that call.
typedef void (*kvarena_prefix_event_function)(void* user, const kvarena_prefix_event* event);

// ---- cache --------------------------------------------------------------------------------------

/// The tokens of a sequence that a group of layers keeps.
typedef enum kvarena_group_kind {
  KVARENA_GROUP_FULL = 0,    ///< all tokens
  KVARENA_GROUP_WINDOW = 1,  ///< the last `limit_tokens` tokens
  KVARENA_GROUP_CHUNK = 2,   ///< the aligned chunk of `limit_tokens` tokens that has the last token
  KVARENA_GROUP_STATE = 3,   ///< one state of fixed size, which each token changes
  KVARENA_GROUP_CROSS = 4    ///< the tokens of an encoder, at most `limit_tokens`
} kvarena_group_kind;

/// How a kernel of states works.
typedef enum kvarena_state_mode {
  KVARENA_STATE_IN_PLACE = 0,   ///< it reads and writes one slot
  KVARENA_STATE_READ_WRITE = 1  ///< it reads one slot and writes another, and takes zeros for -1
} kvarena_state_mode;

/// One tensor of a layer's state.
typedef struct kvarena_state_plane {
  int64_t shape[4];  ///< the first num_dims, each at least 1
  int32_t num_dims;  ///< 1 .. 4
  int32_t dtype;     ///< kvarena_dtype
} kvarena_state_plane;

/// One layer of a group.
typedef struct kvarena_group_layer {
  int32_t layer;        ///< the model's layer, 0 .. 4095
  int32_t reads_layer;  ///< a layer of the same group whose K and V this one reads; it writes
                        ///< nothing then. Its own number: it has K and V of its own
} kvarena_group_layer;

/// Layers that keep the same data. group_layout.hpp has more on each member.
typedef struct kvarena_layer_group {
  uint64_t struct_size;               ///< sizeof(kvarena_layer_group)
  const kvarena_group_layer* layers;  ///< [num_layers]
  int64_t limit_tokens;               ///< of windows, chunks and encoders
  int32_t num_layers;                 ///< at least one with K and V of its own
  int32_t kind;                       ///< kvarena_group_kind
  int32_t num_kv_heads;               ///< 1 .. 4096
  int32_t head_dim_k;                 ///< 1 .. 4096
  int32_t head_dim_v;                 ///< 1 .. 4096; 0: the same as head_dim_k
  int32_t dtype;                      ///< kvarena_dtype of K
  int32_t has_dtype_v;                ///< 1: V has the type dtype_v; 0: that of K
  int32_t dtype_v;                    ///< kvarena_dtype of V
  int32_t value_in_key;               ///< 1: V is the leading head_dim_v elements of K: a latent
  int32_t block_size_tokens;          ///< 1 .. 65536; 0: 16
  int32_t rollback_tokens;            ///< window, state: tokens that can be taken back
  int32_t num_planes;                 ///< state: 1 .. 8; other kinds: 0
  const kvarena_state_plane* planes;  ///< [num_planes] what a layer keeps
  int32_t state_mode;                 ///< kvarena_state_mode
  int32_t loses_on_abort;             ///< 1: a step may write over the state that it reads, and an
                                      ///< aborted step loses it; 0: it keeps both until its end
  int32_t has_token_scales;           ///< 1: K and V are FP8_E4M3 with an f32 for each token and
                                      ///< head; 0: without
  int32_t index_dim;  ///< elements of a token's key in a sparse-attention index, kept in FP8_E4M3
                      ///< with an f32 a token: a multiple of 4 up to 128; 0: none
} kvarena_layer_group;

/// Options of a cache, and of the layout of a pool. kv_cache_options.hpp has more on each member.
typedef struct kvarena_cache_options {
  uint64_t struct_size;               ///< sizeof(kvarena_cache_options)
  int32_t num_layers;                 ///< 1 .. 4096
  int32_t num_kv_heads;               ///< 1 .. 4096
  int32_t head_dim_k;                 ///< 1 .. 4096
  int32_t head_dim_v;                 ///< 1 .. 4096; 0: the same as head_dim_k
  int32_t dtype;                      ///< kvarena_dtype of K and V
  int32_t block_size_tokens;          ///< 1 .. 65536; 0: 16
  int32_t tile_order;                 ///< kvarena_tile_order
  int32_t block_order;                ///< kvarena_block_order
  int64_t num_blocks;                 ///< the pool's size; exactly one of these three is set
  int64_t budget_bytes;               ///< as many blocks as fit into this many bytes
  int64_t all_free_but_bytes;         ///< all free memory of the device but this; -1: but nothing
  int32_t num_q_heads;                ///< query heads of attend; a multiple of the KV heads
  int32_t max_sequences;              ///< sequences at a time; 0: 1024
  int64_t max_sequence_tokens;        ///< tokens of one sequence; 0: as many as the pool holds
  int64_t max_step_tokens;            ///< new tokens in a step; 0: 8192
  int64_t max_batch_blocks;           ///< blocks that all rows of a step have together, with
                                      ///< groups the kept ones of each; 0: 4 x the most blocks
                                      ///< of one group that the pool can hold
  int64_t watermark_blocks;           ///< admission leaves at least this many available
  int64_t max_fence_entries;          ///< references that wait for tickets; 0: 64 x num_blocks
  int64_t max_table_pages;            ///< pages of 128 table entries; 0: enough for 64 x num_blocks
  int64_t audit_blocks_per_step;      ///< blocks checked in each step; 0: 64; -1: none
  int64_t batch_invariant_tokens;     ///< not 0: a sequence's bits do not depend on the rest of its
                                      ///< step, which has at most so many tokens together
  int32_t max_batch_rows;             ///< sequences in a step; 0: max_sequences
  int32_t window_tokens;              ///< sliding window of windowed attend calls; 0: none
  int32_t steps_in_flight;            ///< step n waits for step n - k, 1 .. 16; 0: 2
  int32_t max_open_tickets;           ///< tickets that have not retired, 1 .. 65536; 0: 64
  int32_t num_threads;                ///< host: attention threads; 0: one a core
  int32_t max_decode_tokens;          ///< CUDA: most tokens of a recorded row, 1 .. 16; 0: 1
  int32_t max_shared_rows;            ///< CUDA: sequences of a step that may read common leading
                                      ///< blocks together, at most 4096; 0: 256; -1: none
  int32_t scrub;                      ///< kvarena_scrub
  int32_t draft_trees;                ///< 1: attend's tree_mask may be set
  int32_t max_pins;                   ///< pins at a time, at most 2^24; 0: 64; -1: none
  int32_t eager_retire;               ///< 1: retire tickets as soon as their work has completed
  int32_t reserved;                   ///< 0
  void* stream;                       ///< CUDA: of the first step; NULL: the cache creates one
  const char* name;                   ///< for logs, violations and health; NULL: none
  kvarena_operation_function log;     ///< receives every mutating call; NULL: none
  void* log_user;                     ///< its first argument
  const kvarena_layer_group* groups;  ///< [num_groups] layers that keep different data; then the
                                      ///< members of the layout and window_tokens are not used, and
                                      ///< num_blocks counts pages. NULL: all layers are alike
  int64_t num_groups;                 ///< entries of `groups`, each of groups[0].struct_size bytes
  int64_t page_sequence_tokens;       ///< with groups: the page is chosen for sequences of up to so
                                      ///< many tokens; 0: max_sequence_tokens, or 131,072
  int64_t checkpoint_every_tokens;    ///< states are kept at multiples of this length; 0: 2,048;
                                      ///< -1: only where the engine says so
  int32_t prefix_cache;               ///< 1: sequences that begin with the same tokens share blocks
  int32_t prefix_duplicates;          ///< kvarena_duplicates
  int32_t prefix_extra_keys;          ///< extra keys that a sequence may have, 0 .. 31
  int32_t eviction;          ///< kvarena_eviction of the blocks that the prefix cache keeps
  int64_t prefix_history;    ///< newest removals, and registrations, that are remembered for
                             ///< kvarena_prefix_stop; 0: one for each 16 blocks, at least 64
  uint64_t prefix_key_low;   ///< the key of the hash, for runs that can be repeated
  uint64_t prefix_key_high;  ///< its other half; both 0: drawn at create
  int32_t prefix_accounts;   ///< salts that may have an account at a time, 0 .. 2^20; not 0: each
                             ///< block costs 12 bytes more
  int32_t prefix_ghost_blocks;  ///< ids of the largest ghost cache, 4 .. 2^24; 0: no ghosts
  kvarena_prefix_event_function prefix_events;  ///< told what is stored and removed; NULL: nobody
  void* prefix_events_user;                     ///< its first argument
  int32_t prefix_share_parts;  ///< 1: a sequence may begin with the first tokens of a cached block
                               ///< whose other tokens differ; its first append copies them
  int32_t prefix_reserved;     ///< 0
} kvarena_cache_options;

/// The memory that a cache takes.
typedef struct kvarena_footprint {
  uint64_t struct_size;         ///< sizeof(kvarena_footprint)
  int64_t num_blocks;           ///< blocks in the pool
  int64_t pool_bytes;           ///< of all blocks
  int64_t workspace_bytes;      ///< of all attention workspaces
  int64_t table_bytes;          ///< of the step's block tables on CUDA
  int64_t staging_bytes;        ///< pinned host memory on CUDA
  int64_t device_bytes;         ///< pool, workspaces and tables
  int64_t host_bytes;           ///< of block manager and tables; an upper bound
  int32_t device_allocations;   ///< of device memory
  int32_t staging_allocations;  ///< of pinned host memory
} kvarena_footprint;

/// The facts of a device that decide a cache's sizes.
typedef struct kvarena_target {
  uint64_t struct_size;  ///< sizeof(kvarena_target)
  int64_t bounce_bytes;  ///< CUDA: as in kvarena_cuda_options; 0: 256 KiB
  int32_t is_cuda;       ///< 1: a GPU
  int32_t num_sms;       ///< CUDA: 1 .. 4096
  int32_t num_threads;   ///< host: the default of num_threads; 0: one a core of this machine
  int32_t reserved;      ///< 0
} kvarena_target;

/// Creates a cache: allocates the pool, the workspaces and all tables. Returns invalid_argument
/// with the option, insufficient_vram, unsupported, or exhausted (host_memory, thread, stream).
KVARENA_API kvarena_status kvarena_cache_create(kvarena_device* device,
                                                const kvarena_cache_options* options,
                                                kvarena_cache** cache);
/// Ends the cache: monitors stop watching it, all its work is waited for, and its memory is freed.
/// Returns stale_handle, or failed_precondition (thread) while another thread is inside by a call
/// that is not "any thread".
KVARENA_API kvarena_status kvarena_cache_release(kvarena_cache* cache);
/// Computes what kvarena_cache_create takes of such a device, without it. `free_bytes` matters only
/// for all_free_but_bytes. Returns what kvarena_cache_create returns for the options. Any thread.
KVARENA_API kvarena_status kvarena_cache_footprint(const kvarena_cache_options* options,
                                                   const kvarena_target* target, int64_t free_bytes,
                                                   kvarena_footprint* footprint);
/// Computes the most blocks with which the whole cache takes at most `budget_bytes` of the device,
/// and writes what it takes; the size in `options` does not matter. Returns insufficient_vram when
/// not even one block fits. Any thread.
KVARENA_API kvarena_status kvarena_cache_fit(const kvarena_cache_options* options,
                                             const kvarena_target* target, int64_t budget_bytes,
                                             kvarena_footprint* footprint);
/// Writes the facts of a device. Any thread.
KVARENA_API kvarena_status kvarena_device_target(kvarena_device* device, kvarena_target* target);
/// Does what kvarena_describe does, and adds what the cache knows: why blocks were refused, the
/// device's memory, the next valid call for a call out of order.
KVARENA_API kvarena_status kvarena_cache_describe(kvarena_cache* cache,
                                                  const kvarena_status* status, char* out,
                                                  size_t size, size_t* length);

// ---- sequences ----------------------------------------------------------------------------------

/// Options of a new sequence.
typedef struct kvarena_sequence_options {
  uint64_t struct_size;       ///< sizeof(kvarena_sequence_options)
  int64_t max_length_tokens;  ///< 0: no maximum below that of the cache
  int64_t since_ns;           ///< when it began, for reports; 0: unknown
  int64_t deadline_ns;        ///< when it should have ended, for reports; 0: none
  uint64_t owner;             ///< the engine's own id of the request or tenant; 0: the sequence's
                              ///< own id, for a fork the owner of its parent
  int32_t cross_tokens;       ///< tokens of an encoder that the layers of cross groups read
  int32_t reserved;           ///< 0
  const int32_t* tokens;      ///< [num_tokens] with a prefix cache: what the sequence will begin
                              ///< with. It gets the longest cached prefix of it. Not for a fork or
                              ///< an import
  uint64_t num_tokens;        ///< entries of `tokens`
  uint64_t salt;              ///< the tenant: nothing of another salt is ever found. A fork has the
                              ///< salt and the extra keys of its parent: it takes none
  const kvarena_extra_key* extra_keys;  ///< [num_extra_keys] by first_token, rising or equal
  uint64_t num_extra_keys;              ///< entries of `extra_keys`
} kvarena_sequence_options;

/// One sequence's figures.
typedef struct kvarena_sequence_info {
  uint64_t struct_size;       ///< sizeof(kvarena_sequence_info)
  int64_t length_tokens;      ///< tokens
  int64_t num_blocks;         ///< entries in its table, with reserved capacity
  int64_t max_length_tokens;  ///< 0: none
  int64_t waste_tokens;       ///< num_blocks * block_size - length
  int64_t since_ns;           ///< as given
  int64_t deadline_ns;        ///< as given, or set since
  uint64_t owner;             ///< whose content it is; never 0
  kvarena_holder holder;      ///< the holder of its block references
  int32_t import_state;       ///< kvarena_import_state
  int32_t reserved;           ///< 0
  int64_t known_tokens;       ///< leading tokens whose values the prefix cache was told
  int64_t registered_blocks;  ///< leading blocks that the prefix cache knows
  int64_t published_blocks;   ///< of these, those that others can find
} kvarena_sequence_info;

/// Creates an empty sequence, or with a prefix cache and tokens one that begins with their longest
/// cached prefix: kvarena_sequence_prefix says what was found. `options` may be NULL. Returns
/// exhausted (sequence, table_page, block), context_length_exceeded, invalid_argument (num_tokens,
/// or the option extra_keys or first_token), or failed_precondition (content) with KVARENA_WAIT.
KVARENA_API kvarena_status kvarena_sequence_create(kvarena_cache* cache,
                                                   const kvarena_sequence_options* options,
                                                   kvarena_sequence* sequence);
/// Creates a sequence that shares the first `length_tokens` tokens of `parent`: the same blocks,
/// each with one more reference. Whoever first appends to a partly shared last block copies it.
/// `options` may be NULL. Returns invalid_argument (sequence_length), exhausted (sequence,
/// table_page), or not_found. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_fork(kvarena_cache* cache, kvarena_sequence parent,
                                                 int64_t length_tokens,
                                                 const kvarena_sequence_options* options,
                                                 kvarena_sequence* sequence);
/// Consecutive blocks of one group's table, which somebody holds.
typedef struct kvarena_group_blocks {
  uint64_t struct_size;         ///< sizeof(kvarena_group_blocks)
  int64_t first_block;          ///< index in the table
  const int32_t* blocks;        ///< [num_blocks] ids, as kvarena_sequence_group_blocks writes them
  const uint32_t* generations;  ///< [num_blocks] of kvarena_cache_block
  uint64_t num_blocks;          ///< entries of both
} kvarena_group_blocks;

/// In a cache with groups: creates a sequence of `length_tokens` tokens from blocks that somebody
/// holds, and takes a reference on each. The entries of `parts` have parts[0].struct_size bytes
/// each. In each part of the pool the blocks end with the last token and begin with the oldest that
/// a later token reads; those of an encoder may be left out. Returns invalid_argument (num_groups,
/// block_index, num_blocks, span_size; the option groups for a block of another part; with a prefix
/// cache the options salt, extra_keys and first_token for a block that belongs to another salt or
/// to other extra keys), stale_handle (block), or exhausted (sequence, table_page). O(blocks).
KVARENA_API kvarena_status kvarena_sequence_create_from(kvarena_cache* cache, int64_t length_tokens,
                                                        const kvarena_group_blocks* parts,
                                                        size_t num_parts,
                                                        const kvarena_sequence_options* options,
                                                        kvarena_sequence* sequence);
/// Writes the longest length of at most `length_tokens` tokens at which the sequence can be cut or
/// forked: the blocks that the next token reads are still held. Returns not_found, or
/// invalid_argument (sequence_length) below 0 and above 2^31 - 1.
KVARENA_API kvarena_status kvarena_sequence_restorable_length(kvarena_cache* cache,
                                                              kvarena_sequence sequence,
                                                              int64_t length_tokens,
                                                              int64_t* restorable);
/// Keeps the states of a sequence at its present length as a checkpoint, until its pages are
/// needed: the sequence can be cut and forked there. Between steps. Returns unsupported
/// (num_groups) without groups of states, not_found, or failed_precondition (sequence).
KVARENA_API kvarena_status kvarena_sequence_checkpoint(kvarena_cache* cache,
                                                       kvarena_sequence sequence);
/// Writes the lengths of a sequence's checkpoints to `lengths` [room], ascending, and their number
/// to `count`. Returns invalid_argument (span_size) as kvarena_sequence_blocks does.
KVARENA_API kvarena_status kvarena_sequence_checkpoints(kvarena_cache* cache,
                                                        kvarena_sequence sequence, int64_t* lengths,
                                                        size_t room, size_t* count);
/// Writes the blocks of the state at exactly `length_tokens`, held or a checkpoint, and their
/// generations, both [room], as kvarena_sequence_create_from takes them. `part` is the part of the
/// pool with these states. Returns failed_precondition (sequence_length) where there is none, and
/// invalid_argument (num_groups, span_size).
KVARENA_API kvarena_status kvarena_sequence_state_blocks(kvarena_cache* cache,
                                                         kvarena_sequence sequence,
                                                         int64_t length_tokens, int32_t part,
                                                         int32_t* blocks, uint32_t* generations,
                                                         size_t room, size_t* count);
/// Creates a sequence of `num_tokens` tokens whose blocks others fill: a transfer, a load. Until
/// kvarena_sequence_publish_import it can be asked and destroyed, but not appended to, forked, cut
/// or pinned: failed_precondition (sequence). Work that fills the blocks must wait for the work
/// queued on the cache's stream so far, because they may have been released a moment ago. `options`
/// may be NULL. With a prefix cache they may have a salt and extra keys, for what
/// kvarena_sequence_register tells once the import is published. The default urgency is admission.
/// Returns failed_precondition (step) between append and the end of the step, exhausted (sequence,
/// holder, block, table_page), context_length_exceeded, or invalid_argument (num_tokens, urgency,
/// or the options max_length_tokens, cross_tokens, extra_keys, first_token, and tokens: an import
/// takes none). O(blocks).
KVARENA_API kvarena_status kvarena_sequence_import(kvarena_cache* cache, int64_t num_tokens,
                                                   const kvarena_sequence_options* options,
                                                   int32_t urgency, kvarena_sequence* sequence);
/// Says that an imported sequence's tokens have been written: from now on it is a sequence like
/// others. Returns failed_precondition (sequence) without an import that waits, or not_found.
KVARENA_API kvarena_status kvarena_sequence_publish_import(kvarena_cache* cache,
                                                           kvarena_sequence sequence);
/// Says that the tokens of an import will not come: only destroy is left; pass a ticket there while
/// writes may still arrive. Returns failed_precondition (sequence), or not_found.
KVARENA_API kvarena_status kvarena_sequence_fail_import(kvarena_cache* cache,
                                                        kvarena_sequence sequence);
/// Cuts a sequence to `length_tokens` and releases the blocks behind them. A ticket (0: none)
/// protects what queued work on another stream still reads. Returns invalid_argument
/// (sequence_length), not_found (sequence, ticket), or exhausted (fence_entry).
KVARENA_API kvarena_status kvarena_sequence_truncate(kvarena_cache* cache,
                                                     kvarena_sequence sequence,
                                                     int64_t length_tokens, kvarena_ticket ticket);
/// Ends `count` sequences in the order given, all or nothing, against a ticket (0: none). The
/// status names the first unknown or repeated sequence. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_destroy(kvarena_cache* cache,
                                                    const kvarena_sequence* sequences, size_t count,
                                                    kvarena_ticket ticket);
/// Takes blocks so that `capacity_tokens` fit without another allocation. The length stays. The
/// default urgency is admission. Returns what kvarena_step_append returns.
KVARENA_API kvarena_status kvarena_sequence_reserve(kvarena_cache* cache, kvarena_sequence sequence,
                                                    int64_t capacity_tokens, int32_t urgency);
/// Promises blocks so that `capacity_tokens` will fit; they stay available but not to others. With
/// groups the sequence is then not refused in steps that begin one block of a window or a chunk at
/// most. Blocks that forks, pins or hits share with it are not counted. Returns exhausted
/// (reservation) or not_found.
KVARENA_API kvarena_status kvarena_sequence_promise(kvarena_cache* cache, kvarena_sequence sequence,
                                                    int64_t capacity_tokens);
/// Sets when the sequence should have ended, for reports and health; 0: none. Returns not_found.
KVARENA_API kvarena_status kvarena_sequence_set_deadline(kvarena_cache* cache,
                                                         kvarena_sequence sequence,
                                                         int64_t deadline_ns);
/// Reads a sequence's figures. Returns not_found.
KVARENA_API kvarena_status kvarena_sequence_ask(kvarena_cache* cache, kvarena_sequence sequence,
                                                kvarena_sequence_info* info);
/// Writes the ids of a sequence's blocks to `blocks` [room], and their number to `count`. Returns
/// invalid_argument (span_size) with the number needed when they do not fit; `count` is set then
/// too. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_blocks(kvarena_cache* cache, kvarena_sequence sequence,
                                                   int32_t* blocks, size_t room, size_t* count);
/// The same of one part of a cache with groups, from the table's block `first_block` on, which is
/// written too: blocks before it were given up. Returns invalid_argument (num_groups) for a part
/// that there is not.
KVARENA_API kvarena_status kvarena_sequence_group_blocks(kvarena_cache* cache,
                                                         kvarena_sequence sequence, int32_t part,
                                                         int32_t* blocks, size_t room,
                                                         size_t* count, int64_t* first_block);
/// Writes the slot of token `index`: block * block_size + offset. Returns invalid_argument
/// (token_index) or not_found.
KVARENA_API kvarena_status kvarena_sequence_slot(kvarena_cache* cache, kvarena_sequence sequence,
                                                 int64_t index, int64_t* slot);
/// Writes the block tables of `count` sequences as rows in host memory: row i begins at
/// `tables + i * row_stride`, has `row_stride` entries, and is -1 past the blocks that hold tokens.
/// `lengths` [count] gets their tokens; it may be NULL. Returns not_found, or invalid_argument
/// (span_size) for a stride below a row's blocks.
KVARENA_API kvarena_status kvarena_sequence_tables(kvarena_cache* cache,
                                                   const kvarena_sequence* sequences, size_t count,
                                                   int32_t* tables, size_t row_stride,
                                                   int32_t* lengths);
/// Writes every existing sequence to `sequences` [room], in order of slots, and their number to
/// `count`. Returns invalid_argument (span_size) as kvarena_sequence_blocks does.
KVARENA_API kvarena_status kvarena_sequence_list(kvarena_cache* cache, kvarena_sequence* sequences,
                                                 size_t room, size_t* count);

// Cached prefixes, with prefix_cache in the cache's options; else these calls return
// failed_precondition, except kvarena_sequence_set_retention and kvarena_prefix_advance_clock:
// these need no prefix cache, but return unsupported with the option eviction unless that is
// KVARENA_EVICT_PRIORITY. The tokens of steps are told by kvarena_step_append_tokens. The end of a
// step publishes the blocks that its tokens fill. When work of a step fails, the cache forgets all
// blocks and registers none with a token of that step, until the sequence is cut to its length
// before. docs/howto/share-prefixes.md has a guide.

/// The entries of the lists by reason in kvarena_prefix_stats.
#define KVARENA_MAX_PREFIX_REASONS 16

/// The entries of kvarena_prefix_histogram.
#define KVARENA_PREFIX_BUCKETS 17
/// The entries of the list in kvarena_prefix_use.
#define KVARENA_MAX_GHOSTS 32

/// The longest cached prefix of some tokens.
typedef struct kvarena_prefix {
  uint64_t struct_size;         ///< sizeof(kvarena_prefix)
  int64_t tokens;               ///< covered
  int64_t blocks;               ///< covered to their ends
  uint64_t removal_serial;      ///< stop evicted: the removal, as kvarena_prefix_stats counts them
  int32_t pending_block;        ///< stop not yet published: the block that is waited for; else -1
  int32_t stop;                 ///< kvarena_prefix_stop
  int32_t removal;              ///< stop evicted: kvarena_prefix_removal
  int32_t reserved;             ///< 0
  int64_t registered_tokens;    ///< covered in the group of layers that keeps all tokens; more than
                                ///< `tokens` only with stop other group
  int64_t part_tokens;          ///< of `tokens`, those of a part of one more block: with
                                ///< prefix_share_parts, unless the pool lacks a block for its copy
  kvarena_sequence removal_by;  ///< stop evicted: the sequence that took the block, if it has the
                                ///< salt of the query and that is still known; else 0
  int64_t removal_time;         ///< removal evicted: the time of kvarena_prefix_advance_clock when
                                ///< the block was taken; else 0, also when it is not known any more
} kvarena_prefix;

/// Figures of a prefix cache. Counters count since create.
typedef struct kvarena_prefix_stats {
  uint64_t struct_size;    ///< sizeof(kvarena_prefix_stats)
  int64_t registered;      ///< blocks that are known now
  int64_t published;       ///< of these, those that can be found
  uint64_t registrations;  ///< blocks ever known
  uint64_t removals;       ///< blocks that ceased to be known
  uint64_t queries;        ///< sequences created with tokens, and calls of the functions adopt
  uint64_t query_tokens;   ///< tokens of these
  uint64_t hits;           ///< queries of which at least a block was covered
  uint64_t hit_blocks;     ///< blocks covered
  uint64_t hit_tokens;     ///< tokens covered
  uint64_t duplicates;     ///< blocks computed while an equal one was known
  uint64_t shared;         ///< of these, those given up for the known one
  uint64_t broken_chains;  ///< sequences that stopped to register blocks
  uint64_t stops[KVARENA_MAX_PREFIX_REASONS];        ///< queries by kvarena_prefix_stop
  uint64_t removals_by[KVARENA_MAX_PREFIX_REASONS];  ///< removals by kvarena_prefix_removal
} kvarena_prefix_stats;

/// Counts of times. Entry i counts those above 4^(i-1) and up to 4^i; the first one also 0, the
/// last one all others too. Times are in registrations: the blocks that the cache has registered
/// meanwhile, which need no clock.
typedef struct kvarena_prefix_histogram {
  uint64_t counts[KVARENA_PREFIX_BUCKETS];  ///< by entry
  uint64_t sum;                             ///< of all times
} kvarena_prefix_histogram;

/// What a cache of another size or policy would find. Ghosts have only ids.
typedef struct kvarena_ghost {
  int32_t policy;      ///< kvarena_eviction
  int32_t half_pools;  ///< its size in halves of the pool: 2 is as large as the pool
  int64_t hits_ppm;    ///< hits of a million block references
} kvarena_ghost;

/// How a prefix cache is used, since create.
typedef struct kvarena_prefix_use {
  uint64_t struct_size;               ///< sizeof(kvarena_prefix_use)
  kvarena_prefix_histogram lifetime;  ///< of blocks that could be found, until they go. Of a pool
                                      ///< of more than 1,024 blocks each 16th is counted
  kvarena_prefix_histogram idle;  ///< of an evicted block, since it was last registered or found
  kvarena_prefix_histogram reuse_gap;  ///< of a block that is found, the same
  int64_t ghost_sampled_ppm;           ///< of a million block ids, those that the ghosts see
  uint64_t ghost_references;           ///< block references observed
  int64_t num_ghosts;                  ///< used entries of `ghosts`; 0 without prefix_ghost_blocks
  kvarena_ghost ghosts[KVARENA_MAX_GHOSTS];  ///< by policy and size
} kvarena_prefix_use;

/// Bounds of the blocks of one salt.
typedef struct kvarena_salt_limits {
  uint64_t struct_size;  ///< sizeof(kvarena_salt_limits)
  int64_t floor_blocks;  ///< so many blocks, those that the salt gave up last, are never evicted
                         ///< for others. They count as referenced by a holder "salt floor". The
                         ///< salt's own sequences use them when they lack blocks, the oldest first
  int64_t cap_blocks;    ///< at so many registered blocks a new one takes the place of the salt's
                         ///< oldest that nobody uses. Blocks in use may exceed it. 0: none
} kvarena_salt_limits;

/// The account of a salt.
typedef struct kvarena_salt_info {
  uint64_t struct_size;  ///< sizeof(kvarena_salt_info)
  int64_t registered;    ///< blocks that its sequences have registered
  int64_t kept;          ///< of these, those that the floor keeps
  int64_t sequences;     ///< that exist
  int64_t floor_blocks;  ///< as set
  int64_t cap_blocks;    ///< as set; 0: none
} kvarena_salt_info;

/// Returns the name of a kvarena_prefix_stop, such as "never_seen"; "unknown_stop" for others.
KVARENA_API const char* kvarena_name_of_prefix_stop(int32_t stop);
/// Returns the name of a kvarena_prefix_removal; "unknown_removal" for others.
KVARENA_API const char* kvarena_name_of_prefix_removal(int32_t removal);
/// Returns the name of a kvarena_prefix_event_kind; "unknown_event" for others.
KVARENA_API const char* kvarena_name_of_prefix_event(int32_t kind);
/// Finds the longest cached prefix of the prompt's tokens, under its salt and extra keys. Changes
/// nothing. Returns invalid_argument (pointer, num_tokens, or the options of the keys). O(blocks).
KVARENA_API kvarena_status kvarena_prefix_match(kvarena_cache* cache,
                                                const kvarena_sequence_options* prompt,
                                                kvarena_prefix* prefix);
/// Writes what the create or the last adopt of a sequence has found. Returns not_found.
KVARENA_API kvarena_status kvarena_sequence_prefix(kvarena_cache* cache, kvarena_sequence sequence,
                                                   kvarena_prefix* prefix);
/// Makes an empty sequence begin with the longest cached prefix of the tokens. Returns what
/// kvarena_sequence_create returns, failed_precondition (sequence) for one that is not empty, or
/// not_found. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_adopt(kvarena_cache* cache, kvarena_sequence sequence,
                                                  const int32_t* tokens, size_t count,
                                                  kvarena_prefix* prefix);
/// Tells the next tokens of a sequence that no step has told: of an import, or when a step ran
/// before they were known. They have been written. Publishes the blocks that they fill. Returns
/// invalid_argument (num_tokens) for more than the sequence has, failed_precondition (sequence) for
/// an import that is not published, or (step) between append and the end of a step. O(tokens).
KVARENA_API kvarena_status kvarena_sequence_register(kvarena_cache* cache,
                                                     kvarena_sequence sequence,
                                                     const int32_t* tokens, size_t count);
/// Forgets the cached blocks of a sequence, and all behind them, also those of others. Returns
/// not_found. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_forget(kvarena_cache* cache, kvarena_sequence sequence);
/// Says how long the cached blocks with a token of a range should stay: `priority` from 0 (evicted
/// first) to 100, until `expires_at` of kvarena_prefix_advance_clock (0: for ever). The range may
/// begin and end inside a block. Blocks that the sequence has not filled are not cached: they are
/// left out. `blocks` (may be NULL) gets the number of the others. Returns unsupported
/// with the option eviction unless that is KVARENA_EVICT_PRIORITY, invalid_argument (token_index,
/// num_tokens, or the option), or not_found. O(blocks).
KVARENA_API kvarena_status kvarena_sequence_set_retention(kvarena_cache* cache,
                                                          kvarena_sequence sequence,
                                                          int64_t first_token, int64_t num_tokens,
                                                          int32_t priority, int64_t expires_at,
                                                          int64_t* blocks);
/// Sets the clock of retentions, which begins at 0, in any unit of the engine. Returns unsupported
/// with the option eviction, or invalid_argument with the option clock for a time before the
/// present one.
KVARENA_API kvarena_status kvarena_prefix_advance_clock(kvarena_cache* cache, int64_t now);
/// Forgets all cached blocks of a salt. O(num_blocks).
KVARENA_API kvarena_status kvarena_prefix_forget_salt(kvarena_cache* cache, uint64_t salt);
/// Forgets all cached blocks. O(num_blocks).
KVARENA_API kvarena_status kvarena_prefix_forget_all(kvarena_cache* cache);
/// Reads the figures; all 0 without a prefix cache.
KVARENA_API kvarena_status kvarena_prefix_ask(kvarena_cache* cache, kvarena_prefix_stats* stats);
/// Reads how the prefix cache is used; all 0 without one.
KVARENA_API kvarena_status kvarena_prefix_ask_use(kvarena_cache* cache, kvarena_prefix_use* use);
/// Reads both as of the last publication. Either pointer may be NULL. Any thread.
KVARENA_API kvarena_status kvarena_prefix_snapshot(kvarena_cache* cache,
                                                   kvarena_prefix_stats* stats,
                                                   kvarena_prefix_use* use);
/// Bounds what the prefix cache keeps for a salt. Opens an account if the salt has none; blocks and
/// sequences that exist then are not of the account. A lower floor lets blocks go at once; a higher
/// one keeps what is given up from then on. `limits` NULL: none. Returns invalid_argument
/// with the option floor_blocks or cap_blocks, exhausted (capacity, holder), or failed_precondition
/// with the option max_accounts without prefix_accounts. O(1), and O(1) a block let go.
KVARENA_API kvarena_status kvarena_salt_set_limits(kvarena_cache* cache, uint64_t salt,
                                                   const kvarena_salt_limits* limits);
/// Reads the account of a salt. Returns not_found (holder). O(1).
KVARENA_API kvarena_status kvarena_salt_ask(kvarena_cache* cache, uint64_t salt,
                                            kvarena_salt_info* info);
/// Ends the account of a salt that has no registered blocks (kvarena_prefix_forget_salt) and no
/// sequences. Returns not_found (holder), or failed_precondition (sequence). O(1).
KVARENA_API kvarena_status kvarena_salt_close(kvarena_cache* cache, uint64_t salt);

/// What a pin holds, and who holds it.
typedef struct kvarena_pin_options {
  uint64_t struct_size;  ///< sizeof(kvarena_pin_options)
  int64_t first_block;   ///< of the sequence's table
  int64_t num_blocks;    ///< from there on; 0: all that hold tokens
  uint64_t owner;        ///< for whom; 0: the owner of the sequence
  const char* purpose;   ///< for reports, such as "transfer"; copied; NULL: "pin"
  int64_t since_ns;      ///< for reports; 0: unknown
  int64_t deadline_ns;   ///< for reports; 0: none
} kvarena_pin_options;

/// Holds blocks of a sequence that hold tokens, by a holder of its own: the blocks stay, with their
/// bytes, when the sequence is cut or destroyed or grows. `options` may be NULL. Returns
/// invalid_argument (block_index, num_blocks) for blocks that hold no tokens, exhausted (holder,
/// table_page), not_found, or failed_precondition (sequence) for an import. O(blocks).
KVARENA_API kvarena_status kvarena_pin_create(kvarena_cache* cache, kvarena_sequence sequence,
                                              const kvarena_pin_options* options,
                                              kvarena_holder* pin);
/// Writes the ids of a pin's blocks, as kvarena_sequence_blocks does. Returns not_found (holder).
KVARENA_API kvarena_status kvarena_pin_blocks(kvarena_cache* cache, kvarena_holder pin,
                                              int32_t* blocks, size_t room, size_t* count);
/// Releases what a pin holds and ends it, against a ticket (0: none). Returns not_found (holder,
/// ticket), or exhausted (fence_entry). O(blocks).
KVARENA_API kvarena_status kvarena_pin_release(kvarena_cache* cache, kvarena_holder pin,
                                               kvarena_ticket ticket);

// ---- a step -------------------------------------------------------------------------------------
// kvarena_step_begin; kvarena_step_append; for each layer kvarena_step_write and
// kvarena_step_attend; kvarena_step_end. Work is asynchronous: memory given to write and attend
// must stay valid until kvarena_cache_synchronize, or steps_in_flight steps later. A failed append
// changes nothing: preempt a sequence and append again in the same step.

/// Options of a step.
typedef struct kvarena_step_options {
  uint64_t struct_size;  ///< sizeof(kvarena_step_options)
  void* stream;          ///< the stream of the step's work; NULL: that of the last step. Another
                         ///< stream waits for the last step's work by an event
} kvarena_step_options;

/// The growth of one sequence.
typedef struct kvarena_demand {
  kvarena_sequence sequence;  ///< an existing sequence, at most once in a call
  int32_t num_tokens;         ///< new tokens, 0 or more
  int32_t urgency;            ///< kvarena_urgency; default: the call's
} kvarena_demand;

/// What an append made: the batch, in the order of the demands.
typedef struct kvarena_batch {
  uint64_t struct_size;         ///< sizeof(kvarena_batch)
  const int64_t* slots;         ///< [num_tokens] the slot of each new token; until the step ends.
                                ///< NULL in a recording
  const int64_t* device_slots;  ///< the same in device memory, in the order of the step's stream
  int64_t num_tokens;           ///< new tokens: rows of key, value, q, out
  int64_t num_copies;           ///< copies on write that were queued
  int64_t new_blocks;           ///< blocks taken
} kvarena_batch;

/// What a step put on the device, for attention kernels of the engine's own, with the planes of
/// kvarena_cache_plane. Device memory, written in the order of the step's stream; on the host
/// device, host memory. Rows are in the order of the demands. The table of row r begins at
/// `block_tables + row_offsets[r]`, which is row_slots[r] * table_stride; tables of different
/// lengths lie anywhere in the array. A kernel that wants rows at equal distances gathers them by
/// row_slots, or takes kvarena_sequence_tables. On CUDA the pointers are the same in every step and
/// in a recording, where rows behind those of the step that runs are skipped: row_slots -1, length
/// 0, no new token, slots -1. Valid until the step or the recording ends.
typedef struct kvarena_device_batch {
  uint64_t struct_size;         ///< sizeof(kvarena_device_batch)
  const int32_t* block_tables;  ///< block ids; entries behind the blocks of a row, and in front of
                                ///< its kept ones, have no meaning
  int64_t table_stride;         ///< entries
  const int32_t* row_slots;     ///< [num_rows] in units of table_stride; -1: skip
  const int64_t* row_offsets;   ///< [num_rows] entries
  const int32_t* lengths;       ///< [num_rows] tokens, with the new ones
  const int32_t* num_blocks;    ///< [num_rows] blocks that hold them
  const int64_t* q_offsets;     ///< [num_rows + 1] first new token of each row
  const int64_t* slots;         ///< [num_tokens] the slot of each new token; -1: skip
  int64_t num_tokens;           ///< new tokens; in a recording of the largest step
  int32_t num_rows;             ///< rows; in a recording of the largest step
  int32_t max_length_tokens;    ///< of a row; in a recording the most that any step may have
  int32_t max_new_tokens;       ///< of a row
  int32_t num_table_slots;      ///< block_tables has so many times table_stride entries
} kvarena_device_batch;

/// The shape of a recorded decode step.
typedef struct kvarena_recorded_step {
  uint64_t struct_size;     ///< sizeof(kvarena_recorded_step)
  int32_t num_rows;         ///< sequences at most, 1 .. max_batch_rows
  int32_t tokens_per_row;   ///< new tokens of each, 1 .. max_decode_tokens; 0: 1
  int32_t shares_prefixes;  ///< 1: each replay looks for sequences that begin with the same blocks;
                            ///< not read in a cache with groups
  int32_t row_tokens;       ///< tokens that the sequences will have, about, which attention is then
                            ///< fastest for; 0: unknown
} kvarena_recorded_step;

/// K and V of the step's new tokens for one layer. Pointers are to memory of the cache's device.
typedef struct kvarena_write_args {
  uint64_t struct_size;              ///< sizeof(kvarena_write_args)
  const void* key;                   ///< [num_tokens, num_kv_heads, head_dim_k]
  const void* value;                 ///< [num_tokens, num_kv_heads, head_dim_v]
  int64_t key_token_stride_bytes;    ///< bytes from one token to the next; 0: dense
  int64_t value_token_stride_bytes;  ///< bytes from one token to the next; 0: dense
  int32_t layer;                     ///< 0-based
  int32_t dtype;                     ///< of key and value: F32, F16 or BF16
  const float* key_scale;            ///< CUDA, fp8 K: [num_kv_heads] or one; NULL: 1
  const float* value_scale;          ///< CUDA, fp8 V: as key_scale
  int32_t scale_per_head;            ///< 1: one scale for each head
  int32_t reserved;                  ///< 0
} kvarena_write_args;

/// The slots of a group of states in a step, by row of the demands: docs/states.md. Valid until the
/// step ends. Kernels take the lists in memory of the device, in the order of the step's stream; on
/// the host device they are those in host memory. On CUDA their addresses are the same in every
/// step. In a recording there are only these.
typedef struct kvarena_state_slots {
  uint64_t struct_size;          ///< sizeof(kvarena_state_slots)
  const int32_t* read;           ///< [num_rows, num_parts] before the step; -1: zeros
  const int32_t* write;          ///< [num_rows, num_parts] after it; -1: the row has no new tokens
  const int32_t* extra_offsets;  ///< [num_rows + 1] the extras of row r begin at entry r
  const int32_t* extra_tokens;   ///< [num_extras] after which new token of the row, from 0
  const int32_t* extra_slots;    ///< [num_extras, num_parts] where that state is to be written too
  int32_t num_rows;              ///< demands of the step
  int32_t num_extras;            ///< states inside the step; the kernel must write all of them
  int32_t num_parts;             ///< slots of one state
  int32_t part;                  ///< the part of the pool, for kvarena_sequence_group_blocks
  const int32_t* device_read;    ///< as `read`, for kernels; rows behind those of a step have -1
  const int32_t* device_write;   ///< as `write`; the same
  const int32_t* device_extra_offsets;  ///< as `extra_offsets`
  const int32_t* device_extra_tokens;   ///< as `extra_tokens`
  const int32_t* device_extra_slots;    ///< as `extra_slots`
  int32_t max_extras;                   ///< that any step has
  int32_t reserved;                     ///< 0
} kvarena_state_slots;

/// K and V of a sequence's encoder for one layer of a cross group.
typedef struct kvarena_write_cross_args {
  uint64_t struct_size;              ///< sizeof(kvarena_write_cross_args)
  kvarena_sequence sequence;         ///< of the step
  const void* key;                   ///< [cross_tokens, num_kv_heads, head_dim_k]
  const void* value;                 ///< [cross_tokens, num_kv_heads, head_dim_v]
  int64_t key_token_stride_bytes;    ///< bytes from one token to the next; 0: dense
  int64_t value_token_stride_bytes;  ///< bytes from one token to the next; 0: dense
  int32_t layer;                     ///< 0-based
  int32_t dtype;                     ///< of key and value: F32, F16 or BF16
  const float* key_scale;            ///< CUDA, fp8 K: as in kvarena_write_args
  const float* value_scale;          ///< CUDA, fp8 V: as key_scale
  int32_t scale_per_head;            ///< 1: one scale for each head
  int32_t reserved;                  ///< 0
} kvarena_write_cross_args;

/// Keys of a sparse-attention index of the step's new tokens for one layer.
typedef struct kvarena_write_index_args {
  uint64_t struct_size;            ///< sizeof(kvarena_write_index_args)
  const void* key;                 ///< [num_tokens, index_dim]
  int64_t key_token_stride_bytes;  ///< bytes from one token to the next; 0: dense
  int32_t layer;                   ///< 0-based
  int32_t dtype;                   ///< of key: F32, F16 or BF16
} kvarena_write_index_args;

/// Attention of the step's new tokens over one layer.
typedef struct kvarena_attend_args {
  uint64_t struct_size;            ///< sizeof(kvarena_attend_args)
  const void* q;                   ///< [num_tokens, num_q_heads, head_dim_k]
  void* out;                       ///< [num_tokens, num_q_heads, head_dim_v]
  int64_t q_token_stride_bytes;    ///< bytes from one token to the next; 0: dense
  int64_t out_token_stride_bytes;  ///< bytes from one token to the next; 0: dense
  float* lse;                      ///< [num_tokens, num_q_heads] log-sum-exp; or NULL
  const float* sinks;              ///< [num_q_heads] logits of the attention sinks; or NULL
  const uint64_t* tree_mask;       ///< [num_tokens] draft trees: bit j of a token says whether it
                                   ///< sees new token j of its row; NULL: causal
  int32_t layer;                   ///< 0-based
  int32_t q_dtype;                 ///< F32, F16 or BF16
  int32_t out_dtype;               ///< F32, F16 or BF16
  int32_t windowed;                ///< 1: see only the last window_tokens of the options
  float scale;                     ///< of the logits; 0: 1 / sqrt(head_dim_k)
  float soft_cap;                  ///< of the logits; 0: none
  const float* key_scale;          ///< CUDA, fp8 K: the same as for the write
  const float* value_scale;        ///< CUDA, fp8 V: the same as for the write
  int32_t scale_per_head;          ///< 1: one scale for each head
  int32_t kv_is_written;           ///< 1: the caller's own kernels wrote K and V of the new tokens
} kvarena_attend_args;

/// Begins a step. `options` may be NULL. Waits for step n - steps_in_flight and retires the fences
/// of that step and older ones. Returns failed_precondition (step) inside a step, device_error
/// (step), once, when the device did not take a step (`subject` .. `required` are the steps lost),
/// not_found (stream), unsupported (device) for a stream that is not the device's, or
/// failed_precondition (stream) for another stream while one of the two is captured.
KVARENA_API kvarena_status kvarena_step_begin(kvarena_cache* cache,
                                              const kvarena_step_options* options);
/// Grows the sequences of the step, queues copies on write, and plans attention. The rows are the
/// demands. Succeeds once in a step. The default urgency is growth. Returns exhausted (block,
/// table_page), context_length_exceeded, not_found, duplicate_argument, invalid_argument
/// (num_tokens, urgency), limit_exceeded (a smaller step fits), failed_precondition (step; or
/// content: a sequence that is being imported), or device_error.
KVARENA_API kvarena_status kvarena_step_append(kvarena_cache* cache, const kvarena_demand* demands,
                                               size_t count, int32_t urgency, kvarena_batch* batch);
/// Does what kvarena_step_append does, or with a `shape` (NULL: none) what
/// kvarena_step_append_recorded does, and tells the prefix cache the new tokens: `tokens`
/// [num_tokens, the sum over the demands] has them demand by demand. A demand whose first entry is
/// negative is not told; its sequence then registers no more blocks. Also returns invalid_argument
/// (span_size) unless there are as many tokens.
KVARENA_API kvarena_status kvarena_step_append_tokens(kvarena_cache* cache,
                                                      const kvarena_recorded_step* shape,
                                                      const kvarena_demand* demands, size_t count,
                                                      const int32_t* tokens, size_t num_tokens,
                                                      int32_t urgency, kvarena_batch* batch);
/// Writes the index of the demand at which the last append failed, or -1.
KVARENA_API kvarena_status kvarena_step_failed_demand(kvarena_cache* cache, int64_t* index);
/// Writes what the step, or the recording, put on the device. Returns failed_precondition (step)
/// without an append.
KVARENA_API kvarena_status kvarena_step_device_batch(kvarena_cache* cache,
                                                     kvarena_device_batch* batch);
/// Queues the write of K and V of the new tokens of one layer. Returns invalid_argument (layer,
/// pointer, alignment, ...), unsupported (dtype), or failed_precondition (step).
KVARENA_API kvarena_status kvarena_step_write(kvarena_cache* cache, const kvarena_write_args* args);
/// Writes what the step put on the device for one part of a cache with groups
/// (kvarena_cache_part). A row has the entries of its kept blocks only. Returns invalid_argument
/// (num_groups) too.
KVARENA_API kvarena_status kvarena_step_group_batch(kvarena_cache* cache, int32_t part,
                                                    kvarena_device_batch* batch);
/// Writes the slots of the `index`-th group of states, counted from 0, of the step or the
/// recording. Returns failed_precondition (step) without an append, or invalid_argument
/// (num_groups).
KVARENA_API kvarena_status kvarena_step_states(kvarena_cache* cache, int32_t index,
                                               kvarena_state_slots* slots);
/// Queues the write of K and V of a sequence's encoder, for a layer of a cross group: once, or
/// again when they changed. The sequence is in the step. Returns what kvarena_step_write returns,
/// and not_found (sequence).
KVARENA_API kvarena_status kvarena_step_write_cross(kvarena_cache* cache,
                                                    const kvarena_write_cross_args* args);
/// Queues the write of the new tokens' keys of a sparse-attention index for one layer. Each becomes
/// FP8_E4M3 with a power of two as its scale (docs/reference/c-api.md). Returns what
/// kvarena_step_write returns; invalid_argument (layer) for a layer without an index of its own.
KVARENA_API kvarena_status kvarena_step_write_index(kvarena_cache* cache,
                                                    const kvarena_write_index_args* args);
/// Queues attention of the new tokens of one layer over all tokens so far. Returns what
/// kvarena_step_write returns, and failed_precondition (layer) when K and V were not written.
KVARENA_API kvarena_status kvarena_step_attend(kvarena_cache* cache,
                                               const kvarena_attend_args* args);
/// Marks the end of the step's work and publishes its figures. Does not wait.
KVARENA_API kvarena_status kvarena_step_end(kvarena_cache* cache);
/// Gives the step up: its sequences have their old tokens again. After
/// kvarena_step_append_recorded it waits for the stream.
KVARENA_API kvarena_status kvarena_step_abort(kvarena_cache* cache);

/// Begins a recording: call it between steps while the caller captures the stream of `options`
/// (NULL: that of the last step) into a CUDA graph. Until kvarena_recording_end, write and attend
/// record the layers of a decode step of this shape. `options` may be NULL. `batch` gets the padded
/// batch. Returns unsupported (device) on the host, invalid_argument (num_sequences, num_tokens),
/// or failed_precondition (stream) without a capture, (step) inside a step.
KVARENA_API kvarena_status kvarena_recording_begin(kvarena_cache* cache,
                                                   const kvarena_recorded_step* shape,
                                                   const kvarena_step_options* options,
                                                   kvarena_batch* batch);
/// Ends the recording, which holds the whole step. Returns failed_precondition (step).
KVARENA_API kvarena_status kvarena_recording_end(kvarena_cache* cache);
/// Does what kvarena_step_append does, for a step that a graph of `shape` runs. Launch the graph on
/// the step's stream exactly once before kvarena_step_end; when the launch fails, abort the step.
/// Also returns invalid_argument (num_sequences, num_tokens) for demands that do not have the
/// shape.
KVARENA_API kvarena_status kvarena_step_append_recorded(kvarena_cache* cache,
                                                        const kvarena_recorded_step* shape,
                                                        const kvarena_demand* demands, size_t count,
                                                        int32_t urgency, kvarena_batch* batch);

/// Publishes between steps, for an engine that goes idle, and retires the fences of steps, whose
/// work it waits for. Returns failed_precondition (step) inside a step.
KVARENA_API kvarena_status kvarena_cache_publish(kvarena_cache* cache);
/// Waits for all work queued so far and returns its first failure, once.
KVARENA_API kvarena_status kvarena_cache_synchronize(kvarena_cache* cache);
/// Writes the stream of the present or last step.
KVARENA_API kvarena_status kvarena_cache_stream(kvarena_cache* cache, void** stream);

// ---- tickets: work on other streams -------------------------------------------------------------
// A ticket protects blocks that are released against it until the ticket retires. Work that reads a
// sequence which grows meanwhile must read a fork of it.

/// Opens a step's ticket for the work queued so far on `stream`, for short work: step_begin retires
/// it steps_in_flight steps later and waits for the work if it has to. Returns exhausted (ticket),
/// not_found (stream), or invalid_argument (pointer) for NULL.
KVARENA_API kvarena_status kvarena_ticket_fence(kvarena_cache* cache, void* stream,
                                                kvarena_ticket* ticket);
/// Opens an open ticket, for work that takes longer than a few steps. No step waits for it.
/// `stream` NULL: no stream of this device knows the work, such as a write by another machine. The
/// engine retires it (with eager_retire and a stream, the cache does). Returns what
/// kvarena_ticket_fence returns.
KVARENA_API kvarena_status kvarena_ticket_open(kvarena_cache* cache, void* stream,
                                               kvarena_ticket* ticket);
/// Retires an open ticket whose work has ended: the blocks released against it return. Returns
/// not_found (ticket), or failed_precondition (ticket) for a step's ticket and while work of the
/// ticket's stream is under way.
KVARENA_API kvarena_status kvarena_ticket_retire(kvarena_cache* cache, kvarena_ticket ticket);

// ---- questions ----------------------------------------------------------------------------------

/// The figures of a cache or pool. A pool has no tables and no steps; these members are 0 there.
typedef struct kvarena_stats {
  uint64_t struct_size;          ///< sizeof(kvarena_stats)
  int64_t num_blocks;            ///< free + referenced + fenced + evictable + offline
  int64_t free_blocks;           ///< by state
  int64_t referenced;            ///< by state
  int64_t fenced;                ///< by state
  int64_t evictable;             ///< by state
  int64_t offline;               ///< by state
  int64_t reserved_blocks;       ///< promised; still part of free + evictable
  int64_t watermark;             ///< blocks that admission leaves available
  int64_t holders;               ///< registered holders
  int64_t references;            ///< of all holders, without fenced ones
  int64_t fence_entries;         ///< references that wait for tickets
  int64_t peak_allocated;        ///< the most blocks that were not free at one time
  uint64_t holders_ever;         ///< since create
  uint64_t allocations;          ///< blocks handed out since create
  uint64_t releases;             ///< references given up since create
  uint64_t evictions;            ///< evictable blocks handed out since create
  uint64_t exhaustions;          ///< calls refused since create because blocks were missing
  int64_t sequences;             ///< existing sequences
  int64_t tokens;                ///< sum of their lengths
  int64_t entries;               ///< block references in tables
  int64_t waste_tokens;          ///< slots in tables behind the end of their sequence
  int64_t pages_used;            ///< pages of entries in use
  int64_t pages_total;           ///< pages of entries there are
  uint64_t sequences_ever;       ///< since create
  uint64_t copies_on_write;      ///< since create
  int64_t pins;                  ///< existing pins
  int64_t pinned_entries;        ///< block references of pins; not part of `entries`
  int64_t open_tickets;          ///< tickets that have not retired
  kvarena_ticket oldest_ticket;  ///< 0: none is open
  uint64_t step;                 ///< steps ended
  int64_t published_ns;          ///< time of the last publication
  uint64_t steps_lost;           ///< ended steps that the device did not take
  uint64_t missed_launches;      ///< launches that found no step to run
  int64_t awaited_tickets;       ///< open tickets for which a later step waits
  uint64_t audit_blocks;         ///< blocks checked by the audit since create
  uint64_t audit_passes;         ///< complete passes of the audit
  kvarena_status audit_failure;  ///< the first failure of the audit; code 0: none
} kvarena_stats;

/// A holder of blocks, in reports.
typedef struct kvarena_holder_report {
  kvarena_holder holder;  ///< id
  uint64_t number;        ///< the holder's own number, for example its sequence; 0: none
  uint64_t owner;         ///< for whom it holds; 0: unknown
  const char* purpose;    ///< static, or until its holder ends
  int64_t references;     ///< block references that it has
  int64_t reserved;       ///< blocks promised to it
  int64_t since_ns;       ///< as registered
  int64_t deadline_ns;    ///< as registered
} kvarena_holder_report;

/// The length of kvarena_explanation's list of holders.
#define KVARENA_MAX_LARGEST 8

/// The length of kvarena_explanation's list of salts.
#define KVARENA_MAX_SALTS 4

/// Cached blocks of one salt.
typedef struct kvarena_salt_share {
  uint64_t salt;   ///< the tenant
  int64_t blocks;  ///< evictable
} kvarena_salt_share;

/// Why a request fits or does not fit. With groups, figures are pages: all but the counts by state
/// and `num_blocks`, which are blocks of all groups, and references of holders.
typedef struct kvarena_explanation {
  uint64_t struct_size;                                ///< sizeof(kvarena_explanation)
  int64_t requested;                                   ///< blocks asked for
  int64_t usable;                                      ///< blocks that this request may use
  int64_t promised;                                    ///< the part of `usable` that was promised
  int64_t missing;                                     ///< that must come back before it fits
  int64_t num_blocks;                                  ///< of the pool
  int64_t free_blocks;                                 ///< by state
  int64_t referenced;                                  ///< by state
  int64_t fenced;                                      ///< by state
  int64_t evictable;                                   ///< by state
  int64_t offline;                                     ///< by state
  int64_t reserved_blocks;                             ///< promised to holders
  int64_t watermark;                                   ///< blocks that admission leaves available
  int64_t fenced_returning;                            ///< that come back when all tickets retire
  kvarena_ticket oldest_open_ticket;                   ///< the one to wait for; 0: none is open
  int32_t urgency;                                     ///< kvarena_urgency
  int32_t fits;                                        ///< 1: the blocks can be had
  int64_t num_largest;                                 ///< used entries of `largest`
  kvarena_holder_report largest[KVARENA_MAX_LARGEST];  ///< the largest holders
  int64_t returning[KVARENA_MAX_LARGEST];  ///< blocks that come back when largest[0] .. largest[i]
                                           ///< release all that they hold; -1: unknown
  int64_t num_salts;                       ///< used entries of `evictable_salts`
  kvarena_salt_share evictable_salts[KVARENA_MAX_SALTS];  ///< what eviction would give, and from
                                                          ///< whom, most blocks first; with
                                                          ///< accounts the salts that have one
  int64_t evictable_of_others;  ///< evictable blocks of all others; 0 of a pool
} kvarena_explanation;

/// What is known of one block.
typedef struct kvarena_block_info {
  uint64_t struct_size;      ///< sizeof(kvarena_block_info)
  uint32_t generation;       ///< how often it has been handed out before
  uint32_t reference_count;  ///< references that are not fenced
  uint32_t claims;           ///< claims on its bytes; a holder may write in place when it is 1
  int32_t state;             ///< kvarena_block_state
  int32_t content;           ///< kvarena_block_content
  int32_t reserved;          ///< 0
  int64_t priority;          ///< of the retention that is in force; 35: the usual one
  int64_t expires_at;        ///< when the retention ends; 0: never
} kvarena_block_info;

/// K or V of one layer of a pool. In rows order, element (block, head, token, dim) lies at `base +
/// block * block_stride_bytes + head * head_stride_bytes + token * token_stride_bytes + dim *
/// element size`. tile_order.hpp has the arithmetic of the chunked order.
typedef struct kvarena_plane {
  uint64_t struct_size;         ///< sizeof(kvarena_plane)
  void* base;                   ///< block 0
  int64_t block_stride_bytes;   ///< from one block to the next
  int64_t head_stride_bytes;    ///< from one head to the next
  int64_t token_stride_bytes;   ///< from one token to the next; chunked order: 0 is head_dim's
  int64_t num_blocks;           ///< blocks in the pool
  int32_t num_heads;            ///< KV heads
  int32_t head_dim;             ///< elements
  int32_t block_size;           ///< tokens a block
  int32_t dtype;                ///< kvarena_dtype
  int32_t tile_order;           ///< KVARENA_TILE_ROWS or KVARENA_TILE_CHUNKED; 0 is ROWS
  int32_t reserved;             ///< 0
  int64_t scales_offset_bytes;  ///< the f32 scale of (block, head, token) lies at `base + block *
                                ///< block_stride_bytes + scales_offset_bytes + (head * block_size
                                ///< + token) * 4`; 0: no such scales
} kvarena_plane;

/// Reads the figures of now.
KVARENA_API kvarena_status kvarena_cache_stats(kvarena_cache* cache, kvarena_stats* stats);
/// Reads the figures of the last publication. Any thread.
KVARENA_API kvarena_status kvarena_cache_snapshot(kvarena_cache* cache, kvarena_stats* stats);
/// Asks for details (holders, an explanation for one more block) with the next publication. Any
/// thread.
KVARENA_API kvarena_status kvarena_cache_request_details(kvarena_cache* cache);
/// Writes the details of the last publication that had them, as JSON. Any thread.
KVARENA_API kvarena_status kvarena_cache_details_json(kvarena_cache* cache, char* out, size_t size,
                                                      size_t* length);
/// Says whether work is pending: a step has begun and not ended, or tickets of steps are open. Any
/// thread.
KVARENA_API kvarena_status kvarena_cache_has_pending_work(kvarena_cache* cache, bool* pending);
/// Writes the figures of now as JSON: those of kvarena_cache_stats (blocks, tables, tickets,
/// audit), pages and groups (null and an empty list without groups), and prefix_cache (null: it has
/// none).
KVARENA_API kvarena_status kvarena_cache_stats_json(kvarena_cache* cache, char* out, size_t size,
                                                    size_t* length);
/// Says whether `blocks` blocks can be had. The default urgency is growth.
KVARENA_API kvarena_status kvarena_cache_can_allocate(kvarena_cache* cache, int64_t blocks,
                                                      int32_t urgency, bool* can);
/// Writes the blocks that are free or evictable now, those promised to holders and the watermark
/// included, and those when every open ticket up to `ticket` has retired. `ticket` 0: only now.
/// Either pointer may be NULL.
KVARENA_API kvarena_status kvarena_cache_available(kvarena_cache* cache, kvarena_ticket ticket,
                                                   int64_t* now, int64_t* after);
/// Explains why `blocks` more blocks fit or do not fit; with `refused`, why the call that returned
/// this status did not (`blocks` and `urgency` are then not read). The default urgency is growth.
/// Returns invalid_argument (memory_check) for a `refused` that is not exhausted (block,
/// reservation).
KVARENA_API kvarena_status kvarena_cache_explain(kvarena_cache* cache,
                                                 const kvarena_status* refused, int64_t blocks,
                                                 int32_t urgency, kvarena_explanation* explanation);
/// Writes the explanation as JSON.
KVARENA_API kvarena_status kvarena_cache_explain_json(kvarena_cache* cache,
                                                      const kvarena_status* refused, int64_t blocks,
                                                      int32_t urgency, char* out, size_t size,
                                                      size_t* length);
/// Writes the explanation as lines for a person. The last line says what would make it fit.
KVARENA_API kvarena_status kvarena_cache_explain_text(kvarena_cache* cache,
                                                      const kvarena_status* refused, int64_t blocks,
                                                      int32_t urgency, char* out, size_t size,
                                                      size_t* length);
/// Writes the holders to `reports` [room] by id, and their number to `count`: in an idle engine the
/// leak report. Returns invalid_argument (span_size) as kvarena_sequence_blocks does.
KVARENA_API kvarena_status kvarena_cache_holders(kvarena_cache* cache,
                                                 kvarena_holder_report* reports, size_t room,
                                                 size_t* count);
/// Reads one block. Returns not_found (block).
KVARENA_API kvarena_status kvarena_cache_block(kvarena_cache* cache, int32_t block,
                                               kvarena_block_info* info);
/// Figures of the pages of a pool that groups share. Without groups a page is a block.
typedef struct kvarena_page_stats {
  uint64_t struct_size;  ///< sizeof(kvarena_page_stats)
  int64_t page_bytes;    ///< bytes of a page
  int64_t num_pages;     ///< all pages
  int64_t free;          ///< of no group
  int64_t of_groups;     ///< carved into blocks of a group
  int64_t offline;       ///< out of service
  int64_t evictable;     ///< the part of `of_groups` that can be turned: no block is held
  int64_t reserved;      ///< promised to holders; still part of free + evictable
  int64_t watermark;     ///< pages that admission leaves available
  int64_t peak_used;     ///< the most pages that were not free at one time
  uint64_t turned;       ///< pages carved since create
} kvarena_page_stats;

/// Blocks with ids and tables of their own in a cache with groups: a group, or a part of one.
typedef struct kvarena_part_stats {
  uint64_t struct_size;       ///< sizeof(kvarena_part_stats)
  int32_t group;              ///< index in `groups` of the options
  int32_t block_size_tokens;  ///< tokens of a block
  int64_t block_bytes;        ///< bytes of a block
  int64_t blocks_per_page;    ///< in a page that the part has
  int64_t pages;              ///< carved for the part
  int64_t free;               ///< blocks by state
  int64_t referenced;         ///< blocks by state
  int64_t fenced;             ///< blocks by state
  int64_t evictable;          ///< blocks by state
  int64_t offline;            ///< blocks by state
  int64_t stranded;           ///< the part of `free` that only this part of the pool can use now
} kvarena_part_stats;

/// Writes the counts of pages. O(1).
KVARENA_API kvarena_status kvarena_cache_pages(kvarena_cache* cache, kvarena_page_stats* stats);
/// Writes how many parts the pool has: 0 without groups.
KVARENA_API kvarena_status kvarena_cache_num_parts(kvarena_cache* cache, int32_t* num_parts);
/// Writes the counts of one part. Returns invalid_argument (num_groups). O(1).
KVARENA_API kvarena_status kvarena_cache_part(kvarena_cache* cache, int32_t part,
                                              kvarena_part_stats* stats);
/// The states of one recurrent layer of the pool. Plane p of the state in slot s begins at
/// `base + s * slot_stride_bytes + offsets[p]`.
typedef struct kvarena_state_view {
  uint64_t struct_size;           ///< sizeof(kvarena_state_view)
  void* base;                     ///< of slot 0
  int64_t slot_stride_bytes;      ///< from a slot to the next
  int64_t num_slots;              ///< slots in the pool
  int32_t index;                  ///< of kvarena_step_states
  int32_t part;                   ///< which of the num_parts slots of a state has the layer
  int32_t num_planes;             ///< used entries of `offsets` and `planes`
  int32_t reserved;               ///< 0
  int64_t offsets[8];             ///< bytes, multiples of 16
  kvarena_state_plane planes[8];  ///< type and shape, in C order without gaps
} kvarena_state_view;

/// Writes where the states of a recurrent layer lie, for kernels of the engine's own. Returns
/// invalid_argument (layer) for another layer.
KVARENA_API kvarena_status kvarena_cache_state_view(kvarena_cache* cache, int32_t layer,
                                                    kvarena_state_view* view);
/// Writes K, V or the index (kvarena_plane_kind) of one layer of the pool. Returns invalid_argument
/// (layer), for an index also where the layer has none of its own.
KVARENA_API kvarena_status kvarena_cache_plane(kvarena_cache* cache, int32_t layer, int32_t kind,
                                               kvarena_plane* plane);
/// Writes what the cache was made from, with every default filled in: the pool's blocks, the tile
/// order, the limits. Pointers and functions are NULL there, and the key of the hash is 0.
KVARENA_API kvarena_status kvarena_cache_ask(kvarena_cache* cache, kvarena_cache_options* options);
/// Proves the accounts and the tables. Returns invariant_violated. O(blocks + entries).
KVARENA_API kvarena_status kvarena_cache_check(kvarena_cache* cache);

// ---- engines with block tables of their own: layout ---------------------------------------------
// The layout's members of kvarena_cache_options say how a pool lies in memory of the engine's. Any
// thread.

/// The sizes of a pool.
typedef struct kvarena_pool_plan {
  uint64_t struct_size;     ///< sizeof(kvarena_pool_plan)
  int64_t num_blocks;       ///< blocks
  int64_t pool_bytes;       ///< of all blocks
  int64_t slack_bytes;      ///< unused bytes of the budget
  int64_t block_bytes;      ///< of one block, all layers, with padding
  int64_t bytes_per_token;  ///< in all layers, without padding
} kvarena_pool_plan;

/// Computes the blocks that a pool gets. Only the layout and the size of `options` matter. Returns
/// invalid_argument with the option, unsupported (groups) for options with groups, or
/// insufficient_vram.
KVARENA_API kvarena_status kvarena_layout_plan(const kvarena_cache_options* options,
                                               int64_t free_bytes, kvarena_pool_plan* plan);
/// Writes K or V of one layer of a pool of `num_blocks` blocks at `base`. KVARENA_TILE_BEST is rows
/// here. The memory is not read. Returns what kvarena_layout_plan returns for the options, or
/// invalid_argument (layer).
KVARENA_API kvarena_status kvarena_layout_plane(const kvarena_cache_options* options, void* base,
                                                int64_t num_blocks, int32_t layer, int32_t kind,
                                                kvarena_plane* plane);

// ---- engines with block tables of their own: block ids ------------------------------------------
// A pool is the record of who holds which block: ids only, no bytes. A block is named by its id and
// its generation. Calls for many blocks take all or nothing.

/// Options of a pool.
typedef struct kvarena_pool_options {
  uint64_t struct_size;            ///< sizeof(kvarena_pool_options)
  int64_t num_blocks;              ///< 1 .. 2^29 - 1
  int64_t watermark_blocks;        ///< admission leaves at least this many available
  int64_t max_fence_entries;       ///< references that wait for tickets; 0: 64 x num_blocks
  int32_t max_holders;             ///< holders at a time, 1 .. 2^24; 0: 4096
  int32_t max_open_tickets;        ///< tickets at a time, 1 .. 2^30; 0: 64
  const char* name;                ///< for logs and violations; NULL: none
  kvarena_operation_function log;  ///< receives every mutating call; NULL: none
  void* log_user;                  ///< its first argument
  int32_t eviction;                ///< kvarena_eviction of published blocks that nobody holds
  int32_t reserved;                ///< 0
  int32_t prefix_cache;            ///< 1: kvarena_pool_adopt finds blocks by their tokens
  int32_t block_size_tokens;       ///< with a prefix cache: 1 .. 65536; 0: 16
  int32_t prefix_duplicates;       ///< kvarena_duplicates, without share
  int32_t prefix_extra_keys;       ///< extra keys that a sequence may have, 0 .. 31
  int64_t prefix_history;          ///< as in kvarena_cache_options
  uint64_t prefix_key_low;         ///< the same
  uint64_t prefix_key_high;        ///< the same
  int64_t prefix_ghost_blocks;     ///< the same
  kvarena_prefix_event_function prefix_events;  ///< the same; costs 8 bytes a block
  void* prefix_events_user;                     ///< its first argument
} kvarena_pool_options;

/// The facts about a holder.
typedef struct kvarena_holder_options {
  uint64_t struct_size;  ///< sizeof(kvarena_holder_options)
  uint64_t number;       ///< the engine's number for it, for example its sequence
  uint64_t owner;        ///< for whom it holds, for example a request; 0: unknown
  const char* purpose;   ///< for reports; NULL: "engine"
  int64_t since_ns;      ///< when it began to hold; 0: unknown
  int64_t deadline_ns;   ///< when it should end; 0: none
} kvarena_holder_options;

/// The blocks that one holder wants, in a call for many holders.
typedef struct kvarena_holder_demand {
  kvarena_holder holder;  ///< registered, at most once in a call
  uint32_t count;         ///< blocks
  int32_t urgency;        ///< kvarena_urgency; default: the call's
} kvarena_holder_demand;

/// Creates a pool. Returns invalid_argument with the option.
KVARENA_API kvarena_status kvarena_pool_create(const kvarena_pool_options* options,
                                               kvarena_pool** pool);
/// Ends the pool. Returns stale_handle, or failed_precondition (thread) while another thread is
/// inside.
KVARENA_API kvarena_status kvarena_pool_release(kvarena_pool* pool);
/// Registers a holder. `options` may be NULL. Returns exhausted (holder).
KVARENA_API kvarena_status kvarena_pool_open_holder(kvarena_pool* pool,
                                                    const kvarena_holder_options* options,
                                                    kvarena_holder* holder);
/// Ends a holder and its promise. Returns not_found, or failed_precondition (holder) with the
/// references that it still has.
KVARENA_API kvarena_status kvarena_pool_close_holder(kvarena_pool* pool, kvarena_holder holder);
/// Sets when a holder should end, for reports; 0: none. Returns not_found.
KVARENA_API kvarena_status kvarena_pool_set_deadline(kvarena_pool* pool, kvarena_holder holder,
                                                     int64_t deadline_ns);
/// Reads a holder. Returns not_found.
KVARENA_API kvarena_status kvarena_pool_holder(kvarena_pool* pool, kvarena_holder holder,
                                               kvarena_holder_report* report);
/// Writes the holders, as kvarena_cache_holders does.
KVARENA_API kvarena_status kvarena_pool_holders(kvarena_pool* pool, kvarena_holder_report* reports,
                                                size_t room, size_t* count);
/// Promises `blocks` available blocks to a holder, in place of its earlier promise. The default
/// urgency is admission. Returns exhausted (reservation), not_found or invalid_argument.
KVARENA_API kvarena_status kvarena_pool_reserve(kvarena_pool* pool, kvarena_holder holder,
                                                int64_t blocks, int32_t urgency);
/// Takes `count` blocks with one reference each and writes their ids and generations. The last
/// `*evicted` ids (may be NULL) were cached until now: forget what was found in them. The default
/// urgency is growth. Returns exhausted (block), or not_found (holder). O(1) a block.
KVARENA_API kvarena_status kvarena_pool_allocate(kvarena_pool* pool, kvarena_holder holder,
                                                 size_t count, int32_t urgency, int32_t* blocks,
                                                 uint32_t* generations, size_t* evicted);
/// Takes blocks for many holders in one all-or-nothing call, written holder by holder to `blocks`
/// and `generations` [sum of the counts = `room`]. Also returns duplicate_argument (holder) and
/// invalid_argument (span_size).
KVARENA_API kvarena_status kvarena_pool_allocate_each(kvarena_pool* pool,
                                                      const kvarena_holder_demand* demands,
                                                      size_t num_demands, int32_t urgency,
                                                      int32_t* blocks, uint32_t* generations,
                                                      size_t room, size_t* evicted);
/// Takes one more reference on each block. A cached block comes back to life. Returns stale_handle
/// (block), exhausted (block), or not_found (holder, block).
KVARENA_API kvarena_status kvarena_pool_retain(kvarena_pool* pool, kvarena_holder holder,
                                               const int32_t* blocks, const uint32_t* generations,
                                               size_t count);
/// Gives up one reference on each block; with a ticket (0: none) the references stay fenced until
/// it retires. Returns double_release, stale_handle, reference_underflow, not_found, or exhausted
/// (fence_entry). The pool counts how many references a holder has, and not to which blocks: blocks
/// of another holder are not told apart.
KVARENA_API kvarena_status kvarena_pool_free(kvarena_pool* pool, kvarena_holder holder,
                                             const int32_t* blocks, const uint32_t* generations,
                                             size_t count, kvarena_ticket ticket);
/// Sets what is known of a held block's content (kvarena_block_content). A published block becomes
/// evictable instead of free when its last reference goes. Returns failed_precondition (block),
/// stale_handle, double_release, not_found or invalid_argument (content).
KVARENA_API kvarena_status kvarena_pool_set_content(kvarena_pool* pool, int32_t block,
                                                    uint32_t generation, int32_t content);
/// Says how long a published block should stay, as kvarena_sequence_set_retention does. Also
/// returns failed_precondition (block) when it is not published, stale_handle or not_found (block).
KVARENA_API kvarena_status kvarena_pool_set_retention(kvarena_pool* pool, int32_t block,
                                                      uint32_t generation, int32_t priority,
                                                      int64_t expires_at);
/// As kvarena_prefix_advance_clock.
KVARENA_API kvarena_status kvarena_pool_advance_clock(kvarena_pool* pool, int64_t now);
/// Takes a block out of service, at once or when its last reference goes; `offline` (may be NULL)
/// says whether it is offline now. Returns exhausted (reservation) or not_found (block).
KVARENA_API kvarena_status kvarena_pool_quarantine(kvarena_pool* pool, int32_t block,
                                                   bool* offline);
/// Returns an offline block to service. Returns failed_precondition (block) or not_found (block).
KVARENA_API kvarena_status kvarena_pool_restore(kvarena_pool* pool, int32_t block);
/// Opens a ticket for work that is about to be queued. Returns exhausted (ticket).
KVARENA_API kvarena_status kvarena_pool_open_ticket(kvarena_pool* pool, kvarena_ticket* ticket);
/// Retires a ticket whose work has completed. Returns not_found (ticket). O(references).
KVARENA_API kvarena_status kvarena_pool_retire(kvarena_pool* pool, kvarena_ticket ticket);
/// Says whether a ticket is open.
KVARENA_API kvarena_status kvarena_pool_is_open(kvarena_pool* pool, kvarena_ticket ticket,
                                                bool* is_open);
/// Reads one block. Returns not_found (block).
KVARENA_API kvarena_status kvarena_pool_block(kvarena_pool* pool, int32_t block,
                                              kvarena_block_info* info);
/// Reads the figures.
KVARENA_API kvarena_status kvarena_pool_stats(kvarena_pool* pool, kvarena_stats* stats);
/// As kvarena_cache_can_allocate.
KVARENA_API kvarena_status kvarena_pool_can_allocate(kvarena_pool* pool, int64_t blocks,
                                                     int32_t urgency, bool* can);
/// As kvarena_cache_available.
KVARENA_API kvarena_status kvarena_pool_available(kvarena_pool* pool, kvarena_ticket ticket,
                                                  int64_t* now, int64_t* after);
/// As kvarena_cache_explain; `returning` is unknown (-1), because a pool has no tables.
KVARENA_API kvarena_status kvarena_pool_explain(kvarena_pool* pool, const kvarena_status* refused,
                                                int64_t blocks, int32_t urgency,
                                                kvarena_explanation* explanation);
/// As kvarena_cache_explain_json.
KVARENA_API kvarena_status kvarena_pool_explain_json(kvarena_pool* pool,
                                                     const kvarena_status* refused, int64_t blocks,
                                                     int32_t urgency, char* out, size_t size,
                                                     size_t* length);
/// As kvarena_cache_explain_text.
KVARENA_API kvarena_status kvarena_pool_explain_text(kvarena_pool* pool,
                                                     const kvarena_status* refused, int64_t blocks,
                                                     int32_t urgency, char* out, size_t size,
                                                     size_t* length);
/// Proves the accounts, and the prefix cache. Returns invariant_violated. O(num_blocks).
KVARENA_API kvarena_status kvarena_pool_check(kvarena_pool* pool);

// Cached prefixes of a pool, with prefix_cache in its options; else these calls return
// failed_precondition. Full blocks are registered behind a position, which the engine keeps for
// each sequence, and found by others once they are published. The pool sees which blocks are
// evicted, and which are freed before they were published. With a prefix cache
// kvarena_pool_set_content refuses published: failed_precondition.
// docs/howto/share-prefixes.md has a guide.

/// A place in a prefix. A plain value: a fork copies it.
typedef struct kvarena_prefix_position {
  uint64_t struct_size;  ///< sizeof(kvarena_prefix_position)
  int32_t blocks;        ///< registered blocks before it
  int32_t reserved;      ///< 0
  uint64_t state[8];     ///< for the library
} kvarena_prefix_position;

/// Writes the position before the first block of a sequence of this salt.
KVARENA_API kvarena_status kvarena_pool_begin_prefix(kvarena_pool* pool, uint64_t salt,
                                                     kvarena_prefix_position* position);
/// Finds the longest cached prefix of the prompt's tokens, under its salt and extra keys; the
/// prompt's other members are not read. Writes the first `room` blocks of it. Changes nothing.
/// Returns what kvarena_prefix_match returns. O(blocks).
KVARENA_API kvarena_status kvarena_pool_match(kvarena_pool* pool,
                                              const kvarena_sequence_options* prompt,
                                              int32_t* blocks, uint32_t* generations, size_t room,
                                              kvarena_prefix* prefix);
/// Does the same, takes a reference on each block for `holder`, and writes the position behind
/// them. (num_tokens - 1) / block_size entries are enough room. Returns what kvarena_pool_match
/// returns, invalid_argument (span_size) for too little room, failed_precondition (content) with
/// the duplicates rule wait, not_found (holder), or exhausted (block).
KVARENA_API kvarena_status kvarena_pool_adopt(kvarena_pool* pool, kvarena_holder holder,
                                              const kvarena_sequence_options* prompt,
                                              int32_t* blocks, uint32_t* generations, size_t room,
                                              kvarena_prefix* prefix,
                                              kvarena_prefix_position* position);
/// Registers `count` blocks behind a position, and moves it behind them. The prompt's tokens fill
/// these blocks; its extra keys are those of the whole sequence; its other members are not read. A
/// block whose equal is registered is not registered itself: the position goes on behind that one.
/// `registered` (may be NULL) gets the number of the others. Returns not_found (sequence) for a
/// position of another pool, stale_handle (block) for one behind a block that is not registered any
/// more (begin anew, with all blocks), not_found, stale_handle or duplicate_argument (block),
/// failed_precondition (block) for one that nobody holds or that has another content, or
/// invalid_argument (num_tokens, span_size, or the option). O(blocks).
KVARENA_API kvarena_status kvarena_pool_register(kvarena_pool* pool,
                                                 kvarena_prefix_position* position,
                                                 const kvarena_sequence_options* prompt,
                                                 const int32_t* blocks, const uint32_t* generations,
                                                 size_t count, size_t* registered);
/// Says that blocks have been written, or will be in the order of the home stream: those that are
/// registered are found from now on. Passes over others. `published` (may be NULL) gets the number.
/// Returns not_found or stale_handle (block).
KVARENA_API kvarena_status kvarena_pool_publish(kvarena_pool* pool, const int32_t* blocks,
                                                const uint32_t* generations, size_t count,
                                                size_t* published);
/// Forgets blocks, and all behind them, also those of others: they are about to be rewritten, or
/// were not written after all. Returns not_found (block).
KVARENA_API kvarena_status kvarena_pool_forget(kvarena_pool* pool, const int32_t* blocks,
                                               size_t count);
/// Forgets all blocks of a salt. O(num_blocks).
KVARENA_API kvarena_status kvarena_pool_forget_salt(kvarena_pool* pool, uint64_t salt);
/// Forgets all blocks. O(num_blocks).
KVARENA_API kvarena_status kvarena_pool_forget_all(kvarena_pool* pool);
/// Reads the figures, and how the prefix cache is used. Either pointer may be NULL.
KVARENA_API kvarena_status kvarena_pool_ask_prefix(kvarena_pool* pool, kvarena_prefix_stats* stats,
                                                   kvarena_prefix_use* use);

// ---- engines with block tables of their own: kernels --------------------------------------------
// The handle owns the workspaces of one shape on one device. On CUDA, calls queue work on `stream`
// (never NULL) and can be captured; nothing allocates after create. On the host, calls run in the
// call and `stream` is not read. For each step: kvarena_kernels_schedule once, then for each layer
// kvarena_kernels_write and kvarena_kernels_attend. One step at a time uses the handle's
// workspaces, in the order of its streams.

/// The largest step that the kernels serve.
typedef struct kvarena_kernels_options {
  uint64_t struct_size;            ///< sizeof(kvarena_kernels_options)
  int32_t num_kv_heads;            ///< KV heads
  int32_t head_dim_k;              ///< elements
  int32_t head_dim_v;              ///< elements; 0: head_dim_k
  int32_t dtype;                   ///< kvarena_dtype of the pool
  int32_t block_size_tokens;       ///< tokens a block; 0: 16
  int32_t tile_order;              ///< of the pool; KVARENA_TILE_BEST is rows
  int32_t num_q_heads;             ///< a multiple of num_kv_heads
  int32_t max_rows;                ///< sequences of a step, 1 .. 2^20
  int64_t max_q_tokens;            ///< new tokens of a step
  int64_t num_blocks;              ///< blocks of the pool
  int64_t batch_invariant_tokens;  ///< as in kvarena_cache_options
  int32_t max_decode_tokens;       ///< 1 .. 16; 0: 1
  int32_t max_shared_rows;         ///< rows that may read leading blocks together; 0: none
  int32_t window_tokens;           ///< of calls with `windowed`; 0: none
  int32_t draft_trees;             ///< 1: tree_mask may be set
  int32_t num_threads;             ///< host: 0: one a core
  int32_t value_in_key;            ///< 1: V is the leading head_dim_v elements of K: a latent
} kvarena_kernels_options;

/// The rows of a step: the engine's own tables. On CUDA every array is device memory, except
/// `query_tokens`; on the host all are host memory. They must stay valid until the step's work has
/// completed. The table of row r begins at tables + row_offsets[r].
typedef struct kvarena_tables {
  uint64_t struct_size;         ///< sizeof(kvarena_tables)
  const int32_t* tables;        ///< block ids
  int64_t table_stride;         ///< entries from one table to the next
  const int64_t* row_offsets;   ///< [num_rows] row_slots[r] * table_stride, or 0
  const int32_t* row_slots;     ///< [num_rows] CUDA: the table of each row; -1: skip the row
  const int32_t* lengths;       ///< [num_rows] tokens of each sequence, with the new ones
  const int64_t* q_offsets;     ///< [num_rows + 1] first new token of each row
  const int32_t* query_tokens;  ///< [num_rows] CUDA: new tokens of each row, in host memory
  int64_t total_q;              ///< new tokens of all rows, or an upper bound
  int32_t num_rows;             ///< rows
  int32_t shares_prefixes;      ///< 1: rows that begin with the same blocks read these together
  const int32_t* host_lengths;  ///< [num_rows] CUDA: `lengths` in host memory, or NULL. Steps of
                                ///< many short rows are faster with them
} kvarena_tables;

/// Creates kernels for a shape: allocates and prepares the workspaces. Returns invalid_argument
/// with the option, unsupported (dtype, tile_order), or what kvarena_memory_allocate returns.
KVARENA_API kvarena_status kvarena_kernels_create(kvarena_device* device,
                                                  const kvarena_kernels_options* options,
                                                  kvarena_kernels** kernels);
/// Frees the workspaces. The work that uses them must have completed. Returns stale_handle, or
/// failed_precondition (thread) while another thread is inside.
KVARENA_API kvarena_status kvarena_kernels_release(kvarena_kernels* kernels);
/// Writes the bytes of all workspaces.
KVARENA_API kvarena_status kvarena_kernels_workspace_bytes(kvarena_kernels* kernels,
                                                           int64_t* bytes);
/// Queues the schedule of a step, from the lengths. `windowed` 1: for calls with `windowed` set; a
/// step with both kinds of layers has both schedules. On the host, every table entry is checked.
/// Returns invalid_argument, or limit_exceeded (workspace).
KVARENA_API kvarena_status kvarena_kernels_schedule(kvarena_kernels* kernels,
                                                    const kvarena_tables* tables, int32_t windowed,
                                                    void* stream);
/// Queues the write of K and V of one layer to `slots` [num_tokens] (block * block_size + offset;
/// -1: skip). `args->layer` is not read. With `overlap` 1 it may begin while the kernel before it
/// ends, see cuda_attention.hpp. Returns invalid_argument, unsupported (dtype) or device_error.
KVARENA_API kvarena_status kvarena_kernels_write(kvarena_kernels* kernels, const kvarena_plane* key,
                                                 const kvarena_plane* value, const int64_t* slots,
                                                 int64_t num_tokens, const kvarena_write_args* args,
                                                 int32_t overlap, void* stream);
/// Queues attention of one layer over the rows of the last kvarena_kernels_schedule with the same
/// `windowed`. `args->layer` and `kv_is_written` are not read. `overlap` as for
/// kvarena_kernels_write: 0 in the first launch after the schedule. Returns failed_precondition
/// (step) without a schedule, invalid_argument, unsupported, or device_error.
KVARENA_API kvarena_status kvarena_kernels_attend(kvarena_kernels* kernels,
                                                  const kvarena_plane* key,
                                                  const kvarena_plane* value,
                                                  const kvarena_attend_args* args, int32_t overlap,
                                                  void* stream);
/// Proves that every table entry of the rows of the last schedule is a block of the pool, for
/// debugging. Waits for the stream. Returns invalid_argument (block_index) with the first wrong
/// entry.
KVARENA_API kvarena_status kvarena_kernels_check_tables(kvarena_kernels* kernels, int32_t windowed,
                                                        void* stream);

/// Does what kvarena_describe does for a status of these calls: the sentence names the argument
/// that was refused, and what is supported. Any thread.
KVARENA_API size_t kvarena_kernels_describe(const kvarena_status* status, char* out, size_t size);

// ---- plan: any thread ---------------------------------------------------------------------------
// JSON in, JSON out, so that its many members are no part of the interface.

/// Computes how much memory a model takes and how many sequences fit. `request` is a JSON object:
/// `model` (a preset's name, or a path to a model's files) and members named as in PlanOptions, of
/// which `memory_bytes` (or `gpu`, a preset's name) is needed; formats are names such as "bf16".
/// Writes the plan, with its arithmetic, the options of the cache that it plans, and the changes
/// that make it fit. On failure writes one line that says what was wrong. Unlike other calls, it
/// can end the process when the system has no memory at all (the JSON library's destructors need
/// some). Returns parse_error, invalid_argument with the option, not_found (name, file),
/// unsupported or io_error.
KVARENA_API kvarena_status kvarena_plan_json(const char* request, char* out, size_t size,
                                             size_t* length);
/// Writes the names of the built-in models and GPUs as JSON.
KVARENA_API kvarena_status kvarena_presets_json(char* out, size_t size, size_t* length);

// ---- health: calls on a monitor are "any thread" ------------------------------------------------

/// A reason why the process is unhealthy has appeared. `code` is its name, such as
/// "residency_violated". The strings are borrowed.
typedef void (*kvarena_unhealthy_function)(void* user, const char* code, const char* text);
/// The pressure on a watched cache has changed: `from` and `to` are 0 normal, 1 elevated, 2
/// critical, 3 exhausted.
typedef void (*kvarena_pressure_function)(void* user, const char* name, int32_t from, int32_t to,
                                          const char* text);

/// Options of a monitor. Times are nanoseconds.
typedef struct kvarena_monitor_options {
  uint64_t struct_size;             ///< sizeof(kvarena_monitor_options)
  int64_t period_ns;                ///< from one check to the next; 0: 60 s
  int64_t pressure_period_ns;       ///< from one look to the next, at most period_ns; 0: 1 s; -1:
                                    ///< with checks
  int64_t check_limit_ns;           ///< a longer check is stuck; 0: 30 s or the period
  int64_t ticket_limit_ns;          ///< a ticket open for longer is late; 0: 30 s
  int64_t holder_grace_ns;          ///< a holder this long past its deadline is late
  int64_t step_limit_ns;            ///< an engine without a step for longer is stuck; 0: 30 s
  int64_t drift_warning_bytes;      ///< logged past this; 0: 512 MiB; -1: never
  int64_t drift_limit_bytes;        ///< a reason past this; 0 or -1: never
  double blocks_elevated;           ///< share of available blocks; 0: 0.20
  double blocks_critical;           ///< 0: 0.05
  double vram_elevated;             ///< share of free VRAM; 0: 0.05
  double vram_critical;             ///< 0: 0.01
  double vram_exhausted;            ///< 0: 0.001
  double hysteresis;                ///< 0: 0.02
  int32_t ignore_vram;              ///< 1: free VRAM does not count
  int32_t no_thread;                ///< 1: checks are made only by kvarena_monitor_check
  int32_t serve_http;               ///< 1: start the HTTP server
  int32_t http_port;                ///< 0: any free port
  const char* http_address;         ///< NULL: "127.0.0.1"; another than loopback needs a token
  const char* http_token;           ///< 16 .. 256 letters, digits and -._~+/=; NULL: none
  int32_t http_max_connections;     ///< 1 .. 1024; 0: 32
  int32_t http_request_limit_ms;    ///< 10 .. 600000; 0: 5000
  uint64_t http_max_request_bytes;  ///< 256 .. 1 MiB; 0: 8 KiB
  kvarena_unhealthy_function on_unhealthy;  ///< NULL: none
  kvarena_pressure_function on_pressure;    ///< NULL: none
  void* user;                               ///< their first argument
} kvarena_monitor_options;

/// Starts a monitor, and its HTTP server if asked. `options` may be NULL. Returns invalid_argument
/// with the option, io_error (address, event), or exhausted (thread).
KVARENA_API kvarena_status kvarena_monitor_start(const kvarena_monitor_options* options,
                                                 kvarena_monitor** monitor);
/// Stops server and monitor and waits for a running check. Must not be called from a callback.
/// Returns stale_handle, or failed_precondition (thread) while another thread releases it.
KVARENA_API kvarena_status kvarena_monitor_release(kvarena_monitor* monitor);
/// Watches a device, which the monitor keeps. Returns failed_precondition (device) when it is.
KVARENA_API kvarena_status kvarena_monitor_watch_device(kvarena_monitor* monitor,
                                                        kvarena_device* device);
/// Stops watching a device. Returns not_found (device).
KVARENA_API kvarena_status kvarena_monitor_unwatch_device(kvarena_monitor* monitor,
                                                          kvarena_device* device);
/// Watches a cache, and its device. Needs the cache's thread. The end of the cache ends the watch.
/// Returns failed_precondition (name) for a name in use, or invalid_argument (name) for "".
KVARENA_API kvarena_status kvarena_monitor_watch(kvarena_monitor* monitor, kvarena_cache* cache,
                                                 const char* name);
/// Stops watching a cache. Returns not_found (name).
KVARENA_API kvarena_status kvarena_monitor_unwatch(kvarena_monitor* monitor, const char* name);
/// Takes the engine's own figures: requests that wait now, preemptions since the last call. Returns
/// not_found (name) or invalid_argument (num_sequences).
KVARENA_API kvarena_status kvarena_monitor_report_engine(kvarena_monitor* monitor, const char* name,
                                                         int64_t waiting_requests,
                                                         int64_t new_preemptions);
/// Runs a check now and says whether the process is healthy.
KVARENA_API kvarena_status kvarena_monitor_check(kvarena_monitor* monitor, bool* healthy);
/// Says whether the process is healthy, without a check.
KVARENA_API kvarena_status kvarena_monitor_is_healthy(kvarena_monitor* monitor, bool* healthy);
/// Clears the violations. One that still holds comes back with the next check.
KVARENA_API kvarena_status kvarena_monitor_acknowledge(kvarena_monitor* monitor);
/// Writes the port of the HTTP server. Returns failed_precondition (address) without one.
KVARENA_API kvarena_status kvarena_monitor_port(kvarena_monitor* monitor, int32_t* port);
/// Writes what GET /health answers.
KVARENA_API kvarena_status kvarena_monitor_health_json(kvarena_monitor* monitor, char* out,
                                                       size_t size, size_t* length);
/// Writes what GET /stats answers.
KVARENA_API kvarena_status kvarena_monitor_stats_json(kvarena_monitor* monitor, char* out,
                                                      size_t size, size_t* length);
/// Writes what GET /metrics answers.
KVARENA_API kvarena_status kvarena_monitor_metrics(kvarena_monitor* monitor, char* out, size_t size,
                                                   size_t* length);

#ifdef __cplusplus
}
#endif
