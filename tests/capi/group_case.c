// Caches whose layers keep different data. Keys are zero, so that a token's output is the mean of
// the values that it sees; the value of token i is i.

#include "capi_test.h"

#include <math.h>

enum { kMost = 256, kWindow = 40, kChunk = 32, kEncoder = 20, kPages = 40 };

static float keys[kMost * kHeads * kDim], values[kMost * kHeads * kDim],
    found[kMost * kHeads * kDim];

static kvarena_layer_group group_of(const kvarena_group_layer* layers, int32_t count, int32_t kind,
                                    int64_t limit) {
  return (kvarena_layer_group){.struct_size = sizeof(kvarena_layer_group),
                               .layers = layers,
                               .num_layers = count,
                               .kind = kind,
                               .limit_tokens = limit,
                               .num_kv_heads = kHeads,
                               .head_dim_k = kDim,
                               .dtype = KVARENA_F32};
}

static const kvarena_group_layer kFull[] = {{0, 0}, {4, 0}};  // layer 4 reads those of layer 0
static const kvarena_group_layer kWindowed[] = {{1, 1}};
static const kvarena_group_layer kChunked[] = {{2, 2}};
static const kvarena_group_layer kCross[] = {{3, 3}};

static kvarena_cache* open_cache(kvarena_device* device) {
  const kvarena_layer_group groups[] = {
      group_of(kFull, 2, KVARENA_GROUP_FULL, 0),
      group_of(kWindowed, 1, KVARENA_GROUP_WINDOW, kWindow),
      group_of(kChunked, 1, KVARENA_GROUP_CHUNK, kChunk),
      group_of(kCross, 1, KVARENA_GROUP_CROSS, kEncoder),
  };
  const kvarena_cache_options options = {.struct_size = sizeof options,
                                         .num_blocks = kPages,
                                         .num_q_heads = kHeads,
                                         .max_sequences = 8,
                                         .max_sequence_tokens = kMost,
                                         .max_step_tokens = kMost,
                                         .num_threads = 1,
                                         .groups = groups,
                                         .num_groups = 4,
                                         .page_sequence_tokens = 1024};
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  return cache;
}

/// Appends tokens first .. first + count - 1, and returns the last one's output in each layer.
static void append_counted(kvarena_cache* cache, kvarena_sequence sequence, int first, int count,
                           bool has_encoder, float outputs[5]) {
  const size_t row = kHeads * kDim;
  kvarena_demand demand = {.sequence = sequence, .num_tokens = count};
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  CHECK(batch.num_tokens == count);
  for (int layer = 0; layer < 5; ++layer) {
    const bool writes = layer < 3;
    const int offset = layer == 3 ? 1000 : first;
    for (size_t i = 0; i < kMost * row; ++i) values[i] = (float)(offset + (int)(i / row));
    if (writes) {
      kvarena_write_args write = {.struct_size = sizeof write,
                                  .key = keys,
                                  .value = values,
                                  .layer = layer,
                                  .dtype = KVARENA_F32};
      EXPECT_OK(kvarena_step_write(cache, &write));
    } else if (layer == 3 && has_encoder) {
      kvarena_write_cross_args write = {.struct_size = sizeof write,
                                        .sequence = sequence,
                                        .key = keys,
                                        .value = values,
                                        .layer = layer,
                                        .dtype = KVARENA_F32};
      EXPECT_OK(kvarena_step_write_cross(cache, &write));
    }
    kvarena_attend_args attend = {.struct_size = sizeof attend,
                                  .q = keys,
                                  .out = found,
                                  .layer = layer,
                                  .q_dtype = KVARENA_F32,
                                  .out_dtype = KVARENA_F32};
    EXPECT_OK(kvarena_step_attend(cache, &attend));
    EXPECT_OK(kvarena_cache_synchronize(cache));
    outputs[layer] = found[(size_t)(count - 1) * row];
  }
  EXPECT_OK(kvarena_step_end(cache));
  EXPECT_OK(kvarena_cache_synchronize(cache));
}

static bool is_near(float a, double b) { return fabs((double)a - b) < 1e-3; }

/// The mean of the values first .. last.
static double mean_of(int first, int last) { return (first + last) / 2.0; }

static void check_outputs(const float outputs[5], int last) {
  const int window = last + 1 > kWindow ? last + 1 - kWindow : 0;
  CHECK(is_near(outputs[0], mean_of(0, last)));
  CHECK(is_near(outputs[1], mean_of(window, last)));
  CHECK(is_near(outputs[2], mean_of(last / kChunk * kChunk, last)));
  CHECK(is_near(outputs[3], mean_of(1000, 1000 + kEncoder - 1)));
  CHECK(is_near(outputs[4], mean_of(0, last)));
}

static kvarena_sequence create_with_encoder(kvarena_cache* cache) {
  const kvarena_sequence_options options = {.struct_size = sizeof options,
                                            .cross_tokens = kEncoder};
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(cache, &options, &sequence));
  return sequence;
}

static void check_figures(kvarena_cache* cache, int64_t referenced_pages) {
  kvarena_page_stats pages = SIZED(kvarena_page_stats);
  EXPECT_OK(kvarena_cache_pages(cache, &pages));
  CHECK(pages.num_pages == kPages && pages.page_bytes > 0);
  CHECK(pages.free + pages.of_groups + pages.offline == kPages);
  CHECK(pages.of_groups == referenced_pages || referenced_pages < 0);
  int32_t parts = 0;
  EXPECT_OK(kvarena_cache_num_parts(cache, &parts));
  CHECK(parts >= 4);
  int64_t carved = 0;
  for (int32_t i = 0; i < parts; ++i) {
    kvarena_part_stats part = SIZED(kvarena_part_stats);
    EXPECT_OK(kvarena_cache_part(cache, i, &part));
    CHECK(part.block_size_tokens == 16 && part.blocks_per_page >= 1 && part.block_bytes > 0);
    CHECK(part.free + part.referenced + part.fenced + part.evictable + part.offline ==
          part.pages * part.blocks_per_page);
    carved += part.pages;
  }
  CHECK(carved == pages.of_groups);
  static char text[16384];
  EXPECT_OK(kvarena_cache_stats_json(cache, text, sizeof text, NULL));
  char expected[96];
  snprintf(expected, sizeof expected, "\"pages\":{\"total\":%d,\"free\":%lld,", kPages,
           (long long)pages.free);
  CHECK(strstr(text, expected) != NULL);
  CHECK(strstr(text, "\"groups\":[{\"group\":0,\"kind\":\"full\",") != NULL);
  CHECK(strstr(text, "\"kind\":\"cross\"") != NULL);
  kvarena_part_stats part = SIZED(kvarena_part_stats);
  EXPECT_STATUS(kvarena_cache_part(cache, parts, &part), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_GROUPS);
  EXPECT_OK(kvarena_cache_check(cache));
}

static void check_sequences(kvarena_cache* cache) {
  const kvarena_sequence a = create_with_encoder(cache);
  float outputs[5];
  append_counted(cache, a, 0, 100, true, outputs);
  check_outputs(outputs, 99);
  append_counted(cache, a, 100, 1, false, outputs);
  check_outputs(outputs, 100);
  check_figures(cache, -1);
  // Token 61 is the oldest that the window of token 101 reads.
  int32_t blocks[16];
  size_t count = 0;
  int64_t first = 0;
  EXPECT_OK(kvarena_sequence_group_blocks(cache, a, 0, blocks, 16, &count, &first));
  CHECK(count == 7 && first == 0);
  EXPECT_OK(kvarena_sequence_group_blocks(cache, a, 1, blocks, 16, &count, &first));
  CHECK(first == 3 && count == 4);
  EXPECT_STATUS(kvarena_sequence_group_blocks(cache, a, 1, blocks, 3, &count, &first),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  CHECK(count == 4);
  EXPECT_STATUS(kvarena_sequence_group_blocks(cache, a, 9, blocks, 3, &count, &first),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_NUM_GROUPS);
  // What has left the window cannot be had again.
  int64_t restorable = -1;
  EXPECT_OK(kvarena_sequence_restorable_length(cache, a, 101, &restorable));
  CHECK(restorable == 101);
  EXPECT_OK(kvarena_sequence_restorable_length(cache, a, 50, &restorable));
  CHECK(restorable == 0);
  EXPECT_CODE(kvarena_sequence_truncate(cache, a, 50, 0), KVARENA_FAILED_PRECONDITION);
  kvarena_sequence fork = 0;
  EXPECT_OK(kvarena_sequence_fork(cache, a, 101, NULL, &fork));
  append_counted(cache, fork, 101, 30, false, outputs);
  check_outputs(outputs, 130);
  const kvarena_sequence both[2] = {a, fork};
  EXPECT_OK(kvarena_sequence_destroy(cache, both, 2, 0));
  check_figures(cache, 0);
}

/// A sequence made from the blocks of another goes on as that one would have.
static void check_create_from(kvarena_cache* cache) {
  const kvarena_sequence a = create_with_encoder(cache);
  float outputs[5];
  append_counted(cache, a, 0, 96, true, outputs);
  int32_t parts = 0;
  EXPECT_OK(kvarena_cache_num_parts(cache, &parts));
  int32_t blocks[8][16];
  uint32_t generations[8][16];
  kvarena_group_blocks given[8];
  CHECK(parts <= 8);
  for (int32_t i = 0; i < parts; ++i) {
    size_t count = 0;
    given[i] = SIZED(kvarena_group_blocks);
    EXPECT_OK(
        kvarena_sequence_group_blocks(cache, a, i, blocks[i], 16, &count, &given[i].first_block));
    for (size_t b = 0; b < count; ++b) {
      kvarena_block_info info = SIZED(kvarena_block_info);
      EXPECT_OK(kvarena_cache_block(cache, blocks[i][b], &info));
      generations[i][b] = info.generation;
    }
    given[i].blocks = blocks[i];
    given[i].generations = generations[i];
    given[i].num_blocks = count;
  }
  const kvarena_sequence_options options = {.struct_size = sizeof options,
                                            .cross_tokens = kEncoder};
  kvarena_sequence b = 0;
  EXPECT_STATUS(kvarena_sequence_create_from(cache, 96, given, (size_t)parts + 1, &options, &b),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_NUM_GROUPS);
  generations[0][1] += 1;
  EXPECT_CODE(kvarena_sequence_create_from(cache, 96, given, (size_t)parts, &options, &b),
              KVARENA_STALE_HANDLE);
  generations[0][1] -= 1;
  given[1].struct_size += 8;
  EXPECT_STATUS(kvarena_sequence_create_from(cache, 96, given, (size_t)parts, &options, &b),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  given[1].struct_size -= 8;
  EXPECT_OK(kvarena_sequence_create_from(cache, 96, given, (size_t)parts, &options, &b));
  EXPECT_OK(kvarena_sequence_destroy(cache, &a, 1, 0));
  append_counted(cache, b, 96, 5, false, outputs);
  check_outputs(outputs, 100);
  EXPECT_OK(kvarena_sequence_destroy(cache, &b, 1, 0));
  check_figures(cache, 0);
}

static void check_batches(kvarena_cache* cache) {
  const kvarena_sequence a = create_with_encoder(cache);
  kvarena_demand demand = {.sequence = a, .num_tokens = 20};
  kvarena_batch batch = SIZED(kvarena_batch);
  kvarena_device_batch its = SIZED(kvarena_device_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  EXPECT_OK(kvarena_step_group_batch(cache, 1, &its));
  CHECK(its.num_rows == 1 && its.num_tokens == 20);
  EXPECT_STATUS(kvarena_step_group_batch(cache, 9, &its), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_GROUPS);
  kvarena_plane plane = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_cache_plane(cache, 4, KVARENA_KEY, &plane));
  kvarena_write_cross_args cross = {.struct_size = sizeof cross,
                                    .sequence = a + 1,
                                    .key = keys,
                                    .value = values,
                                    .layer = 3,
                                    .dtype = KVARENA_F32};
  EXPECT_CODE(kvarena_step_write_cross(cache, &cross), KVARENA_NOT_FOUND);
  cross.sequence = a;
  cross.layer = 0;
  EXPECT_CODE(kvarena_step_write_cross(cache, &cross), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_step_abort(cache));
  EXPECT_OK(kvarena_sequence_destroy(cache, &a, 1, 0));
}

/// A block is there only while its page is carved into blocks of its group.
static void check_absent_blocks(kvarena_cache* cache) {
  const kvarena_sequence a = create_with_encoder(cache);
  float outputs[5];
  append_counted(cache, a, 0, 5, true, outputs);
  int32_t blocks[16];
  size_t count = 0;
  int64_t first = 0;
  EXPECT_OK(kvarena_sequence_group_blocks(cache, a, 1, blocks, 16, &count, &first));
  CHECK(count == 1);
  kvarena_block_info info = SIZED(kvarena_block_info);
  EXPECT_OK(kvarena_cache_block(cache, blocks[0], &info));
  CHECK(info.state == KVARENA_BLOCK_REFERENCED);
  EXPECT_OK(kvarena_sequence_destroy(cache, &a, 1, 0));
  EXPECT_OK(kvarena_cache_block(cache, blocks[0], &info));
  CHECK(info.state == KVARENA_BLOCK_ABSENT && info.reference_count == 0);
}

static void check_refusals(kvarena_device* device) {
  kvarena_layer_group groups[2] = {group_of(kFull, 2, KVARENA_GROUP_FULL, 0),
                                   group_of(kWindowed, 1, KVARENA_GROUP_WINDOW, kWindow)};
  kvarena_cache_options options = {.struct_size = sizeof options,
                                   .num_blocks = kPages,
                                   .num_q_heads = kHeads,
                                   .groups = groups,
                                   .num_groups = 2};
  const kvarena_target host = SIZED(kvarena_target);
  kvarena_footprint footprint = SIZED(kvarena_footprint);
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_footprint(&options, &host, 0, &footprint));
  CHECK(footprint.num_blocks == kPages);
  options.groups = NULL;
  EXPECT_STATUS(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  options.groups = groups;
  options.num_groups = 33;
  EXPECT_STATUS(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_GROUPS);
  options.num_groups = 2;
  groups[1].struct_size -= 8;
  EXPECT_STATUS(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_SPAN_SIZE);
  groups[1].struct_size += 8;
  groups[1].layers = NULL;
  EXPECT_STATUS(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  groups[1].layers = kWindowed;
  const int32_t kinds[] = {-1, KVARENA_GROUP_STATE, 5};
  for (int i = 0; i < 3; ++i) {
    groups[1].kind = kinds[i];  // a state without planes
    EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  }
  groups[1].kind = KVARENA_GROUP_WINDOW;
  groups[1].limit_tokens = 0;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  groups[1].limit_tokens = kWindow;
  groups[1].dtype = 17;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  groups[1].dtype = KVARENA_F32;
  groups[1].has_dtype_v = 1;
  groups[1].dtype_v = -1;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  groups[1].dtype_v = KVARENA_BF16;
  options.page_sequence_tokens = -1;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options.page_sequence_tokens = 0;
  groups[0].block_size_tokens = 64;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  kvarena_cache_options answer = SIZED(kvarena_cache_options);
  EXPECT_OK(kvarena_cache_ask(cache, &answer));
  CHECK(answer.num_blocks == kPages && answer.num_groups == 2 && answer.groups == NULL);
  CHECK(answer.max_batch_blocks == 4 * 5 * kPages);  // five blocks of the window are in a page
  EXPECT_OK(kvarena_cache_release(cache));
}

/// The longest sequence is what the group that keeps all tokens has room for, in blocks of its own.
static void check_longest(kvarena_device* device) {
  kvarena_layer_group groups[2] = {group_of(kWindowed, 1, KVARENA_GROUP_WINDOW, kWindow),
                                   group_of(kFull, 2, KVARENA_GROUP_FULL, 0)};
  groups[0].block_size_tokens = 64;
  kvarena_cache_options options = {.struct_size = sizeof options,
                                   .num_blocks = kPages,
                                   .num_q_heads = kHeads,
                                   .groups = groups,
                                   .num_groups = 2};
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  kvarena_part_stats full = SIZED(kvarena_part_stats);
  EXPECT_OK(kvarena_cache_part(cache, 1, &full));
  CHECK(full.group == 1 && full.blocks_per_page > 1);
  kvarena_cache_options answer = SIZED(kvarena_cache_options);
  EXPECT_OK(kvarena_cache_ask(cache, &answer));
  CHECK(answer.max_sequence_tokens == kPages * full.blocks_per_page * full.block_size_tokens);
  EXPECT_OK(kvarena_cache_release(cache));
  groups[0].limit_tokens = 1024;
  options.num_groups = 1;  // windows alone: a sequence of any length fits
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  EXPECT_OK(kvarena_cache_ask(cache, &answer));
  CHECK(answer.max_sequence_tokens == 131072);
  EXPECT_OK(kvarena_cache_release(cache));
  options.max_sequence_tokens = 500000;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  EXPECT_OK(kvarena_cache_ask(cache, &answer));
  CHECK(answer.max_sequence_tokens == 500000);
  EXPECT_OK(kvarena_cache_release(cache));
}

/// Without groups a page is a block.
static void check_uniform(void) {
  site s = open_site(NULL, NULL);
  kvarena_page_stats pages = SIZED(kvarena_page_stats);
  int32_t parts = -1;
  EXPECT_OK(kvarena_cache_pages(s.cache, &pages));
  CHECK(pages.num_pages == kBlocks);
  EXPECT_OK(kvarena_cache_num_parts(s.cache, &parts));
  CHECK(parts == 0);
  kvarena_part_stats part = SIZED(kvarena_part_stats);
  EXPECT_STATUS(kvarena_cache_part(s.cache, 0, &part), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_GROUPS);
  close_site(&s);
}

void test_groups(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  check_refusals(device);
  check_longest(device);
  kvarena_cache* cache = open_cache(device);
  check_sequences(cache);
  check_create_from(cache);
  check_batches(cache);
  check_absent_blocks(cache);
  EXPECT_OK(kvarena_cache_release(cache));
  EXPECT_OK(kvarena_device_release(device));
  check_uniform();
}
