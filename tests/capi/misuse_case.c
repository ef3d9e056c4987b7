// What no program should do: bad handles, sizes, pointers and threads. Each gets a status, and
// nothing has changed.

#include "capi_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/// Results for calls that must not get so far.
static struct {
  kvarena_sequence sequence;
  kvarena_ticket ticket;
  kvarena_holder holder;
  kvarena_batch batch;
  kvarena_device_batch device_batch;
  kvarena_sequence_info sequence_info;
  kvarena_stats stats;
  kvarena_explanation explanation;
  kvarena_block_info block;
  kvarena_plane plane;
  kvarena_cache_options options;
  kvarena_device_info device_info;
  kvarena_target target;
  kvarena_holder_report report;
  int64_t number;
  int32_t int32;
  uint32_t uint32;
  size_t count;
  bool flag;
  void* pointer;
  char text[16];
} out;

static const kvarena_status kOk = {0};
static const kvarena_demand kDemand = {.num_tokens = 1};
static const kvarena_holder_demand kHolderDemand = {.count = 1};

static void prepare(void) {
  memset(&out, 0, sizeof out);
  out.batch.struct_size = sizeof out.batch;
  out.device_batch.struct_size = sizeof out.device_batch;
  out.sequence_info.struct_size = sizeof out.sequence_info;
  out.stats.struct_size = sizeof out.stats;
  out.explanation.struct_size = sizeof out.explanation;
  out.block.struct_size = sizeof out.block;
  out.plane.struct_size = sizeof out.plane;
  out.options.struct_size = sizeof out.options;
  out.device_info.struct_size = sizeof out.device_info;
  out.target.struct_size = sizeof out.target;
}

/// The calls that are about cached prefixes.
static void prefix_calls(kvarena_cache* c, int code) {
  kvarena_prefix prefix = SIZED(kvarena_prefix);
  EXPECT_CODE(kvarena_sequence_prefix(c, 1, &prefix), code);
  EXPECT_CODE(kvarena_sequence_adopt(c, 1, NULL, 0, &prefix), code);
  EXPECT_CODE(kvarena_sequence_register(c, 1, NULL, 0), code);
  EXPECT_CODE(kvarena_sequence_forget(c, 1), code);
  EXPECT_CODE(kvarena_sequence_set_retention(c, 1, 0, 0, 0, 0, NULL), code);
  EXPECT_CODE(kvarena_prefix_match(c, &SIZED(kvarena_sequence_options), &prefix), code);
  EXPECT_CODE(kvarena_prefix_forget_salt(c, 1), code);
  EXPECT_CODE(kvarena_prefix_forget_all(c), code);
  EXPECT_CODE(kvarena_prefix_advance_clock(c, 1), code);
  EXPECT_CODE(kvarena_prefix_ask(c, &SIZED(kvarena_prefix_stats)), code);
  EXPECT_CODE(kvarena_prefix_ask_use(c, &SIZED(kvarena_prefix_use)), code);
  EXPECT_CODE(kvarena_salt_set_limits(c, 1, NULL), code);
  EXPECT_CODE(kvarena_salt_ask(c, 1, &SIZED(kvarena_salt_info)), code);
  EXPECT_CODE(kvarena_salt_close(c, 1), code);
}

/// Calls of a cache that one thread at a time may make.
static void cache_calls(kvarena_cache* c, int code) {
  kvarena_sequence* sequence = &out.sequence;
  kvarena_recorded_step shape = {.struct_size = sizeof shape, .num_rows = 1};
  kvarena_write_args write = SIZED(kvarena_write_args);
  kvarena_attend_args attend = SIZED(kvarena_attend_args);
  EXPECT_CODE(kvarena_sequence_create_from(c, 0, NULL, 0, NULL, sequence), code);
  EXPECT_CODE(kvarena_sequence_restorable_length(c, 1, 1, &out.number), code);
  EXPECT_CODE(kvarena_sequence_group_blocks(c, 1, 0, &out.int32, 1, &out.count, &out.number), code);
  EXPECT_CODE(kvarena_step_group_batch(c, 0, &out.device_batch), code);
  EXPECT_CODE(kvarena_step_write_cross(c, &SIZED(kvarena_write_cross_args)), code);
  EXPECT_CODE(kvarena_step_write_index(c, &SIZED(kvarena_write_index_args)), code);
  EXPECT_CODE(kvarena_step_states(c, 0, &SIZED(kvarena_state_slots)), code);
  EXPECT_CODE(kvarena_cache_state_view(c, 0, &SIZED(kvarena_state_view)), code);
  EXPECT_CODE(kvarena_sequence_checkpoint(c, 1), code);
  EXPECT_CODE(kvarena_sequence_checkpoints(c, 1, &out.number, 1, &out.count), code);
  EXPECT_CODE(kvarena_sequence_state_blocks(c, 1, 1, 0, &out.int32, &out.uint32, 1, &out.count),
              code);
  EXPECT_CODE(kvarena_cache_pages(c, &SIZED(kvarena_page_stats)), code);
  EXPECT_CODE(kvarena_cache_num_parts(c, &out.int32), code);
  EXPECT_CODE(kvarena_cache_part(c, 0, &SIZED(kvarena_part_stats)), code);
  EXPECT_CODE(kvarena_cache_describe(c, &kOk, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_cache_ask(c, &out.options), code);
  EXPECT_CODE(kvarena_sequence_create(c, NULL, sequence), code);
  EXPECT_CODE(kvarena_sequence_fork(c, 1, 0, NULL, sequence), code);
  EXPECT_CODE(kvarena_sequence_import(c, 1, NULL, 0, sequence), code);
  EXPECT_CODE(kvarena_sequence_publish_import(c, 1), code);
  EXPECT_CODE(kvarena_sequence_fail_import(c, 1), code);
  EXPECT_CODE(kvarena_sequence_truncate(c, 1, 0, 0), code);
  EXPECT_CODE(kvarena_sequence_destroy(c, sequence, 1, 0), code);
  EXPECT_CODE(kvarena_sequence_reserve(c, 1, 1, 0), code);
  EXPECT_CODE(kvarena_sequence_promise(c, 1, 1), code);
  EXPECT_CODE(kvarena_sequence_set_deadline(c, 1, 1), code);
  EXPECT_CODE(kvarena_sequence_ask(c, 1, &out.sequence_info), code);
  EXPECT_CODE(kvarena_sequence_blocks(c, 1, &out.int32, 1, &out.count), code);
  EXPECT_CODE(kvarena_sequence_slot(c, 1, 0, &out.number), code);
  EXPECT_CODE(kvarena_sequence_tables(c, sequence, 1, &out.int32, 1, &out.int32), code);
  EXPECT_CODE(kvarena_sequence_list(c, sequence, 1, &out.count), code);
  EXPECT_CODE(kvarena_pin_create(c, 1, NULL, &out.holder), code);
  EXPECT_CODE(kvarena_pin_blocks(c, 1, &out.int32, 1, &out.count), code);
  EXPECT_CODE(kvarena_pin_release(c, 1, 0), code);
  EXPECT_CODE(kvarena_step_append_tokens(c, NULL, &kDemand, 1, NULL, 0, 0, &out.batch), code);
  EXPECT_CODE(kvarena_step_begin(c, NULL), code);
  EXPECT_CODE(kvarena_step_append(c, &kDemand, 1, 0, &out.batch), code);
  EXPECT_CODE(kvarena_step_failed_demand(c, &out.number), code);
  EXPECT_CODE(kvarena_step_device_batch(c, &out.device_batch), code);
  EXPECT_CODE(kvarena_step_write(c, &write), code);
  EXPECT_CODE(kvarena_step_attend(c, &attend), code);
  EXPECT_CODE(kvarena_step_end(c), code);
  EXPECT_CODE(kvarena_step_abort(c), code);
  EXPECT_CODE(kvarena_recording_begin(c, &shape, NULL, &out.batch), code);
  EXPECT_CODE(kvarena_recording_end(c), code);
  EXPECT_CODE(kvarena_step_append_recorded(c, &shape, &kDemand, 1, 0, &out.batch), code);
  EXPECT_CODE(kvarena_cache_publish(c), code);
  EXPECT_CODE(kvarena_cache_synchronize(c), code);
  EXPECT_CODE(kvarena_cache_stream(c, &out.pointer), code);
  EXPECT_CODE(kvarena_ticket_fence(c, &out, &out.ticket), code);
  EXPECT_CODE(kvarena_ticket_open(c, NULL, &out.ticket), code);
  EXPECT_CODE(kvarena_ticket_retire(c, 1), code);
  EXPECT_CODE(kvarena_cache_stats(c, &out.stats), code);
  EXPECT_CODE(kvarena_cache_stats_json(c, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_cache_can_allocate(c, 1, 0, &out.flag), code);
  EXPECT_CODE(kvarena_cache_available(c, 0, &out.number, NULL), code);
  EXPECT_CODE(kvarena_cache_explain(c, NULL, 1, 0, &out.explanation), code);
  EXPECT_CODE(kvarena_cache_explain_json(c, NULL, 1, 0, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_cache_explain_text(c, NULL, 1, 0, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_cache_holders(c, &out.report, 1, &out.count), code);
  EXPECT_CODE(kvarena_cache_block(c, 0, &out.block), code);
  EXPECT_CODE(kvarena_cache_plane(c, 0, 0, &out.plane), code);
  EXPECT_CODE(kvarena_cache_check(c), code);
  prefix_calls(c, code);
}

/// Calls of a cache that any thread may make.
static void cache_visits(kvarena_cache* c, int code) {
  EXPECT_CODE(kvarena_cache_snapshot(c, &out.stats), code);
  EXPECT_CODE(kvarena_cache_request_details(c), code);
  EXPECT_CODE(kvarena_cache_details_json(c, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_cache_has_pending_work(c, &out.flag), code);
  EXPECT_CODE(kvarena_prefix_snapshot(c, &SIZED(kvarena_prefix_stats), NULL), code);
}

static void pool_prefix_calls(kvarena_pool* p, int code) {
  kvarena_prefix prefix = SIZED(kvarena_prefix);
  kvarena_prefix_position at = SIZED(kvarena_prefix_position);
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  EXPECT_CODE(kvarena_pool_begin_prefix(p, 0, &at), code);
  EXPECT_CODE(kvarena_pool_match(p, &prompt, &out.int32, &out.uint32, 1, &prefix), code);
  EXPECT_CODE(kvarena_pool_adopt(p, 1, &prompt, &out.int32, &out.uint32, 1, &prefix, &at), code);
  EXPECT_CODE(kvarena_pool_register(p, &at, &prompt, &out.int32, &out.uint32, 1, NULL), code);
  EXPECT_CODE(kvarena_pool_publish(p, &out.int32, &out.uint32, 1, NULL), code);
  EXPECT_CODE(kvarena_pool_forget(p, &out.int32, 1), code);
  EXPECT_CODE(kvarena_pool_forget_salt(p, 0), code);
  EXPECT_CODE(kvarena_pool_forget_all(p), code);
  EXPECT_CODE(kvarena_pool_ask_prefix(p, NULL, NULL), code);
}

static void pool_calls(kvarena_pool* p, int code) {
  pool_prefix_calls(p, code);
  EXPECT_CODE(kvarena_pool_open_holder(p, NULL, &out.holder), code);
  EXPECT_CODE(kvarena_pool_close_holder(p, 1), code);
  EXPECT_CODE(kvarena_pool_set_deadline(p, 1, 1), code);
  EXPECT_CODE(kvarena_pool_holder(p, 1, &out.report), code);
  EXPECT_CODE(kvarena_pool_holders(p, &out.report, 1, &out.count), code);
  EXPECT_CODE(kvarena_pool_reserve(p, 1, 1, 0), code);
  EXPECT_CODE(kvarena_pool_allocate(p, 1, 1, 0, &out.int32, &out.uint32, NULL), code);
  EXPECT_CODE(kvarena_pool_allocate_each(p, &kHolderDemand, 1, 0, &out.int32, &out.uint32, 1, NULL),
              code);
  EXPECT_CODE(kvarena_pool_retain(p, 1, &out.int32, &out.uint32, 1), code);
  EXPECT_CODE(kvarena_pool_free(p, 1, &out.int32, &out.uint32, 1, 0), code);
  EXPECT_CODE(kvarena_pool_set_content(p, 0, 0, 0), code);
  EXPECT_CODE(kvarena_pool_set_retention(p, 0, 0, 0, 0), code);
  EXPECT_CODE(kvarena_pool_advance_clock(p, 1), code);
  EXPECT_CODE(kvarena_pool_quarantine(p, 0, NULL), code);
  EXPECT_CODE(kvarena_pool_restore(p, 0), code);
  EXPECT_CODE(kvarena_pool_open_ticket(p, &out.ticket), code);
  EXPECT_CODE(kvarena_pool_retire(p, 1), code);
  EXPECT_CODE(kvarena_pool_is_open(p, 1, &out.flag), code);
  EXPECT_CODE(kvarena_pool_block(p, 0, &out.block), code);
  EXPECT_CODE(kvarena_pool_stats(p, &out.stats), code);
  EXPECT_CODE(kvarena_pool_can_allocate(p, 1, 0, &out.flag), code);
  EXPECT_CODE(kvarena_pool_available(p, 0, &out.number, NULL), code);
  EXPECT_CODE(kvarena_pool_explain(p, NULL, 1, 0, &out.explanation), code);
  EXPECT_CODE(kvarena_pool_explain_json(p, NULL, 1, 0, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_pool_explain_text(p, NULL, 1, 0, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_pool_check(p), code);
}

static void kernels_calls(kvarena_kernels* k, int code) {
  kvarena_tables tables = SIZED(kvarena_tables);
  kvarena_write_args write = SIZED(kvarena_write_args);
  kvarena_attend_args attend = SIZED(kvarena_attend_args);
  kvarena_plane* const plane = &out.plane;
  EXPECT_CODE(kvarena_kernels_workspace_bytes(k, &out.number), code);
  EXPECT_CODE(kvarena_kernels_schedule(k, &tables, 0, NULL), code);
  EXPECT_CODE(kvarena_kernels_write(k, plane, plane, NULL, 0, &write, 0, NULL), code);
  EXPECT_CODE(kvarena_kernels_attend(k, plane, plane, &attend, 0, NULL), code);
  EXPECT_CODE(kvarena_kernels_check_tables(k, 0, NULL), code);
}

static void device_calls(kvarena_device* d, int code) {
  kvarena_allocation request = {.struct_size = sizeof request, .bytes = 64};
  kvarena_cache_options options = cache_options();
  kvarena_kernels_options kernels = SIZED(kvarena_kernels_options);
  EXPECT_CODE(kvarena_device_ask(d, &out.device_info), code);
  EXPECT_CODE(kvarena_device_name(d, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_device_json(d, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_device_report(d, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_device_describe(d, &kOk, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_device_target(d, &out.target), code);
  EXPECT_CODE(kvarena_memory_allocate(d, &request, &out.pointer), code);
  EXPECT_CODE(kvarena_memory_free(d, &out), code);
  EXPECT_CODE(kvarena_memory_register(d, &out, &request, 1), code);
  EXPECT_CODE(kvarena_memory_unregister(d, &out), code);
  EXPECT_CODE(kvarena_memory_report(d, "name", 0, 1), code);
  EXPECT_CODE(kvarena_memory_place(d, &out, 1, &out.int32, NULL), code);
  EXPECT_CODE(kvarena_memory_verify(d, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_memory_copy(d, &out.number, &out.count, 4, &out), code);
  EXPECT_CODE(kvarena_memory_fill(d, &out.number, 0, 4, &out), code);
  EXPECT_CODE(kvarena_stream_create(d, &out.pointer), code);
  EXPECT_CODE(kvarena_stream_destroy(d, &out), code);
  EXPECT_CODE(kvarena_stream_synchronize(d, &out), code);
  EXPECT_CODE(kvarena_cache_create(d, &options, (kvarena_cache**)&out.pointer), code);
  EXPECT_CODE(kvarena_kernels_create(d, &kernels, (kvarena_kernels**)&out.pointer), code);
}

static void monitor_calls(kvarena_monitor* m, kvarena_device* d, kvarena_cache* c, int code) {
  EXPECT_CODE(kvarena_monitor_watch_device(m, d), code);
  EXPECT_CODE(kvarena_monitor_unwatch_device(m, d), code);
  EXPECT_CODE(kvarena_monitor_watch(m, c, "name"), code);
  EXPECT_CODE(kvarena_monitor_unwatch(m, "name"), code);
  EXPECT_CODE(kvarena_monitor_report_engine(m, "name", 0, 0), code);
  EXPECT_CODE(kvarena_monitor_check(m, &out.flag), code);
  EXPECT_CODE(kvarena_monitor_is_healthy(m, &out.flag), code);
  EXPECT_CODE(kvarena_monitor_acknowledge(m), code);
  EXPECT_CODE(kvarena_monitor_port(m, &out.int32), code);
  EXPECT_CODE(kvarena_monitor_health_json(m, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_monitor_stats_json(m, out.text, sizeof out.text, NULL), code);
  EXPECT_CODE(kvarena_monitor_metrics(m, out.text, sizeof out.text, NULL), code);
}

/// Every call of every kind with what is not a handle of its kind.
static void all_calls(void* handle, site s, int code) {
  cache_calls(handle, code);
  cache_visits(handle, code);
  pool_calls(handle, code);
  kernels_calls(handle, code);
  device_calls(handle, code);
  monitor_calls(handle, s.device, s.cache, code);
  CHECK(out.sequence == 0 && out.ticket == 0 && out.holder == 0 && out.pointer == NULL);
}

void test_bad_handles(void) {
  site s = open_site(NULL, NULL);
  prepare();
  all_calls(NULL, s, KVARENA_INVALID_ARGUMENT);
  int not_a_handle = 0;
  all_calls(&not_a_handle, s, KVARENA_STALE_HANDLE);
  all_calls((void*)(uintptr_t)-1, s, KVARENA_STALE_HANDLE);
  for (int bit = 0; bit < 64; ++bit) {
    const uintptr_t forged = (uintptr_t)s.cache ^ (uintptr_t)1 << bit;
    EXPECT_CODE(kvarena_cache_check((void*)forged), KVARENA_STALE_HANDLE);
  }
  site released = open_site(NULL, NULL);
  close_site(&released);
  all_calls(released.cache, s, KVARENA_STALE_HANDLE);
  all_calls(released.device, s, KVARENA_STALE_HANDLE);
  // The handle of a cache is none of anything else.
  pool_calls((void*)s.cache, KVARENA_STALE_HANDLE);
  device_calls((void*)s.cache, KVARENA_STALE_HANDLE);
  monitor_calls((void*)s.cache, s.device, s.cache, KVARENA_STALE_HANDLE);
  kernels_calls((void*)s.cache, KVARENA_STALE_HANDLE);
  cache_calls((void*)s.device, KVARENA_STALE_HANDLE);
  EXPECT_CODE(kvarena_pool_release((void*)s.cache), KVARENA_STALE_HANDLE);
  EXPECT_OK(kvarena_pool_release(NULL));
  EXPECT_OK(kvarena_kernels_release(NULL));
  EXPECT_OK(kvarena_monitor_release(NULL));
  EXPECT_OK(kvarena_device_release(NULL));
  EXPECT_OK(kvarena_cache_stats(s.cache, &out.stats));
  CHECK(out.stats.sequences_ever == 0 && out.stats.allocations == 0);
  close_site(&s);
}

/// A thread that is held inside a cache by its operation log.
static atomic_int is_inside, may_leave;
static void hold(void* user, const kvarena_operation* operation) {
  (void)user;
  (void)operation;
  atomic_store(&is_inside, 1);
  while (!atomic_load(&may_leave)) {
  }
}
static void* create_and_wait(void* cache) {
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(cache, NULL, &sequence));
  return NULL;
}

void test_second_thread(void) {
  atomic_store(&is_inside, 0);
  atomic_store(&may_leave, 0);
  site s = open_site(hold, NULL);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, create_and_wait, s.cache) == 0);
  while (!atomic_load(&is_inside)) {
  }
  prepare();
  cache_calls(s.cache, KVARENA_FAILED_PRECONDITION);
  EXPECT_STATUS(kvarena_step_begin(s.cache, NULL), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_THREAD);
  EXPECT_STATUS(kvarena_cache_release(s.cache), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_THREAD);
  cache_visits(s.cache, KVARENA_OK);
  EXPECT_OK(kvarena_device_ask(s.device, &out.device_info));
  atomic_store(&may_leave, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  EXPECT_OK(kvarena_cache_stats(s.cache, &out.stats));
  CHECK(out.stats.sequences == 1 && out.stats.holders == 1);
  close_site(&s);
}

static void* open_and_wait(void* pool) {
  kvarena_holder holder = 0;
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &holder));
  return NULL;
}

void test_second_thread_in_pool(void) {
  atomic_store(&is_inside, 0);
  atomic_store(&may_leave, 0);
  const kvarena_pool_options options = {
      .struct_size = sizeof options, .num_blocks = 4, .log = hold};
  kvarena_pool* pool = NULL;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, open_and_wait, pool) == 0);
  while (!atomic_load(&is_inside)) {
  }
  prepare();
  pool_calls(pool, KVARENA_FAILED_PRECONDITION);
  EXPECT_STATUS(kvarena_pool_check(pool), KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_THREAD);
  EXPECT_STATUS(kvarena_pool_release(pool), KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_THREAD);
  CHECK(out.holder == 0 && out.ticket == 0);
  atomic_store(&may_leave, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  EXPECT_OK(kvarena_pool_stats(pool, &out.stats));
  CHECK(out.stats.holders_ever == 1 && out.stats.free_blocks == 4 && out.stats.open_tickets == 0);
  EXPECT_OK(kvarena_pool_release(pool));
}

enum { kLong = 256, kManyHeads = 8, kLongDim = 64 };

/// Attends again and again: kernels call nobody, so that a thread is inside for as long as they
/// work.
static void* attend_for_long(void* kernels) {
  static float memory[2][kLong * kManyHeads * kLongDim], q[kLong * kManyHeads * kLongDim],
      found[kLong * kManyHeads * kLongDim];
  kvarena_plane planes[2] = {SIZED(kvarena_plane), SIZED(kvarena_plane)};
  const kvarena_cache_options layout = {.struct_size = sizeof layout,
                                        .num_layers = 1,
                                        .num_kv_heads = kManyHeads,
                                        .head_dim_k = kLongDim,
                                        .dtype = KVARENA_F32,
                                        .block_order = KVARENA_LAYER_MAJOR,
                                        .num_blocks = kLong / kBlockSize};
  for (int kind = 0; kind < 2; ++kind) {
    EXPECT_OK(kvarena_layout_plane(&layout, memory, kLong / kBlockSize, 0, kind, &planes[kind]));
  }
  const kvarena_attend_args attend = {.struct_size = sizeof attend,
                                      .q = q,
                                      .out = found,
                                      .q_dtype = KVARENA_F32,
                                      .out_dtype = KVARENA_F32};
  while (!atomic_load(&may_leave)) {
    const kvarena_status status =
        kvarena_kernels_attend(kernels, &planes[0], &planes[1], &attend, 0, NULL);
    CHECK(status.code == KVARENA_OK || status.resource == KVARENA_RESOURCE_THREAD);
    atomic_store(&is_inside, 1);
  }
  return NULL;
}

void test_second_thread_in_kernels(void) {
  atomic_store(&is_inside, 0);
  atomic_store(&may_leave, 0);
  site s = open_site(NULL, NULL);
  const kvarena_kernels_options options = {.struct_size = sizeof options,
                                           .num_kv_heads = kManyHeads,
                                           .head_dim_k = kLongDim,
                                           .dtype = KVARENA_F32,
                                           .num_q_heads = kManyHeads,
                                           .max_rows = 1,
                                           .max_q_tokens = kLong,
                                           .num_blocks = kLong / kBlockSize,
                                           .num_threads = 1};
  int32_t table[kLong / kBlockSize];
  for (int32_t i = 0; i < kLong / kBlockSize; ++i) table[i] = i;
  const int32_t length = kLong;
  const int64_t offset = 0, q_offsets[] = {0, kLong};
  const kvarena_tables tables = {.struct_size = sizeof tables,
                                 .tables = table,
                                 .table_stride = kLong / kBlockSize,
                                 .row_offsets = &offset,
                                 .lengths = &length,
                                 .q_offsets = q_offsets,
                                 .total_q = kLong,
                                 .num_rows = 1};
  kvarena_kernels* kernels = NULL;
  EXPECT_OK(kvarena_kernels_create(s.device, &options, &kernels));
  EXPECT_OK(kvarena_kernels_schedule(kernels, &tables, 0, NULL));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, attend_for_long, kernels) == 0);
  while (!atomic_load(&is_inside)) {
  }
  prepare();
  kvarena_status status = kOk;
  while (status.code == KVARENA_OK) status = kvarena_kernels_workspace_bytes(kernels, &out.number);
  EXPECT_STATUS(status, KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_THREAD);
  status = kOk;
  while (status.code == KVARENA_OK) status = kvarena_kernels_check_tables(kernels, 0, NULL);
  EXPECT_STATUS(status, KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_THREAD);
  do {
    status = kvarena_kernels_schedule(kernels, &tables, 0, NULL);
  } while (status.code == KVARENA_OK);
  EXPECT_STATUS(status, KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_THREAD);
  atomic_store(&may_leave, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  EXPECT_OK(kvarena_kernels_workspace_bytes(kernels, &out.number));
  EXPECT_OK(kvarena_kernels_release(kernels));
  close_site(&s);
}

/// More handles than one part of the table has, from four threads, with late calls on old ones.
static void* churn(void* unused) {
  kvarena_pool* pools[64];
  kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 1, .max_holders = 1};
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 64; ++i) EXPECT_OK(kvarena_pool_create(&options, &pools[i]));
    for (int i = 0; i < 64; ++i) EXPECT_OK(kvarena_pool_release(pools[i]));
    for (int i = 0; i < 64; ++i) EXPECT_CODE(kvarena_pool_check(pools[i]), KVARENA_STALE_HANDLE);
  }
  return unused;
}

void test_many_handles(void) {
  enum { kMany = 1100 };
  static kvarena_pool* pools[kMany];
  kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 1, .max_holders = 1};
  for (int i = 0; i < kMany; ++i) EXPECT_OK(kvarena_pool_create(&options, &pools[i]));
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  for (int i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < kMany; ++i) EXPECT_OK(kvarena_pool_check(pools[i]));
  for (int i = 0; i < kMany; ++i) EXPECT_OK(kvarena_pool_release(pools[i]));
}
