// Arrays that are longer than any array can be.

#include "capi_test.h"

/// Counts that no array has: a negative number that became unsigned, and one entry too many.
void test_wild_counts(void) {
  kvarena_cache_options options = cache_options();
  options.prefix_cache = 1;
  options.prefix_extra_keys = 1;
  kvarena_device* device = NULL;
  kvarena_cache* c = NULL;
  const kvarena_host_options host = {.struct_size = sizeof host};
  EXPECT_OK(kvarena_device_open_host(&host, &device));
  EXPECT_OK(kvarena_cache_create(device, &options, &c));
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(c, NULL, &sequence));
  kvarena_pool_options of_pool = {.struct_size = sizeof of_pool, .num_blocks = 4, .max_holders = 2};
  kvarena_pool* pool = NULL;
  EXPECT_OK(kvarena_pool_create(&of_pool, &pool));
  static const int32_t tokens[64];
  append_told(c, sequence, tokens, 40);
  const uint64_t counts[] = {UINT64_C(1) << 31, UINT64_C(1) << 62, UINT64_C(1) << 63, UINT64_MAX};
  for (int i = 0; i < 4; ++i) {
    const size_t count = counts[i];
    const int bad = KVARENA_INVALID_ARGUMENT;
    kvarena_prefix prefix = SIZED(kvarena_prefix);
    kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
    kvarena_extra_key key = {0};
    kvarena_demand demand = {.sequence = sequence, .num_tokens = 1};
    uint32_t generation = 0;
    int32_t block = 0;
    kvarena_sequence made = 0;
    kvarena_batch batch = SIZED(kvarena_batch);
    EXPECT_CODE(kvarena_sequence_register(c, sequence, tokens, count), bad);
    EXPECT_CODE(kvarena_sequence_adopt(c, sequence, tokens, count, &prefix), bad);
    prompt.tokens = tokens;
    prompt.num_tokens = count;
    EXPECT_CODE(kvarena_sequence_create(c, &prompt, &made), bad);
    EXPECT_CODE(kvarena_prefix_match(c, &prompt, &prefix), bad);
    prompt.num_tokens = 1;
    prompt.extra_keys = &key;
    prompt.num_extra_keys = count;
    EXPECT_CODE(kvarena_sequence_create(c, &prompt, &made), bad);
    EXPECT_CODE(kvarena_sequence_destroy(c, &sequence, count, 0), bad);
    EXPECT_CODE(kvarena_sequence_tables(c, &sequence, 1, &block, count, NULL), bad);
    EXPECT_CODE(kvarena_sequence_tables(c, &sequence, count, &block, 1, NULL), bad);
    EXPECT_OK(kvarena_step_begin(c, NULL));
    EXPECT_CODE(kvarena_step_append(c, &demand, count, 0, &batch), bad);
    EXPECT_CODE(kvarena_step_append_tokens(c, NULL, &demand, 1, tokens, count, 0, &batch), bad);
    EXPECT_OK(kvarena_step_end(c));
    EXPECT_CODE(kvarena_pool_allocate(pool, 1, count, 0, &block, &generation, NULL), bad);
    EXPECT_CODE(kvarena_pool_retain(pool, 1, &block, &generation, count), bad);
    EXPECT_CODE(kvarena_pool_free(pool, 1, &block, &generation, count, 0), bad);
    EXPECT_OK(kvarena_cache_check(c));
  }
  EXPECT_OK(kvarena_pool_release(pool));
  EXPECT_OK(kvarena_cache_release(c));
  EXPECT_OK(kvarena_device_release(device));
}
