// Null where something must be: every call refuses it, and nothing has changed. A row of the table
// is a call; calls that write text are in text_case.c.

#include "capi_test.h"

typedef struct row {
  const char* call;
  kvarena_status status;
} row;

#define ROW(...) \
  { #__VA_ARGS__, __VA_ARGS__ }

static void check_rows(const row* rows, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    expect(rows[i].status, KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_POINTER, __FILE__, __LINE__,
           rows[i].call);
  }
}

#define CHECK_ROWS(rows) check_rows(rows, sizeof(rows) / sizeof(rows)[0])

/// Where results would go.
static kvarena_sequence sequence;
static kvarena_holder holder;
static kvarena_batch batch = {.struct_size = sizeof batch};
static kvarena_plane plane = {.struct_size = sizeof plane};
static kvarena_prefix prefix = {.struct_size = sizeof prefix};
static kvarena_footprint footprint = {.struct_size = sizeof footprint};
static kvarena_explanation explanation = {.struct_size = sizeof explanation};
static const kvarena_demand kDemand = {.num_tokens = 1};
static const kvarena_target kHost = {.struct_size = sizeof kHost};
static int64_t number;
static int32_t small;
static uint32_t generation;
static size_t count;
static void* pointer;

static void check_devices(kvarena_device* d) {
  const kvarena_allocation request = {.struct_size = sizeof request, .bytes = 64};
  void* stream = NULL;
  EXPECT_OK(kvarena_stream_create(d, &stream));
  const row rows[] = {
      ROW(kvarena_device_open_host(NULL, NULL)),
      ROW(kvarena_device_open_cuda(NULL, NULL)),
      ROW(kvarena_device_ask(d, NULL)),
      ROW(kvarena_device_describe(d, NULL, NULL, 0, NULL)),
      ROW(kvarena_device_target(d, NULL)),
      ROW(kvarena_memory_allocate(d, NULL, &pointer)),
      ROW(kvarena_memory_allocate(d, &request, NULL)),
      ROW(kvarena_memory_free(d, NULL)),
      ROW(kvarena_memory_register(d, NULL, &request, 0)),
      ROW(kvarena_memory_register(d, &number, NULL, 0)),
      ROW(kvarena_memory_report(d, NULL, 0, 1)),
      ROW(kvarena_memory_place(d, NULL, 4, &small, NULL)),
      ROW(kvarena_memory_copy(d, NULL, &number, 4, stream)),
      ROW(kvarena_memory_copy(d, &number, NULL, 4, stream)),
      ROW(kvarena_memory_fill(d, NULL, 0, 4, stream)),
      ROW(kvarena_stream_create(d, NULL)),
      ROW(kvarena_stream_destroy(d, NULL)),
      ROW(kvarena_stream_synchronize(d, NULL)),
  };
  CHECK_ROWS(rows);
  EXPECT_OK(kvarena_stream_destroy(d, stream));
}

static void check_caches(kvarena_device* d, kvarena_cache* c) {
  const kvarena_cache_options options = cache_options();
  const row rows[] = {
      ROW(kvarena_cache_create(d, NULL, (kvarena_cache**)&pointer)),
      ROW(kvarena_cache_create(d, &options, NULL)),
      ROW(kvarena_cache_footprint(NULL, &kHost, 0, &footprint)),
      ROW(kvarena_cache_footprint(&options, NULL, 0, &footprint)),
      ROW(kvarena_cache_footprint(&options, &kHost, 0, NULL)),
      ROW(kvarena_cache_fit(NULL, &kHost, 1 << 20, &footprint)),
      ROW(kvarena_cache_fit(&options, NULL, 1 << 20, &footprint)),
      ROW(kvarena_cache_fit(&options, &kHost, 1 << 20, NULL)),
      ROW(kvarena_cache_describe(c, NULL, NULL, 0, NULL)),
      ROW(kvarena_cache_ask(c, NULL)),
      ROW(kvarena_cache_stats(c, NULL)),
      ROW(kvarena_cache_snapshot(c, NULL)),
      ROW(kvarena_cache_has_pending_work(c, NULL)),
      ROW(kvarena_cache_can_allocate(c, 1, 0, NULL)),
      ROW(kvarena_cache_explain(c, NULL, 1, 0, NULL)),
      ROW(kvarena_cache_holders(c, NULL, 1, &count)),
      ROW(kvarena_cache_block(c, 0, NULL)),
      ROW(kvarena_cache_plane(c, 0, 0, NULL)),
      ROW(kvarena_cache_pages(c, NULL)),
      ROW(kvarena_cache_num_parts(c, NULL)),
      ROW(kvarena_cache_part(c, 0, NULL)),
      ROW(kvarena_cache_state_view(c, 0, NULL)),
      ROW(kvarena_cache_stream(c, NULL)),
      ROW(kvarena_ticket_fence(c, NULL, &sequence)),
      ROW(kvarena_ticket_open(c, NULL, NULL)),
  };
  CHECK_ROWS(rows);
}

static void check_sequences(kvarena_cache* c) {
  const row rows[] = {
      ROW(kvarena_sequence_create(c, NULL, NULL)),
      ROW(kvarena_sequence_create_from(c, 0, NULL, 0, NULL, NULL)),
      ROW(kvarena_sequence_fork(c, 1, 0, NULL, NULL)),
      ROW(kvarena_sequence_import(c, 1, NULL, 0, NULL)),
      ROW(kvarena_sequence_destroy(c, NULL, 1, 0)),
      ROW(kvarena_sequence_restorable_length(c, 1, 0, NULL)),
      ROW(kvarena_sequence_checkpoints(c, 1, NULL, 1, &count)),
      ROW(kvarena_sequence_checkpoints(c, 1, &number, 1, NULL)),
      ROW(kvarena_sequence_state_blocks(c, 1, 1, 0, NULL, &generation, 1, &count)),
      ROW(kvarena_sequence_state_blocks(c, 1, 1, 0, &small, NULL, 1, &count)),
      ROW(kvarena_sequence_state_blocks(c, 1, 1, 0, &small, &generation, 1, NULL)),
      ROW(kvarena_sequence_ask(c, 1, NULL)),
      ROW(kvarena_sequence_blocks(c, 1, NULL, 1, &count)),
      ROW(kvarena_sequence_blocks(c, 1, &small, 1, NULL)),
      ROW(kvarena_sequence_group_blocks(c, 1, 0, NULL, 1, &count, &number)),
      ROW(kvarena_sequence_group_blocks(c, 1, 0, &small, 1, NULL, &number)),
      ROW(kvarena_sequence_group_blocks(c, 1, 0, &small, 1, &count, NULL)),
      ROW(kvarena_sequence_slot(c, 1, 0, NULL)),
      ROW(kvarena_sequence_tables(c, NULL, 1, &small, 1, NULL)),
      ROW(kvarena_sequence_tables(c, &sequence, 1, NULL, 1, NULL)),
      ROW(kvarena_sequence_list(c, NULL, 1, &count)),
      ROW(kvarena_sequence_list(c, &sequence, 1, NULL)),
      ROW(kvarena_sequence_prefix(c, 1, NULL)),
      ROW(kvarena_sequence_adopt(c, 1, NULL, 0, NULL)),
      ROW(kvarena_sequence_adopt(c, 1, NULL, 1, &prefix)),
      ROW(kvarena_sequence_register(c, 1, NULL, 1)),
      ROW(kvarena_prefix_match(c, NULL, &prefix)),
      ROW(kvarena_prefix_match(c, &SIZED(kvarena_sequence_options), NULL)),
      ROW(kvarena_prefix_ask(c, NULL)),
      ROW(kvarena_prefix_ask_use(c, NULL)),
      ROW(kvarena_salt_ask(c, 1, NULL)),
      ROW(kvarena_pin_create(c, 1, NULL, NULL)),
      ROW(kvarena_pin_blocks(c, 1, NULL, 1, &count)),
      ROW(kvarena_pin_blocks(c, 1, &small, 1, NULL)),
  };
  CHECK_ROWS(rows);
}

static void check_steps(kvarena_cache* c) {
  const kvarena_recorded_step shape = {.struct_size = sizeof shape, .num_rows = 1};
  const row rows[] = {
      ROW(kvarena_step_append(c, NULL, 1, 0, &batch)),
      ROW(kvarena_step_append(c, &kDemand, 1, 0, NULL)),
      ROW(kvarena_step_append_tokens(c, NULL, NULL, 1, NULL, 0, 0, &batch)),
      ROW(kvarena_step_append_tokens(c, NULL, &kDemand, 1, NULL, 1, 0, &batch)),
      ROW(kvarena_step_append_tokens(c, NULL, &kDemand, 1, NULL, 0, 0, NULL)),
      ROW(kvarena_step_append_recorded(c, NULL, &kDemand, 1, 0, &batch)),
      ROW(kvarena_step_append_recorded(c, &shape, NULL, 1, 0, &batch)),
      ROW(kvarena_step_append_recorded(c, &shape, &kDemand, 1, 0, NULL)),
      ROW(kvarena_step_failed_demand(c, NULL)),
      ROW(kvarena_step_device_batch(c, NULL)),
      ROW(kvarena_step_group_batch(c, 0, NULL)),
      ROW(kvarena_step_states(c, 0, NULL)),
      ROW(kvarena_step_write(c, NULL)),
      ROW(kvarena_step_write_cross(c, NULL)),
      ROW(kvarena_step_write_index(c, NULL)),
      ROW(kvarena_step_attend(c, NULL)),
      ROW(kvarena_recording_begin(c, NULL, NULL, &batch)),
      ROW(kvarena_recording_begin(c, &shape, NULL, NULL)),
  };
  CHECK_ROWS(rows);
}

static void check_pools(void) {
  const kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 4};
  const kvarena_holder_demand wanted = {.count = 1};
  kvarena_pool* p = NULL;
  EXPECT_OK(kvarena_pool_create(&options, &p));
  const row rows[] = {
      ROW(kvarena_pool_create(NULL, (kvarena_pool**)&pointer)),
      ROW(kvarena_pool_create(&options, NULL)),
      ROW(kvarena_pool_open_holder(p, NULL, NULL)),
      ROW(kvarena_pool_holder(p, 1, NULL)),
      ROW(kvarena_pool_holders(p, NULL, 1, &count)),
      ROW(kvarena_pool_holders(p, NULL, 0, NULL)),
      ROW(kvarena_pool_allocate(p, 1, 1, 0, NULL, &generation, NULL)),
      ROW(kvarena_pool_allocate(p, 1, 1, 0, &small, NULL, NULL)),
      ROW(kvarena_pool_allocate_each(p, NULL, 1, 0, &small, &generation, 1, NULL)),
      ROW(kvarena_pool_allocate_each(p, &wanted, 1, 0, NULL, &generation, 1, NULL)),
      ROW(kvarena_pool_allocate_each(p, &wanted, 1, 0, &small, NULL, 1, NULL)),
      ROW(kvarena_pool_retain(p, 1, NULL, &generation, 1)),
      ROW(kvarena_pool_retain(p, 1, &small, NULL, 1)),
      ROW(kvarena_pool_free(p, 1, NULL, &generation, 1, 0)),
      ROW(kvarena_pool_free(p, 1, &small, NULL, 1, 0)),
      ROW(kvarena_pool_open_ticket(p, NULL)),
      ROW(kvarena_pool_is_open(p, 1, NULL)),
      ROW(kvarena_pool_block(p, 0, NULL)),
      ROW(kvarena_pool_stats(p, NULL)),
      ROW(kvarena_pool_can_allocate(p, 1, 0, NULL)),
      ROW(kvarena_pool_explain(p, NULL, 1, 0, NULL)),
  };
  CHECK_ROWS(rows);
  kvarena_stats stats = SIZED(kvarena_stats);
  EXPECT_OK(kvarena_pool_stats(p, &stats));
  CHECK(stats.free_blocks == 4 && stats.holders == 0 && stats.exhaustions == 0);
  EXPECT_OK(kvarena_pool_check(p));
  EXPECT_OK(kvarena_pool_release(p));
}

static void check_kernels(kvarena_device* d) {
  const kvarena_cache_options layout = cache_options();
  const kvarena_kernels_options options = {.struct_size = sizeof options,
                                           .num_kv_heads = 1,
                                           .head_dim_k = 8,
                                           .dtype = KVARENA_F32,
                                           .num_q_heads = 1,
                                           .max_rows = 1,
                                           .max_q_tokens = 1,
                                           .num_blocks = 1};
  static char memory[64];
  const kvarena_write_args write = SIZED(kvarena_write_args);
  const kvarena_attend_args attend = SIZED(kvarena_attend_args);
  kvarena_kernels* k = NULL;
  EXPECT_OK(kvarena_kernels_create(d, &options, &k));
  const row rows[] = {
      ROW(kvarena_layout_plan(NULL, 0, &SIZED(kvarena_pool_plan))),
      ROW(kvarena_layout_plan(&layout, 0, NULL)),
      ROW(kvarena_layout_plane(NULL, memory, 1, 0, 0, &plane)),
      ROW(kvarena_layout_plane(&layout, memory, 1, 0, 0, NULL)),
      ROW(kvarena_kernels_create(d, NULL, (kvarena_kernels**)&pointer)),
      ROW(kvarena_kernels_create(d, &options, NULL)),
      ROW(kvarena_kernels_workspace_bytes(k, NULL)),
      ROW(kvarena_kernels_schedule(k, NULL, 0, NULL)),
      ROW(kvarena_kernels_write(k, NULL, &plane, &number, 1, &write, 0, NULL)),
      ROW(kvarena_kernels_write(k, &plane, NULL, &number, 1, &write, 0, NULL)),
      ROW(kvarena_kernels_write(k, &plane, &plane, &number, 1, NULL, 0, NULL)),
      ROW(kvarena_kernels_attend(k, NULL, &plane, &attend, 0, NULL)),
      ROW(kvarena_kernels_attend(k, &plane, NULL, &attend, 0, NULL)),
      ROW(kvarena_kernels_attend(k, &plane, &plane, NULL, 0, NULL)),
  };
  CHECK_ROWS(rows);
  EXPECT_OK(kvarena_kernels_release(k));
}

static void check_monitors(kvarena_device* d, kvarena_cache* c) {
  const kvarena_monitor_options quiet = {.struct_size = sizeof quiet, .no_thread = 1};
  kvarena_monitor* m = NULL;
  EXPECT_OK(kvarena_monitor_start(&quiet, &m));
  const row rows[] = {
      ROW(kvarena_monitor_start(NULL, NULL)),
      ROW(kvarena_monitor_watch_device(m, NULL)),
      ROW(kvarena_monitor_unwatch_device(m, NULL)),
      ROW(kvarena_monitor_watch(m, NULL, "name")),
      ROW(kvarena_monitor_watch(m, c, NULL)),
      ROW(kvarena_monitor_unwatch(m, NULL)),
      ROW(kvarena_monitor_report_engine(m, NULL, 0, 0)),
      ROW(kvarena_monitor_is_healthy(m, NULL)),
      ROW(kvarena_monitor_port(m, NULL)),
      ROW(kvarena_plan_json(NULL, NULL, 0, NULL)),
  };
  CHECK_ROWS(rows);
  EXPECT_STATUS(kvarena_monitor_unwatch_device(m, d), KVARENA_NOT_FOUND, KVARENA_RESOURCE_DEVICE);
  EXPECT_OK(kvarena_monitor_release(m));
}

void test_null_arguments(void) {
  site s = open_site(NULL, NULL);
  check_devices(s.device);
  check_caches(s.device, s.cache);
  check_sequences(s.cache);
  check_steps(s.cache);
  check_pools();
  check_kernels(s.device);
  check_monitors(s.device, s.cache);
  EXPECT_OK(kvarena_sequence_destroy(s.cache, NULL, 0, 0));
  CHECK(sequence == 0 && holder == 0 && pointer == NULL && count == 0 && number == 0);
  CHECK(small == 0 && explanation.requested == 0);
  EXPECT_OK(kvarena_cache_check(s.cache));
  close_site(&s);
}
