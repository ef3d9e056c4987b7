// Library, devices, memory, layout, plans, monitors.

#include "capi_test.h"

#include <stdlib.h>
#include <string.h>

static int num_lines = 0;
static void count_line(void* user, int32_t level, const char* line, size_t length) {
  CHECK(user == &num_lines && level >= KVARENA_LOG_DEBUG && strlen(line) == length);
  ++num_lines;
}

static int num_violations = 0;
static void count_violation(void* user, const kvarena_status* status, const char* call,
                            const char* object) {
  CHECK(user == &num_violations && status->code != KVARENA_OK && call[0] != '\0' && object != NULL);
  ++num_violations;
}

void test_library(void) {
  CHECK(kvarena_abi() == KVARENA_ABI);
  CHECK(strchr(kvarena_version(), '.') != NULL);
  CHECK(kvarena_now_ns() > 0);
  CHECK(strcmp(kvarena_name_of_code(KVARENA_EXHAUSTED), "exhausted") == 0);
  CHECK(strcmp(kvarena_name_of_code(200), "unknown") == 0);
  CHECK(strcmp(kvarena_name_of_resource(KVARENA_RESOURCE_BLOCK), "block") == 0);
  CHECK(strcmp(kvarena_name_of_resource(200), "unknown") == 0);
  CHECK(strcmp(kvarena_name_of_option(60000), "unknown") == 0);
  const kvarena_status ok = {0};
  char text[3];
  CHECK(kvarena_describe(&ok, NULL, 0) == 2);
  CHECK(kvarena_describe(&ok, text, 2) == 2 && strcmp(text, "o") == 0);
  CHECK(kvarena_describe(&ok, text, 3) == 2 && strcmp(text, "ok") == 0);
  CHECK(kvarena_describe(NULL, NULL, 0) > 0);
  CHECK(kvarena_kernels_describe(&ok, NULL, 0) > 0);
  EXPECT_CODE(kvarena_set_log(count_line, NULL, 9), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_set_log(count_line, &num_lines, KVARENA_LOG_DEBUG));
  site s = open_site(NULL, NULL);
  close_site(&s);
  CHECK(num_lines > 0);
  EXPECT_OK(kvarena_set_log(NULL, NULL, KVARENA_LOG_OFF));
  const int before = num_lines;
  kvarena_set_violation(count_violation, &num_violations);
  kvarena_pool* pool = NULL;
  kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 4, .name = "ids"};
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  kvarena_holder holder = 0;
  int32_t block = 0;
  uint32_t generation = 0;
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &holder));
  EXPECT_OK(kvarena_pool_allocate(pool, holder, 1, 0, &block, &generation, NULL));
  EXPECT_OK(kvarena_pool_free(pool, holder, &block, &generation, 1, 0));
  EXPECT_CODE(kvarena_pool_free(pool, holder, &block, &generation, 1, 0), KVARENA_DOUBLE_RELEASE);
  CHECK(num_violations == 1 && num_lines == before);
  kvarena_set_violation(NULL, NULL);
  EXPECT_OK(kvarena_pool_release(pool));
}

void test_devices(void) {
  kvarena_device* device = NULL;
  kvarena_host_options options = {.struct_size = sizeof options, .capacity_bytes = 1 << 20};
  EXPECT_OK(kvarena_device_open_host(&options, &device));
  kvarena_device_info info = SIZED(kvarena_device_info);
  EXPECT_OK(kvarena_device_ask(device, &info));
  CHECK(info.total_bytes == 1 << 20 && info.is_cuda == 0 && info.ordinal == -1);
  char text[32];
  size_t length = 0;
  EXPECT_OK(kvarena_device_name(device, text, sizeof text, &length));
  CHECK(strcmp(text, "host") == 0 && length == 4);
  EXPECT_OK(kvarena_device_json(device, NULL, 0, &length));
  CHECK(length > 10);
  EXPECT_OK(kvarena_device_report(device, NULL, 0, &length));
  CHECK(length > 10);
  const kvarena_status ok = {0};
  EXPECT_OK(kvarena_device_describe(device, &ok, text, sizeof text, NULL));
  CHECK(strcmp(text, "ok") == 0);
  EXPECT_OK(kvarena_devices_json(0, NULL, 0, &length));
  EXPECT_OK(kvarena_devices_json(1, NULL, 0, &length));
  kvarena_target target = SIZED(kvarena_target);
  EXPECT_OK(kvarena_device_target(device, &target));
  CHECK(target.is_cuda == 0);
  // A cache keeps its device.
  kvarena_cache* cache = NULL;
  kvarena_cache_options wanted = cache_options();
  EXPECT_OK(kvarena_cache_create(device, &wanted, &cache));
  EXPECT_OK(kvarena_device_release(device));
  EXPECT_CODE(kvarena_device_release(device), KVARENA_STALE_HANDLE);
  EXPECT_CODE(kvarena_device_ask(device, &info), KVARENA_STALE_HANDLE);
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(cache, NULL, &sequence));
  append_tokens(cache, sequence, 3);
  EXPECT_OK(kvarena_cache_release(cache));
  options.max_streams = 5000;
  EXPECT_CODE(kvarena_device_open_host(&options, &device), KVARENA_INVALID_ARGUMENT);
}

void test_memory(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  kvarena_allocation request = {.struct_size = sizeof request,
                                .bytes = 4096,
                                .purpose = KVARENA_KV_CACHE,
                                .description = "a pool of the engine's"};
  void *memory = NULL, *other = NULL;
  EXPECT_OK(kvarena_memory_allocate(device, &request, &memory));
  request.purpose = 9;
  EXPECT_CODE(kvarena_memory_allocate(device, &request, &other), KVARENA_INVALID_ARGUMENT);
  request.purpose = KVARENA_KV_CACHE;
  request.kind = 7;
  EXPECT_CODE(kvarena_memory_allocate(device, &request, &other), KVARENA_INVALID_ARGUMENT);
  request.kind = KVARENA_MEMORY_STAGING;
  EXPECT_CODE(kvarena_memory_allocate(device, &request, &other), KVARENA_UNSUPPORTED);
  request.kind = KVARENA_MEMORY_DEVICE;
  int32_t place = -1, ordinal = 0;
  EXPECT_OK(kvarena_memory_place(device, memory, 4096, &place, &ordinal));
  CHECK(place == KVARENA_PLACE_HOST_DEVICE && ordinal == -1);
  void* stream = NULL;
  EXPECT_OK(kvarena_stream_create(device, &stream));
  unsigned char from[64], to[64];
  memset(from, 7, sizeof from);
  EXPECT_OK(kvarena_memory_fill(device, memory, 1, 64, stream));
  for (int shift = 49; shift < 64; ++shift) {  // more than there can be
    const uint64_t bytes = (uint64_t)1 << shift;
    EXPECT_STATUS(kvarena_memory_fill(device, memory, 1, bytes, stream), KVARENA_INVALID_ARGUMENT,
                  KVARENA_RESOURCE_SPAN_SIZE);
  }
  // CUDA's default streams are none of the host's, also when the device has made streams.
  EXPECT_CODE(kvarena_memory_fill(device, memory, 1, 64, (void*)KVARENA_STREAM_LEGACY),
              KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_stream_destroy(device, (void*)KVARENA_STREAM_PER_THREAD), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_memory_copy(device, memory, from, 32, stream));
  EXPECT_OK(kvarena_stream_synchronize(device, stream));
  EXPECT_OK(kvarena_memory_copy(device, to, memory, 64, stream));
  EXPECT_OK(kvarena_stream_synchronize(device, stream));
  CHECK(to[0] == 7 && to[31] == 7 && to[32] == 1);
  EXPECT_STATUS(kvarena_memory_copy(device, memory, from, 1, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  EXPECT_STATUS(kvarena_stream_synchronize(device, from), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_STREAM);
  EXPECT_OK(kvarena_stream_destroy(device, stream));
  EXPECT_CODE(kvarena_stream_destroy(device, stream), KVARENA_NOT_FOUND);
  void* own = aligned_alloc(256, 4096);
  EXPECT_OK(kvarena_memory_register(device, own, &request, 1));
  EXPECT_CODE(kvarena_memory_register(device, own, &request, 1), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_memory_free(device, own), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_memory_unregister(device, own));
  EXPECT_CODE(kvarena_memory_unregister(device, own), KVARENA_NOT_FOUND);
  free(own);
  EXPECT_OK(kvarena_memory_report(device, "torch", KVARENA_MODEL_WEIGHTS, 1000));
  EXPECT_CODE(kvarena_memory_report(device, "", KVARENA_MODEL_WEIGHTS, 1),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_memory_report(device, "torch", 9, 1), KVARENA_INVALID_ARGUMENT);
  size_t length = 0;
  EXPECT_OK(kvarena_memory_verify(device, NULL, 0, &length));
  CHECK(length > 10);
  EXPECT_OK(kvarena_memory_free(device, memory));
  EXPECT_CODE(kvarena_memory_free(device, memory), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_device_release(device));
}

/// Tries to free every address that `json` lists.
static int refused_frees(kvarena_device* device, const char* json) {
  int count = 0;
  const char* key = "\"address\":";
  for (const char* at = strstr(json, key); at != NULL; at = strstr(at + 1, key)) {
    void* const memory = (void*)(uintptr_t)strtoull(at + strlen(key), NULL, 10);
    EXPECT_STATUS(kvarena_memory_free(device, memory), KVARENA_NOT_FOUND,
                  KVARENA_RESOURCE_ALLOCATION);
    ++count;
  }
  return count;
}

void test_memory_of_objects(void) {
  site s = open_site(NULL, NULL);
  kvarena_kernels_options options = {.struct_size = sizeof options,
                                     .num_kv_heads = kHeads,
                                     .head_dim_k = kDim,
                                     .num_q_heads = kHeads,
                                     .dtype = KVARENA_F32,
                                     .max_rows = 1,
                                     .max_q_tokens = 4,
                                     .num_blocks = kBlocks,
                                     .num_threads = 1};
  kvarena_kernels* kernels = NULL;
  EXPECT_OK(kvarena_kernels_create(s.device, &options, &kernels));
  kvarena_plane plane = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_cache_plane(s.cache, 0, KVARENA_KEY, &plane));
  EXPECT_STATUS(kvarena_memory_free(s.device, plane.base), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_ALLOCATION);
  static char json[65536];
  size_t length = 0;
  EXPECT_OK(kvarena_device_json(s.device, json, sizeof json, &length));
  CHECK(length < sizeof json && strstr(json, "of kernels") != NULL);
  CHECK(refused_frees(s.device, json) >= 2);
  void* stream = NULL;
  EXPECT_OK(kvarena_cache_stream(s.cache, &stream));
  EXPECT_STATUS(kvarena_stream_destroy(s.device, stream), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_STREAM);
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, NULL, &sequence));
  append_tokens(s.cache, sequence, 3);
  EXPECT_OK(kvarena_cache_synchronize(s.cache));
  EXPECT_OK(kvarena_kernels_release(kernels));
  close_site(&s);
}

void test_layout(void) {
  kvarena_cache_options options = cache_options();
  options.dtype = KVARENA_F32;
  kvarena_pool_plan plan = SIZED(kvarena_pool_plan);
  EXPECT_OK(kvarena_layout_plan(&options, 0, &plan));
  CHECK(plan.num_blocks == kBlocks && plan.pool_bytes == plan.num_blocks * plan.block_bytes);
  CHECK(plan.bytes_per_token == 2 * 2 * kHeads * kDim * 4);
  options.num_blocks = 0;
  options.all_free_but_bytes = -1;
  EXPECT_OK(kvarena_layout_plan(&options, plan.pool_bytes + 5, &plan));
  CHECK(plan.num_blocks == kBlocks && plan.slack_bytes == 5);
  float* memory = malloc((size_t)plan.pool_bytes);
  kvarena_plane key = SIZED(kvarena_plane), value = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_layout_plane(&options, memory, kBlocks, 1, KVARENA_KEY, &key));
  EXPECT_OK(kvarena_layout_plane(&options, memory, kBlocks, 1, KVARENA_VALUE, &value));
  CHECK((char*)key.base > (char*)memory && value.base > key.base);
  CHECK(key.block_stride_bytes == plan.block_bytes && key.num_heads == kHeads);
  const kvarena_layer_group group = SIZED(kvarena_layer_group);
  kvarena_cache_options grouped = options;
  grouped.groups = &group;
  grouped.num_groups = 1;
  const kvarena_status no_groups = kvarena_layout_plan(&grouped, 1 << 20, &plan);
  EXPECT_CODE(no_groups, KVARENA_UNSUPPORTED);
  CHECK(strcmp(kvarena_name_of_option(no_groups.option), "groups") == 0);
  EXPECT_CODE(kvarena_layout_plane(&grouped, memory, kBlocks, 1, KVARENA_KEY, &key),
              KVARENA_UNSUPPORTED);
  kvarena_cache_options chunked = options;
  chunked.tile_order = KVARENA_TILE_CHUNKED;
  chunked.dtype = KVARENA_F32;
  chunked.num_blocks = kBlocks;
  chunked.all_free_but_bytes = 0;
  const kvarena_status refused = kvarena_layout_plan(&chunked, 0, &plan);
  EXPECT_CODE(refused, KVARENA_UNSUPPORTED);
  CHECK(refused.subject == KVARENA_F32);
  char text[128];
  kvarena_describe(&refused, text, sizeof text);
  CHECK(strstr(text, "f32") != NULL);
  EXPECT_STATUS(kvarena_layout_plane(&options, memory, kBlocks, 2, KVARENA_KEY, &key),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_LAYER);
  EXPECT_CODE(kvarena_layout_plane(&options, memory, kBlocks, 1, 2, &key),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_layout_plane(&options, memory, 0, 1, KVARENA_KEY, &key),
              KVARENA_INVALID_ARGUMENT);
  options.tile_order = 3;
  EXPECT_CODE(kvarena_layout_plan(&options, 0, &plan), KVARENA_INVALID_ARGUMENT);
  free(memory);
}

void test_plans(void) {
  size_t length = 0;
  EXPECT_OK(kvarena_presets_json(NULL, 0, &length));
  CHECK(length > 100);
  const char* request = "{\"model\": \"Qwen2.5-0.5B\", \"gpu\": \"RTX-4090\", \"batch\": 4}";
  EXPECT_OK(kvarena_plan_json(request, NULL, 0, &length));
  char* text = malloc(length + 1);
  EXPECT_OK(kvarena_plan_json(request, text, length + 1, &length));
  CHECK(strlen(text) == length && strstr(text, "\"fits\":true") != NULL);
  CHECK(strstr(text, "\"cache\":{\"num_layers\":24") != NULL);
  char why[200];
  EXPECT_CODE(kvarena_plan_json("nothing", why, sizeof why, NULL), KVARENA_PARSE_ERROR);
  EXPECT_CODE(kvarena_plan_json("{}", why, sizeof why, NULL), KVARENA_PARSE_ERROR);
  EXPECT_CODE(kvarena_plan_json("{\"model\": \"nobody's\"}", why, sizeof why, NULL),
              KVARENA_NOT_FOUND);
  CHECK(strstr(why, "nobody's") != NULL);
  EXPECT_CODE(kvarena_plan_json("{\"model\": \"Qwen2.5-0.5B\"}", why, sizeof why, NULL),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(
      kvarena_plan_json("{\"model\": \"Qwen2.5-0.5B\", \"memory\": 1}", why, sizeof why, NULL),
      KVARENA_PARSE_ERROR);
  EXPECT_CODE(kvarena_plan_json("{\"model\": \"Qwen2.5-0.5B\", \"batch\": 99999999999999999999}",
                                why, sizeof why, NULL),
              KVARENA_PARSE_ERROR);
  free(text);
}
