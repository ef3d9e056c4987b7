// Pools and kernels: for engines with block tables of their own.

#include "capi_test.h"

#include <math.h>
#include <stdlib.h>

static int num_operations = 0;
static void count_operation(void* user, const kvarena_operation* operation) {
  CHECK(user == &num_operations && operation->struct_size == sizeof *operation);
  ++num_operations;
}

static kvarena_pool* open_pool(void) {
  kvarena_pool* pool = NULL;
  kvarena_pool_options options = {.struct_size = sizeof options,
                                  .num_blocks = 8,
                                  .watermark_blocks = 1,
                                  .name = "ids",
                                  .log = count_operation,
                                  .log_user = &num_operations};
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  return pool;
}

void test_pool(void) {
  kvarena_pool* pool = open_pool();
  kvarena_holder a = 0, b = 0;
  kvarena_holder_options options = {
      .struct_size = sizeof options, .number = 4, .owner = 9, .purpose = "request"};
  EXPECT_OK(kvarena_pool_open_holder(pool, &options, &a));
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &b));
  int32_t blocks[8];
  uint32_t generations[8];
  size_t evicted = 9;
  EXPECT_OK(kvarena_pool_allocate(pool, a, 3, 0, blocks, generations, &evicted));
  CHECK(blocks[0] == 0 && blocks[2] == 2 && evicted == 0);
  EXPECT_OK(kvarena_pool_retain(pool, b, blocks, generations, 1));
  kvarena_block_info info = SIZED(kvarena_block_info);
  EXPECT_OK(kvarena_pool_block(pool, 0, &info));
  CHECK(info.reference_count == 2 && info.claims == 2 && info.generation == generations[0]);
  EXPECT_OK(kvarena_pool_set_content(pool, 1, generations[1], KVARENA_CONTENT_PUBLISHED));
  EXPECT_OK(kvarena_pool_free(pool, b, blocks, generations, 1, 0));
  kvarena_ticket ticket = 0;
  EXPECT_OK(kvarena_pool_open_ticket(pool, &ticket));
  EXPECT_OK(kvarena_pool_free(pool, a, blocks, generations, 3, ticket));
  bool flag = false;
  EXPECT_OK(kvarena_pool_is_open(pool, ticket, &flag));
  CHECK(flag);
  int64_t now = 0, after = 0;
  EXPECT_OK(kvarena_pool_available(pool, ticket, &now, &after));
  CHECK(now == 5 && after == 8);
  EXPECT_OK(kvarena_pool_retire(pool, ticket));
  EXPECT_OK(kvarena_pool_block(pool, 1, &info));
  CHECK(info.state == KVARENA_BLOCK_EVICTABLE);
  EXPECT_OK(kvarena_pool_reserve(pool, a, 2, 0));
  const kvarena_holder_demand demands[2] = {{.holder = a, .count = 5}, {.holder = b, .count = 3}};
  EXPECT_OK(kvarena_pool_allocate_each(pool, demands, 2, 0, blocks, generations, 8, &evicted));
  CHECK(evicted == 1 && blocks[7] == 1);
  EXPECT_OK(kvarena_pool_can_allocate(pool, 1, 0, &flag));
  CHECK(!flag);
  kvarena_stats stats = SIZED(kvarena_stats);
  EXPECT_OK(kvarena_pool_stats(pool, &stats));
  CHECK(stats.referenced == 8 && stats.evictions == 1 && stats.sequences == 0);
  kvarena_holder_report report, reports[3];
  EXPECT_OK(kvarena_pool_holder(pool, a, &report));
  CHECK(report.references == 5 && report.owner == 9 && strcmp(report.purpose, "request") == 0);
  size_t count = 0;
  EXPECT_OK(kvarena_pool_holders(pool, reports, 3, &count));
  CHECK(count == 2);
  kvarena_explanation why = SIZED(kvarena_explanation);
  EXPECT_OK(kvarena_pool_explain(pool, NULL, 2, KVARENA_ADMISSION, &why));
  CHECK(!why.fits && why.returning[0] == -1 && why.num_largest == 2);
  EXPECT_OK(kvarena_pool_explain_json(pool, NULL, 2, 0, NULL, 0, &count));
  EXPECT_OK(kvarena_pool_explain_text(pool, NULL, 2, 0, NULL, 0, &count));
  CHECK(count > 10);
  EXPECT_OK(kvarena_pool_quarantine(pool, blocks[0], &flag));
  CHECK(!flag);
  EXPECT_OK(kvarena_pool_free(pool, a, blocks, generations, 5, 0));
  EXPECT_OK(kvarena_pool_free(pool, b, blocks + 5, generations + 5, 3, 0));
  EXPECT_OK(kvarena_pool_block(pool, blocks[0], &info));
  CHECK(info.state == KVARENA_BLOCK_OFFLINE);
  EXPECT_OK(kvarena_pool_restore(pool, blocks[0]));
  EXPECT_OK(kvarena_pool_close_holder(pool, a));
  EXPECT_OK(kvarena_pool_close_holder(pool, b));
  EXPECT_OK(kvarena_pool_check(pool));
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &a));
  EXPECT_OK(kvarena_pool_set_deadline(pool, a, 5));
  EXPECT_OK(kvarena_pool_holder(pool, a, &report));
  CHECK(report.deadline_ns == 5);
  EXPECT_CODE(kvarena_pool_set_deadline(pool, a + 1, 5), KVARENA_NOT_FOUND);
  CHECK(num_operations > 15);
  EXPECT_OK(kvarena_pool_release(pool));
}

void test_pool_refusals(void) {
  kvarena_pool* pool = open_pool();
  kvarena_holder a = 0;
  int32_t blocks[9] = {0};
  uint32_t generations[9] = {0};
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &a));
  EXPECT_STATUS(kvarena_pool_allocate(pool, a, 9, 0, blocks, generations, NULL), KVARENA_EXHAUSTED,
                KVARENA_RESOURCE_BLOCK);
  EXPECT_STATUS(kvarena_pool_allocate(pool, a + 1, 1, 0, blocks, generations, NULL),
                KVARENA_NOT_FOUND, KVARENA_RESOURCE_HOLDER);
  EXPECT_CODE(kvarena_pool_allocate(pool, a, 1, 5, blocks, generations, NULL),
              KVARENA_INVALID_ARGUMENT);
  const kvarena_holder_demand demands[2] = {{.holder = a, .count = 1}, {.holder = a, .count = 1}};
  EXPECT_CODE(kvarena_pool_allocate_each(pool, demands, 2, 0, blocks, generations, 2, NULL),
              KVARENA_DUPLICATE_ARGUMENT);
  EXPECT_STATUS(kvarena_pool_allocate_each(pool, demands, 1, 0, blocks, generations, 2, NULL),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  EXPECT_OK(kvarena_pool_allocate(pool, a, 1, 0, blocks, generations, NULL));
  ++generations[0];
  EXPECT_CODE(kvarena_pool_retain(pool, a, blocks, generations, 1), KVARENA_STALE_HANDLE);
  EXPECT_CODE(kvarena_pool_free(pool, a, blocks, generations, 1, 0), KVARENA_STALE_HANDLE);
  EXPECT_CODE(kvarena_pool_free(pool, a, blocks, generations, 1, 77), KVARENA_NOT_FOUND);
  --generations[0];
  EXPECT_CODE(kvarena_pool_set_content(pool, 0, generations[0], 9), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_pool_set_content(pool, 99, 0, 0), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_pool_quarantine(pool, -3, NULL), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_pool_restore(pool, 0), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_pool_retire(pool, 77), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_pool_close_holder(pool, a), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_pool_reserve(pool, a, -1, 0), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_pool_holder(pool, 77, &(kvarena_holder_report){0}), KVARENA_NOT_FOUND);
  kvarena_block_info info = SIZED(kvarena_block_info);
  EXPECT_CODE(kvarena_pool_block(pool, 8, &info), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_pool_check(pool));
  EXPECT_OK(kvarena_pool_release(pool));
  EXPECT_CODE(kvarena_pool_check(pool), KVARENA_STALE_HANDLE);
  kvarena_pool_options options = SIZED(kvarena_pool_options);
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_INVALID_ARGUMENT);
}

enum { kTokens = 3 };
typedef float rows[kTokens][kDim];

/// Causal attention of one head, by plain loops.
static void check_attention(rows k, rows v, rows q, rows out) {
  for (int t = 0; t < kTokens; ++t) {
    double weights[kTokens], sum = 0;
    for (int s = 0; s <= t; ++s) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += (double)q[t][d] * k[s][d];
      sum += weights[s] = exp(dot / sqrt(kDim));
    }
    for (int d = 0; d < kDim; ++d) {
      double expected = 0;
      for (int s = 0; s <= t; ++s) expected += weights[s] / sum * v[s][d];
      CHECK(fabs(expected - out[t][d]) < 1e-5);
    }
  }
}

/// Tables, slots and planes that are wrong.
static void check_refusals(kvarena_kernels* kernels, const kvarena_plane* key,
                           const kvarena_plane* value, kvarena_tables tables) {
  float k[kDim] = {0};
  const kvarena_write_args write = {
      .struct_size = sizeof write, .key = k, .value = k, .dtype = KVARENA_F32};
  const kvarena_attend_args attend = {.struct_size = sizeof attend, .q = k, .out = k};
  int32_t wrong[2] = {3, 9};
  tables.tables = wrong;
  EXPECT_STATUS(kvarena_kernels_schedule(kernels, &tables, 0, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_BLOCK_INDEX);
  wrong[1] = 1;
  EXPECT_OK(kvarena_kernels_schedule(kernels, &tables, 0, NULL));
  wrong[1] = 9;  // the array stays the engine's
  EXPECT_STATUS(kvarena_kernels_check_tables(kernels, 0, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_BLOCK_INDEX);
  tables.num_rows = 3;
  EXPECT_STATUS(kvarena_kernels_schedule(kernels, &tables, 0, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_SEQUENCES);
  const int64_t outside = 99;
  const kvarena_status refused =
      kvarena_kernels_write(kernels, key, value, &outside, 1, &write, 0, NULL);
  EXPECT_STATUS(refused, KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_TOKEN_INDEX);
  CHECK(kvarena_kernels_describe(&refused, NULL, 0) > 10);
  kvarena_plane strange = *key;
  strange.tile_order = 7;
  EXPECT_CODE(kvarena_kernels_attend(kernels, &strange, value, &attend, 0, NULL),
              KVARENA_INVALID_ARGUMENT);
}

/// One sequence of three tokens in two blocks of two.
void test_kernels(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  kvarena_cache_options layout = {.struct_size = sizeof layout,
                                  .num_layers = 1,
                                  .num_kv_heads = 1,
                                  .head_dim_k = kDim,
                                  .dtype = KVARENA_F32,
                                  .block_size_tokens = 2,
                                  .num_blocks = 4};
  kvarena_pool_plan plan = SIZED(kvarena_pool_plan);
  EXPECT_OK(kvarena_layout_plan(&layout, 0, &plan));
  void* memory = aligned_alloc(64, (size_t)plan.pool_bytes);
  kvarena_plane key = SIZED(kvarena_plane), value = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_layout_plane(&layout, memory, 4, 0, KVARENA_KEY, &key));
  EXPECT_OK(kvarena_layout_plane(&layout, memory, 4, 0, KVARENA_VALUE, &value));
  kvarena_kernels* kernels = NULL;
  kvarena_kernels_options options = {.struct_size = sizeof options,
                                     .num_kv_heads = 1,
                                     .head_dim_k = kDim,
                                     .dtype = KVARENA_F32,
                                     .block_size_tokens = 2,
                                     .num_q_heads = 1,
                                     .max_rows = 2,
                                     .max_q_tokens = 8,
                                     .num_blocks = 4,
                                     .window_tokens = 2,
                                     .num_threads = 1};
  EXPECT_OK(kvarena_kernels_create(device, &options, &kernels));
  int64_t bytes = 0;
  EXPECT_OK(kvarena_kernels_workspace_bytes(kernels, &bytes));
  CHECK(bytes > 0);
  rows k, v, q, out;
  for (int t = 0; t < kTokens; ++t) {
    for (int d = 0; d < kDim; ++d) {
      k[t][d] = sinf((float)(t * 7 + d));
      v[t][d] = cosf((float)(t * 5 + d));
      q[t][d] = sinf((float)(t + d * 3));
    }
  }
  const int32_t table[2] = {3, 1}, length = kTokens;
  const int64_t offset = 0, q_offsets[2] = {0, kTokens}, slots[kTokens] = {6, 7, 2};
  kvarena_attend_args attend = {.struct_size = sizeof attend, .q = q, .out = out};
  attend.q_dtype = attend.out_dtype = KVARENA_F32;
  EXPECT_STATUS(kvarena_kernels_attend(kernels, &key, &value, &attend, 0, NULL),
                KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_STEP);
  kvarena_tables tables = {.struct_size = sizeof tables,
                           .tables = table,
                           .table_stride = 2,
                           .row_offsets = &offset,
                           .lengths = &length,
                           .q_offsets = q_offsets,
                           .total_q = kTokens,
                           .num_rows = 1};
  EXPECT_OK(kvarena_kernels_schedule(kernels, &tables, 0, NULL));
  EXPECT_OK(kvarena_kernels_schedule(kernels, &tables, 1, NULL));
  EXPECT_OK(kvarena_kernels_check_tables(kernels, 0, NULL));
  kvarena_write_args write = {
      .struct_size = sizeof write, .key = k, .value = v, .dtype = KVARENA_F32};
  EXPECT_OK(kvarena_kernels_write(kernels, &key, &value, slots, kTokens, &write, 0, NULL));
  EXPECT_OK(kvarena_kernels_attend(kernels, &key, &value, &attend, 0, NULL));
  check_attention(k, v, q, out);
  const float all = out[2][0];
  attend.windowed = 1;
  EXPECT_OK(kvarena_kernels_attend(kernels, &key, &value, &attend, 0, NULL));
  CHECK(fabsf(out[2][0] - all) > 1e-4F);
  check_refusals(kernels, &key, &value, tables);
  EXPECT_OK(kvarena_kernels_release(kernels));
  EXPECT_CODE(kvarena_kernels_release(kernels), KVARENA_STALE_HANDLE);
  options.window_tokens = 0;
  EXPECT_OK(kvarena_kernels_create(device, &options, &kernels));
  EXPECT_STATUS(kvarena_kernels_schedule(kernels, &tables, 1, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_WINDOW);
  EXPECT_OK(kvarena_device_release(device));
  EXPECT_OK(kvarena_kernels_release(kernels));
  free(memory);
}
