// Caches with states of recurrent layers. The kernel of a layer is `state = state / 2 + token`.

#include "capi_test.h"

#include <math.h>

enum { kEvery = 32, kMostTokens = 128 };

static const kvarena_group_layer kAttention[] = {{2, 2}};
static const kvarena_group_layer kRecurrent[] = {{0, 0}, {1, 1}};
static const kvarena_state_plane kPlanes[] = {
    {.shape = {16, 16}, .num_dims = 2, .dtype = KVARENA_F32},
    {.shape = {3}, .num_dims = 1, .dtype = KVARENA_BF16},
};

static void set_groups(kvarena_layer_group groups[2], int32_t mode) {
  groups[0] = (kvarena_layer_group){.struct_size = sizeof groups[0],
                                    .layers = kAttention,
                                    .num_layers = 1,
                                    .num_kv_heads = 1,
                                    .head_dim_k = 8,
                                    .dtype = KVARENA_F32};
  groups[1] = (kvarena_layer_group){.struct_size = sizeof groups[1],
                                    .layers = kRecurrent,
                                    .num_layers = 2,
                                    .kind = KVARENA_GROUP_STATE,
                                    .planes = kPlanes,
                                    .num_planes = 2,
                                    .state_mode = mode,
                                    .rollback_tokens = 2};
}

static kvarena_cache_options options_of(const kvarena_layer_group groups[2]) {
  return (kvarena_cache_options){.struct_size = sizeof(kvarena_cache_options),
                                 .num_blocks = 64,
                                 .num_q_heads = 1,
                                 .max_sequences = 4,
                                 .max_sequence_tokens = 1024,
                                 .num_threads = 1,
                                 .groups = groups,
                                 .num_groups = 2,
                                 .checkpoint_every_tokens = kEvery};
}

static float* state_in(const kvarena_state_view* view, int32_t slot) {
  return (float*)((char*)view->base + slot * view->slot_stride_bytes + view->offsets[0]);
}

/// The kernel, for a step of one row.
static void run_layer(kvarena_cache* cache, int32_t layer, int first, int count) {
  kvarena_state_view view = SIZED(kvarena_state_view);
  kvarena_state_slots slots = SIZED(kvarena_state_slots);
  EXPECT_OK(kvarena_cache_state_view(cache, layer, &view));
  EXPECT_OK(kvarena_step_states(cache, view.index, &slots));
  CHECK(slots.num_rows == 1 && view.num_planes == 2 && view.planes[0].num_dims == 2);
  // On the host the lists for kernels are the others.
  CHECK(slots.device_read == slots.read && slots.device_write == slots.write);
  CHECK(slots.device_extra_slots == slots.extra_slots && slots.num_extras <= slots.max_extras);
  const int32_t read = slots.read[view.part];
  float state = read == -1 ? 0.0F : *state_in(&view, read);
  int32_t extra = slots.extra_offsets[0];
  for (int i = 0; i < count; ++i) {
    state = state / 2 + (float)(first + i);
    if (extra == slots.extra_offsets[1] || slots.extra_tokens[extra] != i) continue;
    *state_in(&view, slots.extra_slots[extra * slots.num_parts + view.part]) = state;
    ++extra;
  }
  CHECK(extra == slots.num_extras);
  *state_in(&view, slots.write[view.part]) = state;
}

static void append_states(kvarena_cache* cache, kvarena_sequence sequence, int first, int count) {
  kvarena_demand demand = {.sequence = sequence, .num_tokens = count};
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  EXPECT_OK(kvarena_cache_synchronize(cache));
  run_layer(cache, 0, first, count);
  run_layer(cache, 1, first, count);
  EXPECT_OK(kvarena_step_end(cache));
  EXPECT_OK(kvarena_cache_synchronize(cache));
}

/// What the state is after tokens 0 .. length - 1.
static float expected_state(int length) {
  float state = 0.0F;
  for (int i = 0; i < length; ++i) state = state / 2 + (float)i;
  return state;
}

/// The state of both layers at the sequence's present length, by a step that is given up.
static void check_state(kvarena_cache* cache, kvarena_sequence sequence, int length) {
  kvarena_demand demand = {.sequence = sequence, .num_tokens = 1};
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  EXPECT_OK(kvarena_cache_synchronize(cache));
  for (int32_t layer = 0; layer < 2; ++layer) {
    kvarena_state_view view = SIZED(kvarena_state_view);
    kvarena_state_slots slots = SIZED(kvarena_state_slots);
    EXPECT_OK(kvarena_cache_state_view(cache, layer, &view));
    EXPECT_OK(kvarena_step_states(cache, 0, &slots));
    const int32_t read = slots.read[view.part];
    CHECK((read == -1 ? 0.0F : *state_in(&view, read)) == expected_state(length));
  }
  EXPECT_OK(kvarena_step_abort(cache));
}

static void check_lives(kvarena_device* device, int32_t mode) {
  kvarena_layer_group groups[2];
  set_groups(groups, mode);
  const kvarena_cache_options options = options_of(groups);
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  kvarena_cache_options answer = SIZED(kvarena_cache_options);
  EXPECT_OK(kvarena_cache_ask(cache, &answer));
  CHECK(answer.checkpoint_every_tokens == kEvery);
  kvarena_sequence a = 0, fork = 0, other = 0;
  EXPECT_OK(kvarena_sequence_create(cache, NULL, &a));
  append_states(cache, a, 0, 70);
  check_state(cache, a, 70);
  // The last two tokens can be taken back, and what is a multiple of 32.
  int64_t lengths[8];
  size_t count = 0;
  EXPECT_OK(kvarena_sequence_checkpoints(cache, a, lengths, 8, &count));
  CHECK(count == 2 && lengths[0] == 32 && lengths[1] == 64);
  EXPECT_STATUS(kvarena_sequence_checkpoints(cache, a, lengths, 1, &count),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  CHECK(count == 2);
  EXPECT_OK(kvarena_sequence_fork(cache, a, 64, NULL, &fork));
  check_state(cache, fork, 64);
  EXPECT_OK(kvarena_sequence_truncate(cache, a, 69, 0));
  check_state(cache, a, 69);
  EXPECT_STATUS(kvarena_sequence_truncate(cache, a, 50, 0), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_SEQUENCE_LENGTH);
  EXPECT_OK(kvarena_sequence_checkpoint(cache, a));
  append_states(cache, a, 69, 20);
  int64_t restorable = 0;
  EXPECT_OK(kvarena_sequence_restorable_length(cache, a, 80, &restorable));
  CHECK(restorable == 69);
  // Another sequence begins with a checkpoint of this one: its blocks, and those of its tokens.
  int32_t states[8], tokens[8];
  uint32_t state_generations[8], generations[8];
  kvarena_group_blocks parts[2] = {SIZED(kvarena_group_blocks), SIZED(kvarena_group_blocks)};
  EXPECT_OK(kvarena_sequence_state_blocks(cache, a, 64, 1, states, state_generations, 8, &count));
  parts[1].blocks = states;
  parts[1].generations = state_generations;
  parts[1].num_blocks = count;
  EXPECT_STATUS(
      kvarena_sequence_state_blocks(cache, a, 65, 1, states, state_generations, 8, &count),
      KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_SEQUENCE_LENGTH);
  EXPECT_CODE(kvarena_sequence_state_blocks(cache, a, 64, 0, states, state_generations, 8, &count),
              KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_sequence_group_blocks(cache, a, 0, tokens, 8, &count, &parts[0].first_block));
  for (int i = 0; i < 4; ++i) {
    kvarena_block_info info = SIZED(kvarena_block_info);
    EXPECT_OK(kvarena_cache_block(cache, tokens[i], &info));
    generations[i] = info.generation;
  }
  parts[0].blocks = tokens;
  parts[0].generations = generations;
  parts[0].num_blocks = 4;
  EXPECT_OK(kvarena_sequence_create_from(cache, 64, parts, 2, NULL, &other));
  check_state(cache, other, 64);
  const kvarena_sequence all[3] = {a, fork, other};
  EXPECT_OK(kvarena_sequence_destroy(cache, all, 3, 0));
  kvarena_part_stats part = SIZED(kvarena_part_stats);
  EXPECT_OK(kvarena_cache_part(cache, 1, &part));
  CHECK(part.group == 1 && part.block_size_tokens == 0 && part.referenced == 0);
  EXPECT_OK(kvarena_cache_check(cache));
  EXPECT_OK(kvarena_cache_release(cache));
}

static void check_refusals(kvarena_device* device) {
  kvarena_layer_group groups[2];
  set_groups(groups, KVARENA_STATE_IN_PLACE);
  kvarena_cache_options options = options_of(groups);
  kvarena_cache* cache = NULL;
  groups[1].num_planes = 9;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  groups[1].num_planes = 1;
  groups[1].planes = NULL;
  EXPECT_STATUS(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  kvarena_state_plane plane = kPlanes[0];
  groups[1].planes = &plane;
  plane.dtype = 77;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  plane.dtype = KVARENA_F32;
  plane.shape[1] = 0;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  plane.shape[1] = 16;
  plane.num_dims = 5;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  plane.num_dims = 2;
  groups[1].state_mode = 2;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  groups[1].state_mode = KVARENA_STATE_IN_PLACE;
  options.checkpoint_every_tokens = 33;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options.checkpoint_every_tokens = -1;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  kvarena_state_view view = SIZED(kvarena_state_view);
  EXPECT_STATUS(kvarena_cache_state_view(cache, 2, &view), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_LAYER);
  kvarena_state_slots slots = SIZED(kvarena_state_slots);
  EXPECT_STATUS(kvarena_step_states(cache, 0, &slots), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_STEP);
  EXPECT_OK(kvarena_cache_release(cache));
  site s = open_site(NULL, NULL);
  EXPECT_CODE(kvarena_sequence_checkpoint(s.cache, 1), KVARENA_UNSUPPORTED);
  close_site(&s);
}

void test_states(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  check_refusals(device);
  check_lives(device, KVARENA_STATE_IN_PLACE);
  check_lives(device, KVARENA_STATE_READ_WRITE);
  EXPECT_OK(kvarena_device_release(device));
}
