// Steps and kernels on a GPU, against those on the host. Without a GPU only the refusal is looked
// at.

#include "capi_test.h"

#include <math.h>
#include <stdlib.h>

enum { kTokens = 5, kWide = 64, kRow = kHeads * kWide, kNumbers = kTokens * kRow };

/// Memory of a device with the numbers of `from`, or with zeros for NULL.
static float* numbers_on(kvarena_device* device, void* stream, const float* from) {
  kvarena_allocation request = {.struct_size = sizeof request,
                                .bytes = kNumbers * sizeof(float),
                                .purpose = KVARENA_INTERMEDIATE_BUFFERS};
  void* memory = NULL;
  EXPECT_OK(kvarena_memory_allocate(device, &request, &memory));
  EXPECT_OK(kvarena_memory_fill(device, memory, 0, request.bytes, stream));
  if (from != NULL) EXPECT_OK(kvarena_memory_copy(device, memory, from, request.bytes, stream));
  EXPECT_OK(kvarena_stream_synchronize(device, stream));
  return memory;
}

static void read_back(kvarena_device* device, void* stream, float* target, const float* memory) {
  EXPECT_OK(kvarena_memory_copy(device, target, memory, kNumbers * sizeof(float), stream));
  EXPECT_OK(kvarena_stream_synchronize(device, stream));
}

static kvarena_cache_options wide_options(void) {
  kvarena_cache_options options = cache_options();
  options.num_layers = 1;
  options.head_dim_k = kWide;
  options.dtype = KVARENA_F32;
  return options;
}

/// Attention of new tokens through a cache, in a step on `step_stream` (NULL: the last step's).
static void attend_by_cache(kvarena_device* device, void* step_stream, const float* x, float* out) {
  kvarena_cache* cache = NULL;
  const kvarena_cache_options options = wide_options();
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  void* stream = NULL;
  EXPECT_OK(kvarena_stream_create(device, &stream));
  float* const in = numbers_on(device, stream, x);
  float* const result = numbers_on(device, stream, NULL);
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(cache, NULL, &sequence));
  const kvarena_demand demand = {.sequence = sequence, .num_tokens = kTokens};
  kvarena_batch batch = SIZED(kvarena_batch);
  const kvarena_step_options step = {.struct_size = sizeof step, .stream = step_stream};
  EXPECT_OK(kvarena_step_begin(cache, &step));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, 0, &batch));
  kvarena_device_batch placed = SIZED(kvarena_device_batch);
  EXPECT_OK(kvarena_step_device_batch(cache, &placed));
  CHECK(placed.num_rows == 1 && placed.num_tokens == kTokens && placed.block_tables != NULL);
  const kvarena_write_args write = {
      .struct_size = sizeof write, .key = in, .value = in, .dtype = KVARENA_F32};
  const kvarena_attend_args attend = {.struct_size = sizeof attend,
                                      .q = in,
                                      .out = result,
                                      .q_dtype = KVARENA_F32,
                                      .out_dtype = KVARENA_F32};
  EXPECT_OK(kvarena_step_write(cache, &write));
  EXPECT_OK(kvarena_step_attend(cache, &attend));
  EXPECT_OK(kvarena_step_end(cache));
  EXPECT_OK(kvarena_cache_synchronize(cache));
  void* found = NULL;
  EXPECT_OK(kvarena_cache_stream(cache, &found));
  CHECK(step_stream == NULL || found == step_stream);
  read_back(device, stream, out, result);
  EXPECT_OK(kvarena_cache_release(cache));
  EXPECT_OK(kvarena_memory_free(device, in));
  EXPECT_OK(kvarena_memory_free(device, result));
  EXPECT_OK(kvarena_stream_destroy(device, stream));
}

/// The rows of a step in device memory.
typedef struct step_rows {
  int32_t table[1], slot[1], length[1], padding;
  int64_t offset[1], q_offsets[2], slots[kTokens];
} step_rows;

/// The same through kernels on tables of our own.
static void attend_by_kernels(kvarena_device* device, const float* x, float* out) {
  void* stream = NULL;
  EXPECT_OK(kvarena_stream_create(device, &stream));
  const kvarena_cache_options layout = wide_options();
  kvarena_pool_plan plan = SIZED(kvarena_pool_plan);
  EXPECT_OK(kvarena_layout_plan(&layout, 0, &plan));
  kvarena_allocation request = {.struct_size = sizeof request,
                                .bytes = (uint64_t)plan.pool_bytes,
                                .purpose = KVARENA_KV_CACHE};
  void *pool = NULL, *memory = NULL;
  EXPECT_OK(kvarena_memory_allocate(device, &request, &pool));
  kvarena_plane key = SIZED(kvarena_plane), value = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_layout_plane(&layout, pool, kBlocks, 0, KVARENA_KEY, &key));
  EXPECT_OK(kvarena_layout_plane(&layout, pool, kBlocks, 0, KVARENA_VALUE, &value));
  step_rows rows = {.table = {7}, .length = {kTokens}, .q_offsets = {0, kTokens}};
  for (int t = 0; t < kTokens; ++t) rows.slots[t] = 7 * kBlockSize + t;
  request.bytes = sizeof rows;
  request.purpose = KVARENA_INTERMEDIATE_BUFFERS;
  EXPECT_OK(kvarena_memory_allocate(device, &request, &memory));
  EXPECT_OK(kvarena_memory_copy(device, memory, &rows, sizeof rows, stream));
  float* const in = numbers_on(device, stream, x);
  float* const result = numbers_on(device, stream, NULL);
  const step_rows* const placed = memory;
  const int32_t new_tokens = kTokens;
  const kvarena_tables tables = {.struct_size = sizeof tables,
                                 .tables = placed->table,
                                 .table_stride = 1,
                                 .row_offsets = placed->offset,
                                 .row_slots = placed->slot,
                                 .lengths = placed->length,
                                 .q_offsets = placed->q_offsets,
                                 .query_tokens = &new_tokens,
                                 .total_q = kTokens,
                                 .num_rows = 1};
  const kvarena_kernels_options options = {.struct_size = sizeof options,
                                           .num_kv_heads = kHeads,
                                           .head_dim_k = kWide,
                                           .dtype = KVARENA_F32,
                                           .num_q_heads = kHeads,
                                           .max_rows = 4,
                                           .max_q_tokens = 64,
                                           .num_blocks = kBlocks};
  kvarena_kernels* kernels = NULL;
  EXPECT_OK(kvarena_kernels_create(device, &options, &kernels));
  EXPECT_OK(kvarena_kernels_schedule(kernels, &tables, 0, stream));
  EXPECT_OK(kvarena_kernels_check_tables(kernels, 0, stream));
  const kvarena_write_args write = {
      .struct_size = sizeof write, .key = in, .value = in, .dtype = KVARENA_F32};
  const kvarena_attend_args attend = {.struct_size = sizeof attend,
                                      .q = in,
                                      .out = result,
                                      .q_dtype = KVARENA_F32,
                                      .out_dtype = KVARENA_F32};
  EXPECT_OK(
      kvarena_kernels_write(kernels, &key, &value, placed->slots, kTokens, &write, 0, stream));
  EXPECT_OK(kvarena_kernels_attend(kernels, &key, &value, &attend, 0, stream));
  read_back(device, stream, out, result);
  EXPECT_OK(kvarena_kernels_release(kernels));
  for (void* const* m = (void*[]){in, result, memory, pool, NULL}; *m != NULL; ++m) {
    EXPECT_OK(kvarena_memory_free(device, *m));
  }
  EXPECT_OK(kvarena_stream_destroy(device, stream));
}

static void check_same(const float* expected, const float* found) {
  for (int i = 0; i < kNumbers; ++i) CHECK(fabsf(expected[i] - found[i]) < 1e-3F);
}

void test_cuda(void) {
  static float x[kNumbers], on_host[kNumbers], found[kNumbers];
  for (int i = 0; i < kNumbers; ++i) x[i] = sinf((float)(i * 37 % 101));
  kvarena_device *host = NULL, *device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &host));
  attend_by_cache(host, NULL, x, on_host);
  attend_by_kernels(host, x, found);
  check_same(on_host, found);
  EXPECT_OK(kvarena_device_release(host));
  const kvarena_status opened = kvarena_device_open_cuda(NULL, &device);
  if (opened.code != KVARENA_OK) {
    const char* required = getenv("KVARENA_REQUIRE_GPU");
    CHECK(required == NULL || strcmp(required, "1") != 0);
    CHECK(opened.code == KVARENA_DEVICE_ERROR || opened.code == KVARENA_UNSUPPORTED);
    CHECK(device == NULL && (kvarena_has_cuda() || opened.code == KVARENA_UNSUPPORTED));
    printf("no GPU: %s\n", kvarena_name_of_code(opened.code));
    return;
  }
  void* const streams[] = {NULL, (void*)KVARENA_STREAM_LEGACY, (void*)KVARENA_STREAM_PER_THREAD};
  for (size_t i = 0; i < sizeof streams / sizeof streams[0]; ++i) {
    attend_by_cache(device, streams[i], x, found);
    check_same(on_host, found);
  }
  attend_by_kernels(device, x, found);
  check_same(on_host, found);
  kvarena_device_info info = SIZED(kvarena_device_info);
  EXPECT_OK(kvarena_device_ask(device, &info));
  CHECK(info.is_cuda == 1 && info.num_sms > 0 && info.tracked_bytes == 0);
  EXPECT_OK(kvarena_memory_verify(device, NULL, 0, NULL));
  EXPECT_OK(kvarena_device_release(device));
}
