// Control by the engine: deadlines, urgencies, imports, pins, strides, streams.

#include "capi_test.h"

static kvarena_sequence create(kvarena_cache* cache) {
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(cache, NULL, &sequence));
  return sequence;
}

static kvarena_sequence_info ask(kvarena_cache* cache, kvarena_sequence sequence) {
  kvarena_sequence_info info = SIZED(kvarena_sequence_info);
  EXPECT_OK(kvarena_sequence_ask(cache, sequence, &info));
  return info;
}

/// Prompts wait for the watermark while sequences that decode do not, in one step.
static void check_urgencies(site s) {
  const kvarena_sequence old = create(s.cache), prompt = create(s.cache);
  append_tokens(s.cache, old, 21 * kBlockSize - 80);
  append_tokens(s.cache, old, 80);
  kvarena_batch batch = SIZED(kvarena_batch);
  kvarena_demand rows[2] = {{.sequence = old, .num_tokens = 1},
                            {.sequence = prompt, .num_tokens = 1, .urgency = KVARENA_ADMISSION}};
  EXPECT_OK(kvarena_step_begin(s.cache, NULL));
  int64_t failed = -1;
  EXPECT_STATUS(kvarena_step_append(s.cache, rows, 2, KVARENA_GROWTH, &batch), KVARENA_EXHAUSTED,
                KVARENA_RESOURCE_BLOCK);
  EXPECT_OK(kvarena_step_failed_demand(s.cache, &failed));
  CHECK(failed == 1);
  rows[1].urgency = 9;
  EXPECT_STATUS(kvarena_step_append(s.cache, rows, 2, 0, &batch), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_URGENCY);
  rows[1].urgency = KVARENA_URGENCY_DEFAULT;
  EXPECT_OK(kvarena_step_append(s.cache, rows, 2, KVARENA_GROWTH, &batch));
  kvarena_device_batch device = SIZED(kvarena_device_batch);
  EXPECT_OK(kvarena_step_device_batch(s.cache, &device));
  CHECK(device.num_rows == 2 && device.num_tokens == 2 && device.lengths[1] == 1);
  CHECK(device.row_offsets[1] + device.num_blocks[1] <=
        device.num_table_slots * device.table_stride);
  int64_t slot = 0;
  EXPECT_OK(kvarena_sequence_slot(s.cache, prompt, 0, &slot));
  CHECK(device.slots[1] == slot && device.block_tables[device.row_offsets[1]] == slot / kBlockSize);
  EXPECT_OK(kvarena_step_abort(s.cache));
  EXPECT_STATUS(kvarena_step_device_batch(s.cache, &device), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_STEP);
  const kvarena_sequence both[2] = {old, prompt};
  EXPECT_OK(kvarena_sequence_destroy(s.cache, both, 2, 0));
}

static void check_imports(site s) {
  kvarena_sequence a = 0, b = 0, fork = 0;
  EXPECT_OK(kvarena_sequence_import(s.cache, 20, NULL, KVARENA_URGENCY_DEFAULT, &a));
  EXPECT_OK(kvarena_sequence_import(s.cache, 20, NULL, KVARENA_GROWTH, &b));
  EXPECT_STATUS(kvarena_sequence_import(s.cache, 1000, NULL, 0, &fork), KVARENA_EXHAUSTED,
                KVARENA_RESOURCE_BLOCK);
  CHECK(ask(s.cache, a).import_state == KVARENA_IMPORT_FILLING);
  EXPECT_STATUS(kvarena_sequence_fork(s.cache, a, 5, NULL, &fork), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_SEQUENCE);
  EXPECT_OK(kvarena_sequence_publish_import(s.cache, a));
  EXPECT_CODE(kvarena_sequence_publish_import(s.cache, a), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_sequence_fail_import(s.cache, b));
  CHECK(ask(s.cache, b).import_state == KVARENA_IMPORT_FAILED);
  EXPECT_OK(kvarena_sequence_fork(s.cache, a, 5, NULL, &fork));
  const kvarena_sequence all[3] = {a, b, fork};
  EXPECT_OK(kvarena_sequence_destroy(s.cache, all, 3, 0));
}

static void check_pins(site s) {
  const kvarena_sequence a = create(s.cache);
  append_tokens(s.cache, a, 40);
  kvarena_holder pin = 0, other = 0;
  kvarena_pin_options options = {
      .struct_size = sizeof options, .first_block = 1, .owner = 31, .purpose = "transfer"};
  EXPECT_OK(kvarena_pin_create(s.cache, a, &options, &pin));
  int32_t blocks[4];
  size_t count = 0;
  EXPECT_OK(kvarena_pin_blocks(s.cache, pin, blocks, 4, &count));
  CHECK(count == 2);
  count = 0;
  EXPECT_STATUS(kvarena_pin_blocks(s.cache, pin, blocks, 1, &count), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_SPAN_SIZE);
  CHECK(count == 2);
  options.num_blocks = 9;
  EXPECT_STATUS(kvarena_pin_create(s.cache, a, &options, &other), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_BLOCKS);
  options.first_block = 4;
  EXPECT_STATUS(kvarena_pin_create(s.cache, a, &options, &other), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_BLOCK_INDEX);
  EXPECT_OK(kvarena_sequence_destroy(s.cache, &a, 1, 0));
  kvarena_stats stats = SIZED(kvarena_stats);
  EXPECT_OK(kvarena_cache_stats(s.cache, &stats));
  CHECK(stats.pins == 1 && stats.pinned_entries == 2 && stats.referenced == 2);
  kvarena_holder_report report;
  EXPECT_OK(kvarena_cache_holders(s.cache, &report, 1, &count));
  CHECK(report.holder == pin && report.owner == 31 && strcmp(report.purpose, "transfer") == 0);
  EXPECT_OK(kvarena_pin_release(s.cache, pin, 0));
  EXPECT_CODE(kvarena_pin_release(s.cache, pin, 0), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_pin_blocks(s.cache, pin, blocks, 4, &count), KVARENA_NOT_FOUND);
}

/// Rows of K, V, Q and out with bytes between them give what dense ones give.
static void check_strides(site s) {
  enum { kTokens = 3, kRow = kHeads * kDim, kWide = kRow + 8 };
  static float dense[kTokens][kRow], wide[kTokens][kWide], expected[kTokens][kRow],
      out[kTokens][kWide];
  for (int t = 0; t < kTokens; ++t) {
    for (int d = 0; d < kRow; ++d) dense[t][d] = wide[t][d] = (float)((t * 31 + d * 7) % 13) - 6;
  }
  for (int is_wide = 0; is_wide < 2; ++is_wide) {
    const kvarena_sequence a = create(s.cache);
    const kvarena_demand row = {.sequence = a, .num_tokens = kTokens};
    kvarena_batch batch = SIZED(kvarena_batch);
    const void* data = is_wide ? (void*)wide : (void*)dense;
    const int64_t stride = is_wide ? (int64_t)(kWide * sizeof(float)) : 0;
    const kvarena_write_args write = {.struct_size = sizeof write,
                                      .key = data,
                                      .value = data,
                                      .key_token_stride_bytes = stride,
                                      .value_token_stride_bytes = stride,
                                      .dtype = KVARENA_F32};
    const kvarena_attend_args attend = {.struct_size = sizeof attend,
                                        .q = data,
                                        .out = is_wide ? (void*)out : (void*)expected,
                                        .q_token_stride_bytes = stride,
                                        .out_token_stride_bytes = stride,
                                        .q_dtype = KVARENA_F32,
                                        .out_dtype = KVARENA_F32};
    EXPECT_OK(kvarena_step_begin(s.cache, NULL));
    EXPECT_OK(kvarena_step_append(s.cache, &row, 1, 0, &batch));
    EXPECT_OK(kvarena_step_write(s.cache, &write));
    EXPECT_OK(kvarena_step_attend(s.cache, &attend));
    EXPECT_OK(kvarena_step_end(s.cache));
    EXPECT_OK(kvarena_cache_synchronize(s.cache));
    EXPECT_OK(kvarena_sequence_destroy(s.cache, &a, 1, 0));
  }
  for (int t = 0; t < kTokens; ++t) {
    CHECK(memcmp(out[t], expected[t], sizeof expected[t]) == 0);
    CHECK(out[t][kRow] == 0.0F);
  }
}

/// A step on a stream that the caller names, and the stream of the last step after it.
static void check_streams(site s) {
  const kvarena_sequence a = create(s.cache);
  void *other = NULL, *found = NULL;
  EXPECT_OK(kvarena_stream_create(s.device, &other));
  kvarena_step_options options = {.struct_size = sizeof options, .stream = other};
  EXPECT_OK(kvarena_step_begin(s.cache, &options));
  EXPECT_OK(kvarena_step_end(s.cache));
  EXPECT_OK(kvarena_cache_stream(s.cache, &found));
  CHECK(found == other);
  append_tokens(s.cache, a, 1);
  EXPECT_OK(kvarena_cache_stream(s.cache, &found));
  CHECK(found == other);
  options.stream = &options;
  EXPECT_STATUS(kvarena_step_begin(s.cache, &options), KVARENA_NOT_FOUND, KVARENA_RESOURCE_STREAM);
  void* ended = NULL;
  EXPECT_OK(kvarena_stream_create(s.device, &ended));
  EXPECT_OK(kvarena_stream_destroy(s.device, ended));
  void* const wrong[] = {ended, (void*)17, (void*)(uintptr_t)KVARENA_STREAM_LEGACY, (void*)16000};
  for (int i = 0; i < 4; ++i) {  // refused by the number that was given, and no step has begun
    options.stream = wrong[i];
    const kvarena_status refused = kvarena_step_begin(s.cache, &options);
    EXPECT_STATUS(refused, KVARENA_NOT_FOUND, KVARENA_RESOURCE_STREAM);
    CHECK(refused.subject == (uintptr_t)wrong[i]);
  }
  EXPECT_OK(kvarena_cache_publish(s.cache));
  EXPECT_OK(kvarena_sequence_destroy(s.cache, &a, 1, 0));
}

void test_control(void) {
  site s = open_site(NULL, NULL);
  check_urgencies(s);
  check_imports(s);
  check_pins(s);
  check_strides(s);
  check_streams(s);
  const kvarena_sequence a = create(s.cache);
  EXPECT_OK(kvarena_sequence_set_deadline(s.cache, a, 99));
  CHECK(ask(s.cache, a).deadline_ns == 99);
  EXPECT_CODE(kvarena_sequence_set_deadline(s.cache, a + 1, 99), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_cache_check(s.cache));
  close_site(&s);

  // Work runs in the calls, without threads.
  kvarena_host_options options = {.struct_size = sizeof options, .inline_calls = 1};
  EXPECT_OK(kvarena_device_open_host(&options, &s.device));
  kvarena_cache_options wanted = cache_options();
  wanted.max_pins = -1;
  EXPECT_OK(kvarena_cache_create(s.device, &wanted, &s.cache));
  const kvarena_sequence b = create(s.cache);
  append_tokens(s.cache, b, 20);
  kvarena_holder pin = 0;
  EXPECT_CODE(kvarena_pin_create(s.cache, b, NULL, &pin), KVARENA_EXHAUSTED);
  close_site(&s);
}
