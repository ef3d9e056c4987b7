// A cache whose sequences begin with the blocks of others.

#include "capi_test.h"

enum { kPrompt = 40 };

/// Options of the test's cache, with a prefix cache.
static kvarena_cache_options prefix_options(void) {
  kvarena_cache_options options = cache_options();
  options.prefix_cache = 1;
  options.prefix_extra_keys = 2;
  options.prefix_key_low = 3;
  options.eviction = KVARENA_EVICT_PRIORITY;
  return options;
}

void append_told(kvarena_cache* cache, kvarena_sequence sequence, const int32_t* tokens,
                 int count) {
  static uint16_t kv[256 * kHeads * kDim];
  const kvarena_demand demand = {.sequence = sequence, .num_tokens = count};
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append_tokens(cache, NULL, &demand, 1, tokens, (size_t)count, 0, &batch));
  CHECK(batch.num_tokens == count);
  for (int layer = 0; layer < 2; ++layer) {
    kvarena_write_args write = SIZED(kvarena_write_args);
    write.key = kv;
    write.value = kv;
    write.layer = layer;
    EXPECT_OK(kvarena_step_write(cache, &write));
  }
  EXPECT_OK(kvarena_step_end(cache));
  EXPECT_OK(kvarena_cache_synchronize(cache));
}

static void test_hits(kvarena_cache* cache, const int32_t* tokens) {
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  const kvarena_extra_key keys[2] = {{7, 0}, {9, 20}};
  prompt.tokens = tokens;
  prompt.num_tokens = kPrompt;
  prompt.salt = 5;
  prompt.extra_keys = keys;
  prompt.num_extra_keys = 2;
  kvarena_sequence first = 0, second = 0, third = 0;
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &first));
  EXPECT_OK(kvarena_sequence_prefix(cache, first, &found));
  CHECK(found.tokens == 0 && found.stop == KVARENA_STOP_NEVER_SEEN && found.pending_block == -1);
  append_told(cache, first, tokens, kPrompt);
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 32 && found.blocks == 2 && found.stop == KVARENA_STOP_LESS_THAN_BLOCK);
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &second));
  EXPECT_OK(kvarena_sequence_prefix(cache, second, &found));
  CHECK(found.tokens == 32);
  kvarena_sequence_info info = SIZED(kvarena_sequence_info);
  EXPECT_OK(kvarena_sequence_ask(cache, second, &info));
  CHECK(info.length_tokens == 32);
  int32_t blocks[2][3] = {{0}};
  size_t count = 0;
  EXPECT_OK(kvarena_sequence_blocks(cache, first, blocks[0], 3, &count));
  EXPECT_OK(kvarena_sequence_blocks(cache, second, blocks[1], 3, &count));
  CHECK(count == 2 && blocks[0][0] == blocks[1][0] && blocks[0][1] == blocks[1][1]);
  prompt.salt = 6;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 0 && found.stop == KVARENA_STOP_OTHER_SALT);
  prompt.salt = 5;
  prompt.num_extra_keys = 1;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 16 && found.stop == KVARENA_STOP_OTHER_EXTRA_KEY);
  prompt.num_extra_keys = 3;
  EXPECT_CODE(kvarena_prefix_match(cache, &prompt, &found), KVARENA_INVALID_ARGUMENT);
  prompt.num_extra_keys = 2;

  int64_t kept = 0;
  EXPECT_OK(kvarena_sequence_set_retention(cache, first, 0, 20, 90, 0, &kept));
  CHECK(kept == 2);
  EXPECT_OK(kvarena_sequence_set_retention(cache, first, 0, 20, 10, 50, NULL));
  EXPECT_CODE(kvarena_sequence_set_retention(cache, first, 0, 20, 101, 0, NULL),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_STATUS(kvarena_sequence_set_retention(cache, first, 41, 0, 1, 0, NULL),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_TOKEN_INDEX);
  EXPECT_OK(kvarena_prefix_advance_clock(cache, 60));
  EXPECT_CODE(kvarena_prefix_advance_clock(cache, 59), KVARENA_INVALID_ARGUMENT);

  const kvarena_sequence both[2] = {first, second};
  EXPECT_OK(kvarena_sequence_destroy(cache, both, 2, 0));
  prompt.tokens = NULL;
  EXPECT_STATUS(kvarena_sequence_create(cache, &prompt, &third), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  prompt.num_tokens = 0;
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &third));
  EXPECT_OK(kvarena_sequence_adopt(cache, third, tokens, kPrompt, &found));
  CHECK(found.tokens == 32);
  EXPECT_STATUS(kvarena_sequence_adopt(cache, third, tokens, kPrompt, &found),
                KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_SEQUENCE);
  EXPECT_OK(kvarena_sequence_forget(cache, third));
  prompt.tokens = tokens;
  prompt.num_tokens = kPrompt;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.stop == KVARENA_STOP_EVICTED && found.removal == KVARENA_REMOVED_FORGOTTEN);
  CHECK(found.removal_by == 0 && found.removal_time == 0);
  EXPECT_OK(kvarena_sequence_destroy(cache, &third, 1, 0));
  EXPECT_STATUS(kvarena_sequence_prefix(cache, third, &found), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_SEQUENCE);
  EXPECT_CODE(kvarena_sequence_forget(cache, third), KVARENA_NOT_FOUND);
}

/// An import has a salt and extra keys, but no tokens.
static void test_imports(kvarena_cache* cache, const int32_t* tokens) {
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  const kvarena_extra_key key = {7, 0};
  prompt.salt = 77;
  prompt.extra_keys = &key;
  prompt.num_extra_keys = 1;
  kvarena_sequence import = 0;
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_sequence_import(cache, kPrompt, &prompt, 0, &import));
  EXPECT_OK(kvarena_sequence_publish_import(cache, import));
  EXPECT_OK(kvarena_sequence_register(cache, import, tokens, kPrompt));
  prompt.tokens = tokens;
  prompt.num_tokens = kPrompt;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 32);
  kvarena_sequence other = 0;
  EXPECT_CODE(kvarena_sequence_import(cache, 1, &prompt, 0, &other), KVARENA_INVALID_ARGUMENT);
  prompt.num_extra_keys = 0;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 0);
  prompt.salt = 0;
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  CHECK(found.tokens == 0);
  prompt = SIZED(kvarena_sequence_options);
  prompt.salt = 77;
  EXPECT_CODE(kvarena_sequence_fork(cache, import, 1, &prompt, &other), KVARENA_INVALID_ARGUMENT);
  prompt.salt = 0;
  prompt.reserved = 1;
  EXPECT_STATUS(kvarena_sequence_create(cache, &prompt, &other), KVARENA_UNSUPPORTED,
                KVARENA_RESOURCE_SPAN_SIZE);
  EXPECT_OK(kvarena_sequence_destroy(cache, &import, 1, 0));
}

/// What steps tell, what is told later, and what is refused.
static void test_telling(kvarena_cache* cache, const int32_t* tokens) {
  kvarena_sequence sequences[2] = {0, 0};
  for (int i = 0; i < 2; ++i) EXPECT_OK(kvarena_sequence_create(cache, NULL, &sequences[i]));
  const kvarena_demand demands[2] = {{sequences[0], 16, 0}, {sequences[1], 16, 0}};
  kvarena_batch batch = SIZED(kvarena_batch);
  int32_t both[32];
  memcpy(both, tokens, sizeof both);
  both[16] = -1;  // the second row is not told
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_STATUS(kvarena_step_append_tokens(cache, NULL, demands, 2, both, 31, 0, &batch),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  const kvarena_status too_many =
      kvarena_step_append_tokens(cache, NULL, demands, 1, both, 32, 0, &batch);
  EXPECT_STATUS(too_many, KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  char text[128];
  kvarena_describe(&too_many, text, sizeof text);
  CHECK(strcmp(text, "invalid span_size: got 32, expected 16 to 16") == 0);
  EXPECT_STATUS(kvarena_step_append_tokens(cache, NULL, demands, 2, NULL, 32, 0, &batch),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_POINTER);
  kvarena_recorded_step shape = SIZED(kvarena_recorded_step);
  shape.num_rows = 2;
  EXPECT_STATUS(kvarena_step_append_tokens(cache, &shape, demands, 2, both, 32, 0, &batch),
                KVARENA_UNSUPPORTED, KVARENA_RESOURCE_DEVICE);
  EXPECT_OK(kvarena_step_append_tokens(cache, NULL, demands, 2, both, 32, 0, &batch));
  EXPECT_STATUS(kvarena_sequence_register(cache, sequences[1], tokens, 16),
                KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_STEP);
  kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.registered == 1 && stats.published == 0);
  EXPECT_OK(kvarena_step_end(cache));  // kernels of the engine wrote K and V
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.published == 1);
  EXPECT_OK(kvarena_sequence_register(cache, sequences[1], tokens + 8, 16));
  EXPECT_STATUS(kvarena_sequence_register(cache, sequences[1], tokens, 1), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_NUM_TOKENS);
  EXPECT_STATUS(kvarena_sequence_register(cache, sequences[1], NULL, 1), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.published == 2 && stats.queries > 0 && stats.hits > 0 && stats.hit_tokens > 0);
  CHECK(stats.removals_by[KVARENA_REMOVED_FORGOTTEN] > 0 && stats.stops[15] == 0);
  EXPECT_OK(kvarena_prefix_forget_salt(cache, 1));
  EXPECT_OK(kvarena_prefix_forget_all(cache));
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.registered == 0);
  EXPECT_OK(kvarena_sequence_destroy(cache, sequences, 2, 0));
}

/// A sequence that begins with four tokens of the second block, which its first step copies.
static void test_parts(kvarena_device* device, const int32_t* tokens) {
  kvarena_cache_options options = prefix_options(), answered = SIZED(kvarena_cache_options);
  options.prefix_share_parts = 1;
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  EXPECT_OK(kvarena_cache_ask(cache, &answered));
  CHECK(answered.prefix_share_parts == 1);
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  prompt.tokens = tokens;
  prompt.num_tokens = kPrompt;
  kvarena_sequence first = 0, second = 0;
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &first));
  append_told(cache, first, tokens, kPrompt);
  int32_t branch[kPrompt];
  for (int i = 0; i < kPrompt; ++i) branch[i] = i < 20 ? tokens[i] : 7;
  prompt.tokens = branch;
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &second));
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_sequence_prefix(cache, second, &found));
  CHECK(found.tokens == 20 && found.blocks == 1 && found.part_tokens == 4);
  append_told(cache, second, branch + 20, kPrompt - 20);
  int32_t blocks[2][3] = {{0}};
  size_t count = 0;
  EXPECT_OK(kvarena_sequence_blocks(cache, first, blocks[0], 3, &count));
  EXPECT_OK(kvarena_sequence_blocks(cache, second, blocks[1], 3, &count));
  CHECK(blocks[0][0] == blocks[1][0] && blocks[0][1] != blocks[1][1]);
  EXPECT_OK(kvarena_cache_check(cache));
  EXPECT_OK(kvarena_cache_release(cache));
}

void test_prefixes(void) {
  CHECK(strcmp(kvarena_name_of_prefix_stop(KVARENA_STOP_OTHER_SALT), "other_salt") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_stop(-1), "unknown_stop") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_removal(KVARENA_REMOVED_LOST), "lost") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_removal(77), "unknown_removal") == 0);
  kvarena_device* device = NULL;
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  kvarena_cache_options options = prefix_options(), answered = SIZED(kvarena_cache_options);
  options.eviction = 5;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = prefix_options();
  options.prefix_duplicates = 3;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = prefix_options();
  options.prefix_extra_keys = 32;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = prefix_options();
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  EXPECT_OK(kvarena_cache_ask(cache, &answered));
  CHECK(answered.prefix_cache == 1 && answered.prefix_extra_keys == 2);
  CHECK(answered.eviction == KVARENA_EVICT_PRIORITY && answered.prefix_key_low == 0);
  int32_t tokens[kPrompt];
  for (int i = 0; i < kPrompt; ++i) tokens[i] = 100 + i;
  test_hits(cache, tokens);
  test_telling(cache, tokens);
  test_imports(cache, tokens);
  EXPECT_OK(kvarena_cache_check(cache));
  EXPECT_OK(kvarena_cache_release(cache));

  test_parts(device, tokens);

  // Without a prefix cache tokens change nothing, and questions are refused.
  options.prefix_cache = 0;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  prompt.tokens = tokens;
  prompt.num_tokens = kPrompt;
  kvarena_sequence sequence = 0;
  kvarena_prefix found = SIZED(kvarena_prefix);
  kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
  EXPECT_OK(kvarena_sequence_create(cache, &prompt, &sequence));
  append_told(cache, sequence, tokens, kPrompt);
  EXPECT_CODE(kvarena_prefix_match(cache, &prompt, &found), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_sequence_prefix(cache, sequence, &found), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_prefix_forget_all(cache), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.queries == 0);
  EXPECT_OK(kvarena_cache_release(cache));
  EXPECT_OK(kvarena_device_release(device));
}
