// Accounts of salts, figures, events and retentions of a cache whose sequences share blocks.

#include "capi_test.h"

enum { kMostTokens = 12 * kBlockSize, kMostKeys = 2 };

/// A host device with a small cache that has accounts, ghosts and two extra keys.
static site open_cached(kvarena_prefix_event_function events, void* user) {
  site opened = {NULL, NULL};
  kvarena_cache_options options = cache_options();
  options.watermark_blocks = 0;
  options.prefix_cache = 1;
  options.prefix_extra_keys = kMostKeys;
  options.prefix_key_low = 3;
  options.prefix_accounts = 2;
  options.prefix_ghost_blocks = 1024;
  options.prefix_events = events;
  options.prefix_events_user = user;
  EXPECT_OK(kvarena_device_open_host(NULL, &opened.device));
  EXPECT_OK(kvarena_cache_create(opened.device, &options, &opened.cache));
  return opened;
}

/// `count` tokens from `first` on; the next call writes over them.
static kvarena_sequence_options prompt_of(uint64_t salt, int32_t first, int count) {
  static int32_t tokens[kMostTokens];
  for (int i = 0; i < count; ++i) tokens[i] = first + i;
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  prompt.tokens = tokens;
  prompt.num_tokens = (uint64_t)count;
  prompt.salt = salt;
  return prompt;
}

/// Begins a sequence, and computes what is not cached.
static kvarena_sequence serve(kvarena_cache* cache, const kvarena_sequence_options* prompt) {
  kvarena_sequence sequence = 0;
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_sequence_create(cache, prompt, &sequence));
  EXPECT_OK(kvarena_sequence_prefix(cache, sequence, &found));
  append_told(cache, sequence, prompt->tokens + found.tokens,
              (int)prompt->num_tokens - (int)found.tokens);
  return sequence;
}

static void serve_and_end(kvarena_cache* cache, uint64_t salt, int32_t first, int count) {
  const kvarena_sequence_options prompt = prompt_of(salt, first, count);
  const kvarena_sequence sequence = serve(cache, &prompt);
  EXPECT_OK(kvarena_sequence_destroy(cache, &sequence, 1, 0));
}

static int64_t cached_blocks(kvarena_cache* cache, uint64_t salt, int32_t first, int count) {
  const kvarena_sequence_options prompt = prompt_of(salt, first, count);
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_prefix_match(cache, &prompt, &found));
  return found.blocks;
}

static kvarena_salt_info account_of(kvarena_cache* cache, uint64_t salt) {
  kvarena_salt_info info = SIZED(kvarena_salt_info);
  EXPECT_OK(kvarena_salt_ask(cache, salt, &info));
  return info;
}

/// What others do not take, and what a salt does not keep.
static void test_limits(kvarena_cache* cache) {
  kvarena_salt_limits limits = SIZED(kvarena_salt_limits);
  limits.floor_blocks = 3;
  EXPECT_OK(kvarena_salt_set_limits(cache, 1, &limits));
  serve_and_end(cache, 1, 0, 5 * kBlockSize + 1);
  kvarena_salt_info info = account_of(cache, 1);
  CHECK(info.registered == 5 && info.kept == 3 && info.sequences == 0);
  CHECK(info.floor_blocks == 3 && info.cap_blocks == 0);
  for (int32_t i = 1; i < 9; ++i) serve_and_end(cache, 2, 10000 * i, 10 * kBlockSize);
  CHECK(cached_blocks(cache, 1, 0, 5 * kBlockSize + 1) == 3);
  kvarena_holder_report holders[4];
  size_t count = 0;
  EXPECT_OK(kvarena_cache_holders(cache, holders, 4, &count));
  CHECK(count == 1 && holders[0].owner == 1 && strcmp(holders[0].purpose, "salt floor") == 0);

  limits.floor_blocks = 0;
  limits.cap_blocks = 2;
  EXPECT_OK(kvarena_salt_set_limits(cache, 1, &limits));
  serve_and_end(cache, 1, 500, 3 * kBlockSize);
  info = account_of(cache, 1);
  CHECK(info.registered == 3 && info.kept == 0 && info.cap_blocks == 2);
  serve_and_end(cache, 1, 900, kBlockSize + 1);
  CHECK(account_of(cache, 1).registered == 2);
  kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
  EXPECT_OK(kvarena_prefix_ask(cache, &stats));
  CHECK(stats.removals_by[KVARENA_REMOVED_OVER_CAP] > 0);
  static char text[16384];
  char expected[64];
  EXPECT_OK(kvarena_cache_stats_json(cache, text, sizeof text, NULL));
  snprintf(expected, sizeof expected, "\"over_cap\":%llu",
           (unsigned long long)stats.removals_by[KVARENA_REMOVED_OVER_CAP]);
  CHECK(strstr(text, "\"prefix_cache\":{\"registered_blocks\":") != NULL);
  CHECK(strstr(text, expected) != NULL);
}

/// Whom eviction would take from.
static void test_shares(kvarena_cache* cache) {
  EXPECT_OK(kvarena_salt_set_limits(cache, 7, NULL));
  EXPECT_OK(kvarena_salt_set_limits(cache, 8, NULL));
  serve_and_end(cache, 7, 0, 2 * kBlockSize + 1);
  serve_and_end(cache, 8, 0, 3 * kBlockSize + 1);
  serve_and_end(cache, 9, 0, kBlockSize + 1);
  kvarena_explanation why = SIZED(kvarena_explanation);
  EXPECT_OK(kvarena_cache_explain(cache, NULL, 1, 0, &why));
  CHECK(why.num_salts == 2 && why.evictable_of_others == 1);
  CHECK(why.evictable_salts[0].salt == 8 && why.evictable_salts[0].blocks == 3);
  CHECK(why.evictable_salts[1].salt == 7 && why.evictable_salts[1].blocks == 2);
  CHECK(why.evictable == 6);
}

static void test_limit_refusals(kvarena_cache* cache) {
  kvarena_salt_limits limits = SIZED(kvarena_salt_limits);
  kvarena_salt_info info = SIZED(kvarena_salt_info);
  limits.floor_blocks = kBlocks + 1;
  kvarena_status refused = kvarena_salt_set_limits(cache, 7, &limits);
  EXPECT_CODE(refused, KVARENA_INVALID_ARGUMENT);
  CHECK(strcmp(kvarena_name_of_option(refused.option), "floor_blocks") == 0);
  limits.floor_blocks = 2;
  limits.cap_blocks = 1;
  refused = kvarena_salt_set_limits(cache, 7, &limits);
  EXPECT_CODE(refused, KVARENA_INVALID_ARGUMENT);
  CHECK(strcmp(kvarena_name_of_option(refused.option), "cap_blocks") == 0);
  limits.cap_blocks = -1;
  EXPECT_CODE(kvarena_salt_set_limits(cache, 7, &limits), KVARENA_INVALID_ARGUMENT);
  EXPECT_STATUS(kvarena_salt_set_limits(cache, 9, NULL), KVARENA_EXHAUSTED,
                KVARENA_RESOURCE_CAPACITY);
  EXPECT_STATUS(kvarena_salt_ask(cache, 9, &info), KVARENA_NOT_FOUND, KVARENA_RESOURCE_HOLDER);
  EXPECT_STATUS(kvarena_salt_ask(cache, 7, NULL), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  EXPECT_STATUS(kvarena_salt_close(cache, 7), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_SEQUENCE);
  EXPECT_OK(kvarena_prefix_forget_salt(cache, 7));
  EXPECT_OK(kvarena_salt_close(cache, 7));
  EXPECT_STATUS(kvarena_salt_close(cache, 7), KVARENA_NOT_FOUND, KVARENA_RESOURCE_HOLDER);
  EXPECT_OK(kvarena_salt_set_limits(cache, 9, NULL));
}

void test_accounts(void) {
  site s = open_cached(NULL, NULL);
  test_limits(s.cache);
  EXPECT_OK(kvarena_prefix_forget_all(s.cache));
  EXPECT_OK(kvarena_salt_close(s.cache, 1));
  test_shares(s.cache);
  test_limit_refusals(s.cache);
  EXPECT_OK(kvarena_cache_check(s.cache));
  kvarena_cache_options answered = SIZED(kvarena_cache_options);
  EXPECT_OK(kvarena_cache_ask(s.cache, &answered));
  CHECK(answered.prefix_accounts == 2 && answered.prefix_ghost_blocks == 1024);
  CHECK(answered.prefix_events == NULL);
  kvarena_cache* refused = NULL;
  for (int i = 0; i < 2; ++i) {
    kvarena_cache_options wrong = cache_options();
    wrong.prefix_cache = 1;
    wrong.prefix_accounts = i == 0 ? -1 : 0;
    wrong.prefix_ghost_blocks = i == 0 ? 0 : 3;
    EXPECT_CODE(kvarena_cache_create(s.device, &wrong, &refused), KVARENA_INVALID_ARGUMENT);
  }
  close_site(&s);

  // Without accounts, and without a prefix cache.
  for (int is_on = 0; is_on < 2; ++is_on) {
    kvarena_cache_options options = cache_options();
    options.prefix_cache = is_on;
    EXPECT_OK(kvarena_device_open_host(NULL, &s.device));
    EXPECT_OK(kvarena_cache_create(s.device, &options, &s.cache));
    const kvarena_status status = kvarena_salt_set_limits(s.cache, 1, NULL);
    EXPECT_CODE(status, KVARENA_FAILED_PRECONDITION);
    CHECK(strcmp(kvarena_name_of_option(status.option), is_on ? "max_accounts" : "prefix_cache") ==
          0);
    close_site(&s);
  }
}

// ---- how it is used -----------------------------------------------------------------------------

static uint64_t total(const kvarena_prefix_histogram* histogram) {
  uint64_t all = 0;
  for (int i = 0; i < KVARENA_PREFIX_BUCKETS; ++i) all += histogram->counts[i];
  return all;
}

void test_prefix_use(void) {
  site s = open_cached(NULL, NULL);
  kvarena_prefix_use use = SIZED(kvarena_prefix_use);
  kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
  serve_and_end(s.cache, 1, 0, 2 * kBlockSize + 1);  // registrations 1 and 2
  serve_and_end(s.cache, 1, 100, kBlockSize + 1);    // 3
  serve_and_end(s.cache, 1, 0, 2 * kBlockSize + 1);  // gaps 3 - 1 and 3 - 2
  EXPECT_OK(kvarena_prefix_ask_use(s.cache, &use));
  CHECK(total(&use.reuse_gap) == 2 && use.reuse_gap.sum == 3);
  CHECK(use.reuse_gap.counts[0] == 1 && use.reuse_gap.counts[1] == 1);
  CHECK(total(&use.lifetime) == 0 && use.ghost_references == 5);
  CHECK(use.num_ghosts == 16 && use.ghost_sampled_ppm == 1000000);
  bool found = false;
  int64_t sizes = 0;
  for (int64_t i = 0; i < use.num_ghosts; ++i) {
    sizes += use.ghosts[i].half_pools;
    if (use.ghosts[i].policy != KVARENA_TAIL_FIRST || use.ghosts[i].half_pools != 2) continue;
    CHECK(use.ghosts[i].hits_ppm == 400000);  // two of five
    found = true;
  }
  CHECK(found && sizes == 4 * (1 + 2 + 4 + 8));
  EXPECT_OK(kvarena_prefix_forget_all(s.cache));
  EXPECT_OK(kvarena_prefix_ask_use(s.cache, &use));
  CHECK(total(&use.lifetime) == 3 && total(&use.idle) == 0);
  // What was published at the end of the last step.
  kvarena_prefix_use published = SIZED(kvarena_prefix_use);
  EXPECT_OK(kvarena_prefix_snapshot(s.cache, &stats, &published));
  CHECK(stats.registered == 3 && total(&published.lifetime) == 0);
  EXPECT_OK(kvarena_cache_publish(s.cache));
  EXPECT_OK(kvarena_prefix_snapshot(s.cache, &stats, NULL));
  EXPECT_OK(kvarena_prefix_snapshot(s.cache, NULL, &published));
  CHECK(stats.registered == 0 && memcmp(&published, &use, sizeof use) == 0);
  close_site(&s);
  s = open_site(NULL, NULL);
  EXPECT_OK(kvarena_prefix_ask_use(s.cache, &use));
  CHECK(use.num_ghosts == 0 && use.ghost_references == 0 && total(&use.lifetime) == 0);
  EXPECT_OK(kvarena_prefix_snapshot(s.cache, NULL, NULL));
  close_site(&s);
}

// ---- events -------------------------------------------------------------------------------------

/// An index that is rebuilt from events alone.
typedef struct mirror {
  struct {
    bool is_stored;
    int32_t parent;
    uint64_t salt;
    int32_t tokens[kBlockSize];
    uint64_t num_keys;
    kvarena_extra_key keys[kMostKeys];
  } blocks[kBlocks];
  uint64_t number;
  int64_t stored, removed, cleared;
} mirror;

static void hear(void* user, const kvarena_prefix_event* event) {
  mirror* const m = user;
  CHECK(event->struct_size == sizeof *event && event->number == ++m->number);
  if (event->kind == KVARENA_PREFIX_CLEARED) {
    CHECK(event->block == -1);
    for (int i = 0; i < kBlocks; ++i) m->blocks[i].is_stored = false;
    m->stored = 0;
    ++m->cleared;
    return;
  }
  CHECK(event->block >= 0 && event->block < kBlocks);
  if (event->kind == KVARENA_PREFIX_REMOVED) {
    CHECK(m->blocks[event->block].is_stored && event->num_tokens == 0);
    CHECK(strcmp(kvarena_name_of_prefix_removal(event->removal), "unknown_removal") != 0);
    m->blocks[event->block].is_stored = false;
    --m->stored;
    ++m->removed;
    return;
  }
  CHECK(event->kind == KVARENA_PREFIX_STORED && !m->blocks[event->block].is_stored);
  CHECK(event->num_tokens == kBlockSize && event->num_extra_keys <= kMostKeys);
  m->blocks[event->block].is_stored = true;
  m->blocks[event->block].parent = event->parent;
  m->blocks[event->block].salt = event->salt;
  memcpy(m->blocks[event->block].tokens, event->tokens, sizeof m->blocks[0].tokens);
  m->blocks[event->block].num_keys = event->num_extra_keys;
  for (uint64_t k = 0; k < event->num_extra_keys; ++k) {
    m->blocks[event->block].keys[k] = event->extra_keys[k];
  }
  ++m->stored;
}

/// Whether a block of the mirror is block `index` of a prompt behind `parent`.
static bool is_block(const mirror* m, int block, int32_t parent, int index,
                     const kvarena_sequence_options* prompt) {
  if (!m->blocks[block].is_stored || m->blocks[block].parent != parent) return false;
  if (m->blocks[block].salt != prompt->salt) return false;
  uint64_t keys = 0;
  for (uint64_t k = 0; k < prompt->num_extra_keys; ++k) {
    if (prompt->extra_keys[k].first_token / kBlockSize != index) continue;
    if (keys >= m->blocks[block].num_keys) return false;
    const kvarena_extra_key* const key = &m->blocks[block].keys[keys++];
    if (key->key != prompt->extra_keys[k].key) return false;
    if (key->first_token != prompt->extra_keys[k].first_token % kBlockSize) return false;
  }
  return keys == m->blocks[block].num_keys &&
         memcmp(m->blocks[block].tokens, prompt->tokens + index * kBlockSize,
                sizeof m->blocks[0].tokens) == 0;
}

/// The blocks of the longest stored prefix. One token is left to compute.
static int find_stored(const mirror* m, const kvarena_sequence_options* prompt, int32_t* blocks) {
  const int most = ((int)prompt->num_tokens - 1) / kBlockSize;
  for (int index = 0; index < most; ++index) {
    int block = 0;
    while (block < kBlocks &&
           !is_block(m, block, index == 0 ? -1 : blocks[index - 1], index, prompt)) {
      ++block;
    }
    if (block == kBlocks) return index;
    blocks[index] = block;
  }
  return most;
}

/// The cache finds what the mirror finds, in the same blocks.
static void compare(kvarena_cache* cache, const mirror* m, const kvarena_sequence_options* prompt) {
  int32_t told[kBlocks], real[kBlocks];
  const int count = find_stored(m, prompt, told);
  kvarena_prefix found = SIZED(kvarena_prefix);
  EXPECT_OK(kvarena_prefix_match(cache, prompt, &found));
  CHECK(found.blocks == count);
  kvarena_sequence probe = 0;
  size_t held = 0;
  EXPECT_OK(kvarena_sequence_create(cache, prompt, &probe));
  EXPECT_OK(kvarena_sequence_blocks(cache, probe, real, kBlocks, &held));
  CHECK((int)held == count && memcmp(told, real, held * sizeof real[0]) == 0);
  EXPECT_OK(kvarena_sequence_destroy(cache, &probe, 1, 0));
}

/// A number below `end`, from a fixed seed.
static uint32_t below(uint32_t end) {
  static uint64_t state = 7;
  state = state * 6364136223846793005U + 1442695040888963407U;
  return (uint32_t)(state >> 33) % end;
}

/// A prompt of which much is the same again and again.
static kvarena_sequence_options random_prompt(int32_t* tokens, kvarena_extra_key* key) {
  kvarena_sequence_options prompt = SIZED(kvarena_sequence_options);
  prompt.num_tokens = 1 + below(5 * kBlockSize);
  for (uint64_t b = 0; b * kBlockSize < prompt.num_tokens; ++b) {
    const int32_t value = (int32_t)below(2);
    for (int i = 0; i < kBlockSize; ++i) tokens[b * kBlockSize + (uint64_t)i] = value;
  }
  prompt.tokens = tokens;
  prompt.salt = below(2);
  key->key = 1 + below(2);
  key->first_token = below(40);
  prompt.extra_keys = key;
  prompt.num_extra_keys = below(4) == 0 ? 1 : 0;
  return prompt;
}

void test_prefix_events(void) {
  CHECK(strcmp(kvarena_name_of_prefix_event(KVARENA_PREFIX_STORED), "stored") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_event(KVARENA_PREFIX_CLEARED), "cleared") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_event(3), "unknown_event") == 0);
  CHECK(strcmp(kvarena_name_of_prefix_removal(KVARENA_REMOVED_OVER_CAP), "over_cap") == 0);
  static mirror m;
  site s = open_cached(hear, &m);
  kvarena_salt_limits limits = SIZED(kvarena_salt_limits);
  limits.floor_blocks = 2;
  limits.cap_blocks = 6;
  EXPECT_OK(kvarena_salt_set_limits(s.cache, 1, &limits));
  int32_t tokens[kMostTokens];
  kvarena_extra_key key;
  kvarena_sequence kept = 0;
  for (int round = 0; round < 600 && failures() == 0; ++round) {
    kvarena_sequence_options prompt = random_prompt(tokens, &key);
    const kvarena_sequence sequence = serve(s.cache, &prompt);
    if (kept != 0) EXPECT_OK(kvarena_sequence_destroy(s.cache, &kept, 1, 0));
    kept = sequence;
    if (below(50) == 0) EXPECT_OK(kvarena_prefix_forget_all(s.cache));
    if (below(50) == 0) EXPECT_OK(kvarena_prefix_forget_salt(s.cache, 0));
    kvarena_prefix_stats stats = SIZED(kvarena_prefix_stats);
    EXPECT_OK(kvarena_prefix_ask(s.cache, &stats));
    CHECK(stats.published == m.stored);
    compare(s.cache, &m, &prompt);
    prompt = random_prompt(tokens, &key);
    compare(s.cache, &m, &prompt);
  }
  CHECK(m.removed > 100 && m.cleared > 2 && m.stored > 0);
  close_site(&s);
}

// ---- retentions of pools ------------------------------------------------------------------------

void test_retentions(void) {
  kvarena_pool* pool = NULL;
  kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 3, .eviction = 5};
  EXPECT_CODE(kvarena_pool_create(&options, &pool), KVARENA_INVALID_ARGUMENT);
  options.eviction = KVARENA_EVICT_PRIORITY;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  kvarena_holder holder = 0;
  int32_t blocks[3], next = -1;
  uint32_t generations[3], generation = 0;
  EXPECT_OK(kvarena_pool_open_holder(pool, NULL, &holder));
  EXPECT_OK(kvarena_pool_allocate(pool, holder, 3, 0, blocks, generations, NULL));
  EXPECT_STATUS(kvarena_pool_set_retention(pool, blocks[0], generations[0], 90, 0),
                KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_BLOCK);
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(kvarena_pool_set_content(pool, blocks[i], generations[i], KVARENA_CONTENT_PUBLISHED));
  }
  EXPECT_OK(kvarena_pool_set_retention(pool, blocks[0], generations[0], 90, 50));
  EXPECT_OK(kvarena_pool_set_retention(pool, blocks[1], generations[1], 80, 0));
  EXPECT_CODE(kvarena_pool_set_retention(pool, blocks[1], generations[1], 101, 0),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_STATUS(kvarena_pool_set_retention(pool, blocks[1], generations[1] + 1, 1, 0),
                KVARENA_STALE_HANDLE, KVARENA_RESOURCE_BLOCK);
  kvarena_block_info info = SIZED(kvarena_block_info);
  EXPECT_OK(kvarena_pool_block(pool, blocks[0], &info));
  CHECK(info.priority == 90 && info.expires_at == 50);
  EXPECT_OK(kvarena_pool_block(pool, blocks[2], &info));
  CHECK(info.priority == 35 && info.expires_at == 0);
  EXPECT_OK(kvarena_pool_free(pool, holder, blocks, generations, 3, 0));
  // Block 2 has the lowest priority. Then that of block 0 ends, and it is lower than block 1's.
  EXPECT_OK(kvarena_pool_allocate(pool, holder, 1, 0, &next, &generation, NULL));
  CHECK(next == blocks[2]);
  EXPECT_OK(kvarena_pool_advance_clock(pool, 50));
  EXPECT_CODE(kvarena_pool_advance_clock(pool, 49), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_pool_allocate(pool, holder, 1, 0, &next, &generation, NULL));
  CHECK(next == blocks[0]);
  EXPECT_OK(kvarena_pool_check(pool));
  EXPECT_OK(kvarena_pool_release(pool));
  options.eviction = 0;
  EXPECT_OK(kvarena_pool_create(&options, &pool));
  EXPECT_CODE(kvarena_pool_advance_clock(pool, 1), KVARENA_UNSUPPORTED);
  EXPECT_OK(kvarena_pool_release(pool));
}
