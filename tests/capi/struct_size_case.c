// Sizes of structs: what a program of another version, and a careless one, may pass. Each struct
// with `struct_size` has a row here; tests/tidy/check_c_api.py looks for it.

#include "capi_test.h"

/// Sizes of a struct at the begin of `bytes`, of `size` bytes, that `call` must refuse. A longer
/// one is refused only when the call reads it and its end is not zero.
static void check_sizes(unsigned char* bytes, uint64_t size, bool is_input,
                        kvarena_status (*call)(void* argument), const char* name) {
  const uint64_t wrong[] = {0, 8, size + 1, 65544, UINT64_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    memcpy(bytes, &wrong[i], sizeof wrong[i]);
    expect(call(bytes), KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE, __FILE__, __LINE__,
           name);
  }
  const uint64_t longer = size + 8;
  memcpy(bytes, &longer, sizeof longer);
  bytes[size + 3] = 1;
  const kvarena_status refused = call(bytes);
  if (is_input) {
    expect(refused, KVARENA_UNSUPPORTED, KVARENA_RESOURCE_SPAN_SIZE, __FILE__, __LINE__, name);
  } else {
    expect(refused, KVARENA_OK, -1, __FILE__, __LINE__, name);
    CHECK(bytes[size + 3] == 0);
  }
  memset(bytes + size, 0, 8);
}

static site sized;
static kvarena_cache* grouped;  // with groups, a state among them, and a prefix cache
static kvarena_cache* accounted;
static kvarena_pool* sized_pool;
static kvarena_kernels* sized_kernels;
static void* made;
static kvarena_sequence made_sequence;
static kvarena_holder made_holder;
static kvarena_batch made_batch = {.struct_size = sizeof made_batch};
static kvarena_plane made_plane = {.struct_size = sizeof made_plane};
static kvarena_cache_options uniform;
static const kvarena_target kHost = {.struct_size = sizeof kHost};

#define SIZES_OF(type, is_input, filled, call_expression)                        \
  do {                                                                           \
    struct {                                                                     \
      type value;                                                                \
      unsigned char behind[16];                                                  \
    } given = {.value = filled};                                                 \
    check_sizes((unsigned char*)&given, sizeof(type), is_input, call_expression, \
                #call_expression);                                               \
  } while (0)

#define CALL(name, type, expression)           \
  static kvarena_status name(void* argument) { \
    type* p = argument;                        \
    return expression;                         \
  }

CALL(open_host, kvarena_host_options, kvarena_device_open_host(p, (kvarena_device**)&made))
CALL(open_cuda, kvarena_cuda_options, kvarena_device_open_cuda(p, (kvarena_device**)&made))
CALL(ask_device, kvarena_device_info, kvarena_device_ask(sized.device, p))
CALL(ask_target, kvarena_target, kvarena_device_target(sized.device, p))
CALL(allocate, kvarena_allocation, kvarena_memory_allocate(sized.device, p, &made))
CALL(record, kvarena_allocation, kvarena_memory_register(sized.device, &made, p, 1))
CALL(create, kvarena_cache_options, kvarena_cache_create(sized.device, p, (kvarena_cache**)&made))
CALL(ask_cache, kvarena_cache_options, kvarena_cache_ask(sized.cache, p))
CALL(create_sequence, kvarena_sequence_options,
     kvarena_sequence_create(sized.cache, p, &made_sequence))
CALL(fork_sequence, kvarena_sequence_options,
     kvarena_sequence_fork(sized.cache, 1, 0, p, &made_sequence))
CALL(import_sequence, kvarena_sequence_options,
     kvarena_sequence_import(sized.cache, 1, p, 0, &made_sequence))
CALL(pin, kvarena_pin_options, kvarena_pin_create(sized.cache, 1, p, &made_holder))
CALL(begin, kvarena_step_options, kvarena_step_begin(sized.cache, p))
CALL(append, kvarena_batch, kvarena_step_append(sized.cache, NULL, 0, 0, p))
CALL(record_batch, kvarena_step_options,
     kvarena_recording_begin(sized.cache, &(kvarena_recorded_step){.struct_size = 24}, p,
                             &made_batch))
CALL(record_shape, kvarena_recorded_step,
     kvarena_recording_begin(sized.cache, p, NULL, &made_batch))
CALL(replay_shape, kvarena_recorded_step,
     kvarena_step_append_recorded(sized.cache, p, NULL, 0, 0, &made_batch))
CALL(write_kv, kvarena_write_args, kvarena_step_write(sized.cache, p))
CALL(attend, kvarena_attend_args, kvarena_step_attend(sized.cache, p))
CALL(stats, kvarena_stats, kvarena_cache_stats(sized.cache, p))
CALL(snapshot, kvarena_stats, kvarena_cache_snapshot(sized.cache, p))
CALL(explain, kvarena_explanation, kvarena_cache_explain(sized.cache, NULL, 1, 0, p))
CALL(block, kvarena_block_info, kvarena_cache_block(sized.cache, 0, p))
CALL(plane, kvarena_plane, kvarena_cache_plane(sized.cache, 0, 0, p))
CALL(prefix_stats, kvarena_prefix_stats, kvarena_prefix_ask(sized.cache, p))
CALL(prefix_use, kvarena_prefix_use, kvarena_prefix_ask_use(sized.cache, p))
CALL(published_use, kvarena_prefix_use, kvarena_prefix_snapshot(sized.cache, NULL, p))
CALL(published_stats, kvarena_prefix_stats, kvarena_prefix_snapshot(sized.cache, p, NULL))
CALL(set_limits, kvarena_salt_limits, kvarena_salt_set_limits(sized.cache, 1, p))
CALL(plan_options, kvarena_cache_options, kvarena_layout_plan(p, 0, &SIZED(kvarena_pool_plan)))
CALL(layout_plane, kvarena_cache_options, kvarena_layout_plane(p, &made, 1, 0, 0, &made_plane))
CALL(footprint, kvarena_target, kvarena_cache_footprint(&uniform, p, 0, &SIZED(kvarena_footprint)))
CALL(create_pool, kvarena_pool_options, kvarena_pool_create(p, (kvarena_pool**)&made))
CALL(open_holder, kvarena_holder_options, kvarena_pool_open_holder(sized_pool, p, &made_holder))
CALL(begin_prefix, kvarena_prefix_position, kvarena_pool_begin_prefix(sized_pool, 0, p))
CALL(pool_stats, kvarena_stats, kvarena_pool_stats(sized_pool, p))
CALL(pool_block, kvarena_block_info, kvarena_pool_block(sized_pool, 0, p))
CALL(create_kernels, kvarena_kernels_options,
     kvarena_kernels_create(sized.device, p, (kvarena_kernels**)&made))
CALL(start, kvarena_monitor_options, kvarena_monitor_start(p, (kvarena_monitor**)&made))

static kvarena_status plan_group(void* argument) {
  kvarena_cache_options options = {.struct_size = sizeof options,
                                   .num_blocks = 8,
                                   .num_q_heads = 1,
                                   .groups = argument,
                                   .num_groups = 1};
  return kvarena_cache_footprint(&options, &kHost, 0, &SIZED(kvarena_footprint));
}
CALL(footprint_of, kvarena_footprint, kvarena_cache_footprint(&uniform, &kHost, 0, p))
CALL(fit_of, kvarena_footprint, kvarena_cache_fit(&uniform, &kHost, 1 << 20, p))
CALL(ask_sequence, kvarena_sequence_info, kvarena_sequence_ask(grouped, made_sequence, p))
CALL(from_blocks, kvarena_group_blocks,
     kvarena_sequence_create_from(grouped, 1, p, 1, NULL, &(kvarena_sequence){0}))
CALL(match, kvarena_sequence_options, kvarena_prefix_match(grouped, p, &SIZED(kvarena_prefix)))
CALL(found_of, kvarena_prefix, kvarena_sequence_prefix(grouped, made_sequence, p))
CALL(ask_salt, kvarena_salt_info, kvarena_salt_ask(accounted, 1, p))
CALL(placed, kvarena_device_batch, kvarena_step_device_batch(grouped, p))
CALL(placed_part, kvarena_device_batch, kvarena_step_group_batch(grouped, 0, p))
CALL(states, kvarena_state_slots, kvarena_step_states(grouped, 0, p))
CALL(write_cross, kvarena_write_cross_args, kvarena_step_write_cross(grouped, p))
CALL(write_index, kvarena_write_index_args, kvarena_step_write_index(grouped, p))
CALL(pages, kvarena_page_stats, kvarena_cache_pages(grouped, p))
CALL(part, kvarena_part_stats, kvarena_cache_part(grouped, 0, p))
CALL(state_view, kvarena_state_view, kvarena_cache_state_view(grouped, 1, p))
CALL(pool_plan, kvarena_pool_plan, kvarena_layout_plan(&uniform, 0, p))
CALL(schedule, kvarena_tables, kvarena_kernels_schedule(sized_kernels, p, 0, NULL))

static const kvarena_group_layer kAttention[] = {{0, 0}}, kRecurrent[] = {{1, 1}};
static const kvarena_state_plane kState = {.shape = {4}, .num_dims = 1, .dtype = KVARENA_F32};

static kvarena_layer_group attention_group(void) {
  return (kvarena_layer_group){.struct_size = sizeof(kvarena_layer_group),
                               .layers = kAttention,
                               .num_layers = 1,
                               .num_kv_heads = 1,
                               .head_dim_k = 8,
                               .dtype = KVARENA_F32};
}

/// A cache with layers that attend and layers with a state, and a step that is open.
static void open_grouped(void) {
  const kvarena_layer_group groups[] = {attention_group(),
                                        {.struct_size = sizeof groups[0],
                                         .layers = kRecurrent,
                                         .num_layers = 1,
                                         .kind = KVARENA_GROUP_STATE,
                                         .planes = &kState,
                                         .num_planes = 1}};
  const kvarena_cache_options options = {.struct_size = sizeof options,
                                         .num_blocks = 16,
                                         .num_q_heads = 1,
                                         .max_sequences = 4,
                                         .num_threads = 1,
                                         .groups = groups,
                                         .num_groups = 2,
                                         .prefix_cache = 1};
  EXPECT_OK(kvarena_cache_create(sized.device, &options, &grouped));
  EXPECT_OK(kvarena_sequence_create(grouped, NULL, &made_sequence));
  const kvarena_demand demand = {.sequence = made_sequence, .num_tokens = 1};
  EXPECT_OK(kvarena_step_begin(grouped, NULL));
  EXPECT_OK(kvarena_step_append(grouped, &demand, 1, 0, &made_batch));
}

/// Structs of caches with groups and prefixes, and of kernels.
static void check_grouped_sizes(void) {
  open_grouped();
  kvarena_cache_options with_accounts = cache_options();
  with_accounts.prefix_cache = with_accounts.prefix_accounts = 1;
  EXPECT_OK(kvarena_cache_create(sized.device, &with_accounts, &accounted));
  EXPECT_OK(kvarena_salt_set_limits(accounted, 1, NULL));
  const kvarena_kernels_options kernels = {.struct_size = sizeof kernels,
                                           .num_kv_heads = 1,
                                           .head_dim_k = 8,
                                           .dtype = KVARENA_F32,
                                           .num_q_heads = 1,
                                           .max_rows = 1,
                                           .max_q_tokens = 1,
                                           .num_blocks = 1};
  EXPECT_OK(kvarena_kernels_create(sized.device, &kernels, &sized_kernels));
  SIZES_OF(kvarena_layer_group, true, attention_group(), plan_group);
  SIZES_OF(kvarena_footprint, false, SIZED(kvarena_footprint), footprint_of);
  SIZES_OF(kvarena_footprint, false, SIZED(kvarena_footprint), fit_of);
  SIZES_OF(kvarena_sequence_info, false, SIZED(kvarena_sequence_info), ask_sequence);
  SIZES_OF(kvarena_group_blocks, true, SIZED(kvarena_group_blocks), from_blocks);
  SIZES_OF(kvarena_sequence_options, true, SIZED(kvarena_sequence_options), match);
  SIZES_OF(kvarena_prefix, false, SIZED(kvarena_prefix), found_of);
  SIZES_OF(kvarena_salt_info, false, SIZED(kvarena_salt_info), ask_salt);
  SIZES_OF(kvarena_device_batch, false, SIZED(kvarena_device_batch), placed);
  SIZES_OF(kvarena_device_batch, false, SIZED(kvarena_device_batch), placed_part);
  SIZES_OF(kvarena_state_slots, false, SIZED(kvarena_state_slots), states);
  SIZES_OF(kvarena_write_cross_args, true, SIZED(kvarena_write_cross_args), write_cross);
  SIZES_OF(kvarena_write_index_args, true, SIZED(kvarena_write_index_args), write_index);
  SIZES_OF(kvarena_page_stats, false, SIZED(kvarena_page_stats), pages);
  SIZES_OF(kvarena_part_stats, false, SIZED(kvarena_part_stats), part);
  SIZES_OF(kvarena_state_view, false, SIZED(kvarena_state_view), state_view);
  SIZES_OF(kvarena_pool_plan, false, SIZED(kvarena_pool_plan), pool_plan);
  SIZES_OF(kvarena_tables, true, SIZED(kvarena_tables), schedule);
  EXPECT_OK(kvarena_kernels_release(sized_kernels));
  EXPECT_OK(kvarena_cache_release(accounted));
  EXPECT_OK(kvarena_cache_release(grouped));
  made_sequence = 0;
}

void test_struct_sizes(void) {
  sized = open_site(NULL, NULL);
  kvarena_pool_options pool = {.struct_size = sizeof pool, .num_blocks = 2, .prefix_cache = 1};
  EXPECT_OK(kvarena_pool_create(&pool, &sized_pool));
  uniform = cache_options();
  SIZES_OF(kvarena_host_options, true, SIZED(kvarena_host_options), open_host);
  SIZES_OF(kvarena_cuda_options, true, SIZED(kvarena_cuda_options), open_cuda);
  SIZES_OF(kvarena_device_info, false, SIZED(kvarena_device_info), ask_device);
  SIZES_OF(kvarena_target, false, SIZED(kvarena_target), ask_target);
  SIZES_OF(kvarena_allocation, true, SIZED(kvarena_allocation), allocate);
  SIZES_OF(kvarena_allocation, true, SIZED(kvarena_allocation), record);
  SIZES_OF(kvarena_cache_options, true, cache_options(), create);
  SIZES_OF(kvarena_cache_options, false, cache_options(), ask_cache);
  SIZES_OF(kvarena_sequence_options, true, SIZED(kvarena_sequence_options), create_sequence);
  SIZES_OF(kvarena_sequence_options, true, SIZED(kvarena_sequence_options), fork_sequence);
  SIZES_OF(kvarena_sequence_options, true, SIZED(kvarena_sequence_options), import_sequence);
  SIZES_OF(kvarena_pin_options, true, SIZED(kvarena_pin_options), pin);
  SIZES_OF(kvarena_step_options, true, SIZED(kvarena_step_options), begin);
  SIZES_OF(kvarena_step_options, true, SIZED(kvarena_step_options), record_batch);
  SIZES_OF(kvarena_recorded_step, true, SIZED(kvarena_recorded_step), record_shape);
  SIZES_OF(kvarena_recorded_step, true, SIZED(kvarena_recorded_step), replay_shape);
  SIZES_OF(kvarena_write_args, true, SIZED(kvarena_write_args), write_kv);
  SIZES_OF(kvarena_attend_args, true, SIZED(kvarena_attend_args), attend);
  SIZES_OF(kvarena_stats, false, SIZED(kvarena_stats), stats);
  SIZES_OF(kvarena_stats, false, SIZED(kvarena_stats), snapshot);
  SIZES_OF(kvarena_explanation, false, SIZED(kvarena_explanation), explain);
  SIZES_OF(kvarena_block_info, false, SIZED(kvarena_block_info), block);
  SIZES_OF(kvarena_plane, false, SIZED(kvarena_plane), plane);
  SIZES_OF(kvarena_prefix_stats, false, SIZED(kvarena_prefix_stats), prefix_stats);
  SIZES_OF(kvarena_prefix_use, false, SIZED(kvarena_prefix_use), prefix_use);
  SIZES_OF(kvarena_prefix_use, false, SIZED(kvarena_prefix_use), published_use);
  SIZES_OF(kvarena_prefix_stats, false, SIZED(kvarena_prefix_stats), published_stats);
  SIZES_OF(kvarena_salt_limits, true, SIZED(kvarena_salt_limits), set_limits);
  SIZES_OF(kvarena_cache_options, true, cache_options(), plan_options);
  SIZES_OF(kvarena_cache_options, true, cache_options(), layout_plane);
  SIZES_OF(kvarena_target, true, SIZED(kvarena_target), footprint);
  SIZES_OF(kvarena_pool_options, true, SIZED(kvarena_pool_options), create_pool);
  SIZES_OF(kvarena_holder_options, true, SIZED(kvarena_holder_options), open_holder);
  SIZES_OF(kvarena_stats, false, SIZED(kvarena_stats), pool_stats);
  SIZES_OF(kvarena_block_info, false, SIZED(kvarena_block_info), pool_block);
  SIZES_OF(kvarena_prefix_position, false, SIZED(kvarena_prefix_position), begin_prefix);
  SIZES_OF(kvarena_kernels_options, true, SIZED(kvarena_kernels_options), create_kernels);
  SIZES_OF(kvarena_monitor_options, true, SIZED(kvarena_monitor_options), start);
  EXPECT_OK(kvarena_step_begin(sized.cache, NULL));
  SIZES_OF(kvarena_batch, false, SIZED(kvarena_batch), append);
  EXPECT_OK(kvarena_step_end(sized.cache));
  CHECK(made == NULL && made_sequence == 0 && made_holder == 0);
  check_grouped_sizes();

  // An older caller's shorter structs: options have defaults, results are cut.
  kvarena_sequence_options old = {.struct_size = 16, .max_length_tokens = 5, .owner = 3};
  kvarena_sequence_info info = {.struct_size = 24, .waste_tokens = 99};
  EXPECT_OK(kvarena_sequence_create(sized.cache, &old, &made_sequence));
  EXPECT_OK(kvarena_sequence_ask(sized.cache, made_sequence, &info));
  CHECK(info.struct_size == 24 && info.length_tokens == 0 && info.waste_tokens == 99);
  info.struct_size = sizeof info;
  EXPECT_OK(kvarena_sequence_ask(sized.cache, made_sequence, &info));
  CHECK(info.max_length_tokens == 5 && info.owner == made_sequence && info.waste_tokens == 0);
  EXPECT_OK(kvarena_pool_release(sized_pool));
  close_site(&sized);
}
