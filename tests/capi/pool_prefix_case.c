// A pool whose blocks are found by their tokens, for engines with block tables of their own.

#include "capi_test.h"

enum { kTokens = 13, kOfBlock = 4 };

static kvarena_pool_options prefix_pool_options(void) {
  return (kvarena_pool_options){.struct_size = sizeof(kvarena_pool_options),
                                .num_blocks = 8,
                                .prefix_cache = 1,
                                .block_size_tokens = kOfBlock,
                                .prefix_extra_keys = 2,
                                .prefix_key_low = 3};
}

static kvarena_sequence_options prompt_of(const int32_t* tokens, size_t count, uint64_t salt) {
  return (kvarena_sequence_options){.struct_size = sizeof(kvarena_sequence_options),
                                    .tokens = tokens,
                                    .num_tokens = count,
                                    .salt = salt};
}

/// A sequence of the engine: its blocks, and where it goes on.
typedef struct line {
  kvarena_holder holder;
  int32_t blocks[8];
  uint32_t generations[8];
  size_t count;
  kvarena_prefix found;
  kvarena_prefix_position position;
} line;

/// Begins with what is cached, and takes the other blocks.
static line begin_line(kvarena_pool* pool, const int32_t* tokens, size_t count, uint64_t salt) {
  line made = {.found = SIZED(kvarena_prefix), .position = SIZED(kvarena_prefix_position)};
  const kvarena_sequence_options prompt = prompt_of(tokens, count, salt);
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &made.holder));
  EXPECT_OK(kvarena_pool_adopt(pool, made.holder, &prompt, made.blocks, made.generations, 8,
                               &made.found, &made.position));
  const size_t have = (size_t)made.found.blocks;
  made.count = (count + kOfBlock - 1) / kOfBlock;
  EXPECT_OK(kvarena_pool_allocate(pool, made.holder, made.count - have, 0, made.blocks + have,
                                  made.generations + have, NULL));
  return made;
}

/// Registers the full blocks behind the position.
static size_t register_line(kvarena_pool* pool, line* its, const int32_t* tokens, size_t count) {
  const size_t first = (size_t)its->position.blocks;
  const size_t end = count / kOfBlock;
  const kvarena_sequence_options filled =
      prompt_of(tokens + first * kOfBlock, (end - first) * kOfBlock, 0);
  size_t registered = 99;
  EXPECT_OK(kvarena_pool_register(pool, &its->position, &filled, its->blocks + first,
                                  its->generations + first, end - first, &registered));
  CHECK(its->position.blocks == (int32_t)end);
  return registered;
}

static void end_line(kvarena_pool* pool, line* its) {
  for (size_t i = its->count; i-- > 0;) {
    EXPECT_OK(kvarena_pool_free(pool, its->holder, its->blocks + i, its->generations + i, 1, 0));
  }
  EXPECT_OK(kvarena_pool_close_holder(pool, its->holder));
}

static int stored = 0, removed = 0, cleared = 0;
static void count_event(void* user, const kvarena_prefix_event* event) {
  CHECK(user == &stored);
  stored += event->kind == KVARENA_PREFIX_STORED && event->salt == 5 && event->num_tokens == 4;
  removed += event->kind == KVARENA_PREFIX_REMOVED;
  cleared += event->kind == KVARENA_PREFIX_CLEARED;
}

void test_pool_prefixes(void) {
  kvarena_pool* pool = NULL;
  kvarena_pool_options options = prefix_pool_options();
  options.prefix_events = count_event;
  options.prefix_events_user = &stored;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  int32_t tokens[kTokens];
  for (int i = 0; i < kTokens; ++i) tokens[i] = 100 + i;
  line first = begin_line(pool, tokens, kTokens, 5);
  CHECK(first.found.blocks == 0 && first.found.stop == KVARENA_STOP_NEVER_SEEN);
  CHECK(register_line(pool, &first, tokens, kTokens) == 3);
  const kvarena_sequence_options prompt = prompt_of(tokens, kTokens, 5);
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_pool_match(pool, &prompt, NULL, NULL, 0, &found));
  CHECK(found.blocks == 0 && found.stop == KVARENA_STOP_NOT_YET_PUBLISHED);
  CHECK(found.pending_block == first.blocks[0]);
  size_t published = 0;
  EXPECT_OK(kvarena_pool_publish(pool, first.blocks, first.generations, 4, &published));
  CHECK(published == 3 && stored == 3);
  int32_t blocks[2] = {-1, -1};
  uint32_t generations[2];
  EXPECT_OK(kvarena_pool_match(pool, &prompt, blocks, generations, 2, &found));
  CHECK(found.tokens == 12 && blocks[0] == first.blocks[0] && blocks[1] == first.blocks[1]);
  kvarena_sequence_options other = prompt_of(tokens, kTokens, 6);
  EXPECT_OK(kvarena_pool_match(pool, &other, NULL, NULL, 0, &found));
  CHECK(found.blocks == 0 && found.stop == KVARENA_STOP_OTHER_SALT);

  line second = begin_line(pool, tokens, kTokens, 5);
  CHECK(second.found.blocks == 3 && second.blocks[2] == first.blocks[2]);
  CHECK(second.blocks[3] != first.blocks[3] && second.position.blocks == 3);
  EXPECT_OK(kvarena_pool_check(pool));
  end_line(pool, &second);
  end_line(pool, &first);

  // Six blocks of another prompt take the evictable ones, the last of the prefix first.
  int32_t others[24];
  for (int i = 0; i < 24; ++i) others[i] = i;
  line third = begin_line(pool, others, 24, 5);
  EXPECT_OK(kvarena_pool_match(pool, &prompt, NULL, NULL, 0, &found));
  CHECK(found.blocks == 2 && found.stop == KVARENA_STOP_EVICTED);
  CHECK(found.removal == KVARENA_REMOVED_EVICTED && removed == 1);
  kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
  kvarena_prefix_use use = SIZED(kvarena_prefix_use);
  EXPECT_OK(kvarena_pool_ask_prefix(pool, &stats, &use));
  CHECK(stats.queries == 3 && stats.hits == 1 && stats.hit_blocks == 3 && stats.registered == 2);
  CHECK(use.lifetime.counts[0] + use.lifetime.counts[1] == 1);
  CHECK(register_line(pool, &third, others, 24) == 6);
  EXPECT_OK(kvarena_pool_forget(pool, third.blocks + 3, 1));
  EXPECT_OK(kvarena_pool_ask_prefix(pool, &stats, NULL));
  CHECK(stats.removals_by[KVARENA_REMOVED_ABORTED] == 1);
  CHECK(stats.removals_by[KVARENA_REMOVED_WITH_PARENT] == 2);
  end_line(pool, &third);  // three blocks were not published: they are free
  EXPECT_OK(kvarena_pool_ask_prefix(pool, &stats, NULL));
  CHECK(stats.registered == 2 && stats.removals_by[KVARENA_REMOVED_ABORTED] >= 2);
  EXPECT_OK(kvarena_pool_forget_salt(pool, 5));
  EXPECT_OK(kvarena_pool_forget_all(pool));
  CHECK(cleared == 1);
  EXPECT_OK(kvarena_pool_ask_prefix(pool, NULL, NULL));
  EXPECT_OK(kvarena_pool_check(pool));
  EXPECT_OK(kvarena_pool_release(pool));
}

static void refuse_nulls(kvarena_pool* pool, kvarena_holder holder,
                         const kvarena_sequence_options* prompt) {
  kvarena_prefix found = SIZED(kvarena_prefix);
  kvarena_prefix_position at = SIZED(kvarena_prefix_position);
  const int bad = KVARENA_INVALID_ARGUMENT;
  EXPECT_CODE(kvarena_pool_begin_prefix(pool, 0, NULL), bad);
  EXPECT_CODE(kvarena_pool_match(pool, NULL, NULL, NULL, 0, &found), bad);
  EXPECT_CODE(kvarena_pool_match(pool, prompt, NULL, NULL, 1, &found), bad);
  EXPECT_CODE(kvarena_pool_match(pool, prompt, NULL, NULL, 0, NULL), bad);
  EXPECT_CODE(kvarena_pool_adopt(pool, holder, NULL, NULL, NULL, 0, &found, &at), bad);
  EXPECT_CODE(kvarena_pool_adopt(pool, holder, prompt, NULL, NULL, 0, &found, NULL), bad);
  EXPECT_CODE(kvarena_pool_register(pool, NULL, prompt, NULL, NULL, 0, NULL), bad);
  EXPECT_CODE(kvarena_pool_register(pool, &at, NULL, NULL, NULL, 0, NULL), bad);
  EXPECT_CODE(kvarena_pool_publish(pool, NULL, NULL, 1, NULL), bad);
  EXPECT_CODE(kvarena_pool_forget(pool, NULL, 1), bad);
}

void test_pool_prefix_refusals(void) {
  kvarena_pool* pool = NULL;
  kvarena_pool_options options = prefix_pool_options();
  options.prefix_duplicates = KVARENA_SHARE_DUPLICATE;
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_UNSUPPORTED);
  options.prefix_duplicates = 3;
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_INVALID_ARGUMENT);
  options = prefix_pool_options();
  options.block_size_tokens = -1;
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_INVALID_ARGUMENT);
  options = prefix_pool_options();
  options.prefix_ghost_blocks = 1;
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_INVALID_ARGUMENT);
  options = prefix_pool_options();
  options.prefix_duplicates = KVARENA_WAIT;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  int32_t tokens[kTokens] = {0};
  line its = begin_line(pool, tokens, kTokens, 0);
  const kvarena_sequence_options filled = prompt_of(tokens, 12, 0);
  kvarena_prefix_position begin = SIZED(kvarena_prefix_position), at = begin;
  EXPECT_STATUS(kvarena_pool_register(pool, &at, &filled, its.blocks, its.generations, 3, NULL),
                KVARENA_NOT_FOUND, KVARENA_RESOURCE_SEQUENCE);
  EXPECT_OK(kvarena_pool_begin_prefix(pool, 0, &begin));
  CHECK(memcmp(begin.state, its.position.state, sizeof begin.state) == 0);
  at = begin;
  EXPECT_STATUS(kvarena_pool_register(pool, &at, &filled, its.blocks, its.generations, 2, NULL),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_NUM_TOKENS);
  EXPECT_STATUS(kvarena_pool_register(pool, &at, &filled, its.blocks, NULL, 3, NULL),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_POINTER);
  at.reserved = 1;
  EXPECT_CODE(kvarena_pool_register(pool, &at, &filled, its.blocks, its.generations, 3, NULL),
              KVARENA_UNSUPPORTED);
  at = begin;
  EXPECT_OK(kvarena_pool_register(pool, &at, &filled, its.blocks, its.generations, 3, NULL));
  const kvarena_sequence_options prompt = prompt_of(tokens, kTokens, 0);
  kvarena_prefix found = SIZED(kvarena_prefix);
  refuse_nulls(pool, its.holder, &prompt);
  int32_t blocks[3];
  uint32_t generations[3];
  EXPECT_STATUS(kvarena_pool_adopt(pool, its.holder, &prompt, blocks, generations, 3, &found, &at),
                KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_CONTENT);
  EXPECT_STATUS(
      kvarena_pool_set_content(pool, its.blocks[0], its.generations[0], KVARENA_CONTENT_PUBLISHED),
      KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_CONTENT);
  EXPECT_OK(kvarena_pool_publish(pool, its.blocks, its.generations, 3, NULL));
  EXPECT_STATUS(kvarena_pool_adopt(pool, its.holder, &prompt, blocks, generations, 2, &found, &at),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  EXPECT_STATUS(kvarena_pool_adopt(pool, 77, &prompt, blocks, generations, 3, &found, &at),
                KVARENA_NOT_FOUND, KVARENA_RESOURCE_HOLDER);
  EXPECT_STATUS(kvarena_pool_forget(pool, &(int32_t){8}, 1), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_BLOCK);
  ++its.generations[1];
  EXPECT_STATUS(kvarena_pool_publish(pool, its.blocks, its.generations, 3, NULL),
                KVARENA_STALE_HANDLE, KVARENA_RESOURCE_BLOCK);
  --its.generations[1];
  EXPECT_OK(
      kvarena_pool_set_content(pool, its.blocks[0], its.generations[0], KVARENA_CONTENT_UNWRITTEN));
  EXPECT_STATUS(
      kvarena_pool_register(pool, &its.position, &filled, its.blocks, its.generations, 0, NULL),
      KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_NUM_TOKENS);
  EXPECT_OK(kvarena_pool_match(pool, &prompt, NULL, NULL, 0, &found));
  CHECK(found.blocks == 0);  // what is behind the lost block has gone
  EXPECT_OK(kvarena_pool_check(pool));
  EXPECT_OK(kvarena_pool_release(pool));

  // Without a prefix cache.
  options.prefix_cache = 0;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  EXPECT_CODE(kvarena_pool_begin_prefix(pool, 0, &begin), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_pool_match(pool, &prompt, NULL, NULL, 0, &found),
              KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_pool_forget_all(pool), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_pool_ask_prefix(pool, NULL, NULL), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_pool_release(pool));
}
