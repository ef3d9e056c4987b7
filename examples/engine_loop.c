// The loop of a serving engine in C: what engine_loop.cpp does, and what it prints. First-come
// admission under a watermark, prefill in chunks beside decode, growth block by block, preemption
// (newest first, recomputed later) when blocks run out, completion. The "model" is a toy of one
// layer: the next token is where its output is largest.

#include <kvarena/kvarena.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kHeads = 2, kDim = 16, kBlocks = 24, kBlockSize = 16, kTokenBudget = 64, kRequests = 20 };
enum { kMaxTokens = 200, kRow = kHeads * kDim };

typedef struct request {
  int tokens[kMaxTokens];  // the prompt, then what was generated
  size_t num_tokens;
  size_t goal;    // tokens when it is complete
  size_t cached;  // tokens whose K and V are in the cache
  kvarena_sequence sequence;
} request;

typedef struct engine {
  kvarena_cache* cache;
  request requests[kRequests];
  size_t waiting[kRequests], num_waiting;  // first come first
  size_t running[kRequests], num_running;  // oldest first
  long long steps, completed, computed, preemptions, recomputed;
} engine;

static void remove_first(size_t* list, size_t* count) {
  memmove(list, list + 1, --*count * sizeof *list);
}

/// Takes waiting requests while their tokens fit above the watermark.
static kvarena_status admit(engine* e) {
  int64_t blocks = 0;
  while (e->num_waiting > 0) {
    request* next = &e->requests[e->waiting[0]];
    blocks += (int64_t)(next->num_tokens / kBlockSize + 1);
    bool fits = false;
    kvarena_status status = kvarena_cache_can_allocate(e->cache, blocks, KVARENA_ADMISSION, &fits);
    if (status.code != KVARENA_OK || !fits) return status;
    status = kvarena_sequence_create(e->cache, NULL, &next->sequence);
    if (status.code != KVARENA_OK) return status;
    e->running[e->num_running++] = e->waiting[0];
    remove_first(e->waiting, &e->num_waiting);
  }
  return (kvarena_status){0};
}

/// The newest request gives its blocks back and is computed again later.
static kvarena_status preempt(engine* e) {
  const size_t newest = e->running[--e->num_running];
  request* victim = &e->requests[newest];
  ++e->preemptions;
  e->recomputed += (long long)victim->cached;
  victim->cached = 0;
  memmove(e->waiting + 1, e->waiting, e->num_waiting++ * sizeof *e->waiting);
  e->waiting[0] = newest;
  return kvarena_sequence_destroy(e->cache, &victim->sequence, 1, 0);
}

/// A token each for those that decode, chunks of the prompt for the others, within the budget.
static void list_demands(const engine* e, kvarena_demand* demands) {
  size_t budget = kTokenBudget;
  for (size_t i = 0; i < e->num_running; ++i) {
    const request* r = &e->requests[e->running[i]];
    const size_t left = r->num_tokens - r->cached, chunk = left < budget ? left : budget;
    budget -= chunk;
    demands[i] = (kvarena_demand){.sequence = r->sequence, .num_tokens = (int32_t)chunk};
  }
}

/// The model. K, V and Q are a function of the token; they stay until the work has completed.
static kvarena_status compute(const engine* e, const kvarena_demand* rows, float* out) {
  static float embedded[kTokenBudget * kRow];
  size_t count = 0;
  for (size_t i = 0; i < e->num_running; ++i) {
    const request* r = &e->requests[e->running[i]];
    for (int t = 0; t < rows[i].num_tokens; ++t) {
      const int token = r->tokens[r->cached + (size_t)t];
      for (int x = 1; x <= kRow; ++x) embedded[count++] = sinf((float)((token + 1) * x) * 0.1F);
    }
  }
  const kvarena_write_args write = {
      .struct_size = sizeof write, .key = embedded, .value = embedded, .dtype = KVARENA_F32};
  const kvarena_attend_args attend = {.struct_size = sizeof attend,
                                      .q = embedded,
                                      .out = out,
                                      .q_dtype = KVARENA_F32,
                                      .out_dtype = KVARENA_F32};
  kvarena_status status = kvarena_step_write(e->cache, &write);
  if (status.code == KVARENA_OK) status = kvarena_step_attend(e->cache, &attend);
  if (status.code == KVARENA_OK) status = kvarena_step_end(e->cache);
  return status.code == KVARENA_OK ? kvarena_cache_synchronize(e->cache) : status;
}

/// Takes the next token of each request whose tokens are all cached; ends those that are complete.
static kvarena_status collect(engine* e, const kvarena_demand* rows, const float* out) {
  size_t kept = 0;
  for (size_t i = 0; i < e->num_running; ++i) {
    const size_t id = e->running[i];
    request* r = &e->requests[id];
    r->cached += (size_t)rows[i].num_tokens;
    out += rows[i].num_tokens * kRow;
    if (r->cached == r->num_tokens) {
      const float* last = out - kRow;
      int best = 0;
      for (int x = 1; x < kRow; ++x) best = last[x] > last[best] ? x : best;
      r->tokens[r->num_tokens++] = best;
    }
    if (r->num_tokens < r->goal) {
      e->running[kept++] = id;
      continue;
    }
    const kvarena_status status = kvarena_sequence_destroy(e->cache, &r->sequence, 1, 0);
    if (status.code != KVARENA_OK) return status;
    ++e->completed;
  }
  e->num_running = kept;
  return (kvarena_status){0};
}

static kvarena_status serve(engine* e) {
  static float out[kTokenBudget * kRow];
  kvarena_demand rows[kRequests];
  for (; e->num_waiting > 0 || e->num_running > 0; ++e->steps) {
    kvarena_batch batch = {.struct_size = sizeof batch};
    kvarena_status status = kvarena_step_begin(e->cache, NULL);
    if (status.code == KVARENA_OK) status = admit(e);
    if (status.code != KVARENA_OK) return status;
    for (;;) {
      list_demands(e, rows);
      status = kvarena_step_append(e->cache, rows, e->num_running, KVARENA_GROWTH, &batch);
      if (status.code != KVARENA_EXHAUSTED || e->num_running <= 1) break;
      status = preempt(e);
      if (status.code != KVARENA_OK) return status;
    }
    if (status.code == KVARENA_OK) status = compute(e, rows, out);
    if (status.code == KVARENA_OK) status = collect(e, rows, out);
    if (status.code != KVARENA_OK) return status;
    e->computed += batch.num_tokens;
  }
  return kvarena_cache_check(e->cache);
}

int main(void) {
  static engine e;
  kvarena_device* device = NULL;
  const kvarena_cache_options options = {.struct_size = sizeof options,
                                         .num_layers = 1,
                                         .num_kv_heads = kHeads,
                                         .head_dim_k = kDim,
                                         .num_blocks = kBlocks,
                                         .num_q_heads = kHeads,
                                         .max_step_tokens = kTokenBudget,
                                         .watermark_blocks = 2};
  char text[1000];
  kvarena_status status = kvarena_device_open_host(NULL, &device);
  if (status.code == KVARENA_OK) status = kvarena_cache_create(device, &options, &e.cache);
  if (status.code != KVARENA_OK) {
    kvarena_describe(&status, text, sizeof text);
    return fprintf(stderr, "%s\n", text), 1;
  }
  for (size_t i = 0; i < kRequests; ++i) {
    request* r = &e.requests[i];
    r->num_tokens = 20 + i * 37 % 90;
    r->goal = r->num_tokens + 10 + i * 3;
    for (size_t t = 0; t < r->num_tokens; ++t) r->tokens[t] = (int)i;
    e.waiting[e.num_waiting++] = i;
  }
  status = serve(&e);
  if (status.code != KVARENA_OK) {
    kvarena_cache_describe(e.cache, &status, text, sizeof text, NULL);
    return fprintf(stderr, "%s\n", text), 1;
  }
  kvarena_stats stats = {.struct_size = sizeof stats};
  kvarena_cache_stats(e.cache, &stats);
  printf(
      "%lld requests completed in %lld steps; %lld tokens computed\n"
      "%lld preemptions had %lld tokens computed a second time\n"
      "at most %lld of %d blocks in use; %lld free at the end\n",
      e.completed, e.steps, e.computed, e.preemptions, e.recomputed,
      (long long)stats.peak_allocated, kBlocks, (long long)stats.free_blocks);
  kvarena_cache_release(e.cache);
  kvarena_device_release(device);
  return stats.free_blocks == kBlocks ? 0 : 1;
}
