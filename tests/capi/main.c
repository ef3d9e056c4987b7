// Runs the cases named as arguments, or all of them.

#include "capi_test.h"

static int num_failures = 0;

void fail(const char* file, int line, const char* what) {
  ++num_failures;
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
}

int failures(void) { return num_failures; }

void expect(kvarena_status status, int code, int resource, const char* file, int line,
            const char* call) {
  if (status.code == code && (resource < 0 || status.resource == resource)) return;
  char text[256], message[1024];
  kvarena_describe(&status, text, sizeof text);
  snprintf(message, sizeof message, "%s\n  returned %s (%s): %s\n  expected %s (%s)", call,
           kvarena_name_of_code(status.code), kvarena_name_of_resource(status.resource), text,
           kvarena_name_of_code((uint8_t)code),
           resource < 0 ? "any" : kvarena_name_of_resource((uint8_t)resource));
  fail(file, line, message);
}

kvarena_cache_options cache_options(void) {
  return (kvarena_cache_options){.struct_size = sizeof(kvarena_cache_options),
                                 .num_layers = 2,
                                 .num_kv_heads = kHeads,
                                 .head_dim_k = kDim,
                                 .num_blocks = kBlocks,
                                 .num_q_heads = kHeads,
                                 .max_sequences = 8,
                                 .max_step_tokens = 256,
                                 .watermark_blocks = 2,
                                 .num_threads = 1,
                                 .name = "test"};
}

site open_site(kvarena_operation_function log, void* user) {
  site opened = {NULL, NULL};
  EXPECT_OK(kvarena_device_open_host(NULL, &opened.device));
  kvarena_cache_options options = cache_options();
  options.log = log;
  options.log_user = user;
  EXPECT_OK(kvarena_cache_create(opened.device, &options, &opened.cache));
  return opened;
}

void close_site(site* opened) {
  EXPECT_OK(kvarena_cache_release(opened->cache));
  EXPECT_OK(kvarena_device_release(opened->device));
}

void append_tokens(kvarena_cache* cache, kvarena_sequence sequence, int count) {
  static float zeros[256 * kHeads * kDim], out[256 * kHeads * kDim];
  kvarena_demand demand = {.sequence = sequence, .num_tokens = count};
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  for (int layer = 0; layer < 2; ++layer) {
    kvarena_write_args write = {.struct_size = sizeof write,
                                .key = zeros,
                                .value = zeros,
                                .layer = layer,
                                .dtype = KVARENA_F32};
    kvarena_attend_args attend = {.struct_size = sizeof attend,
                                  .q = zeros,
                                  .out = out,
                                  .layer = layer,
                                  .q_dtype = KVARENA_F32,
                                  .out_dtype = KVARENA_F32};
    EXPECT_OK(kvarena_step_write(cache, &write));
    EXPECT_OK(kvarena_step_attend(cache, &attend));
  }
  EXPECT_OK(kvarena_step_end(cache));
  EXPECT_OK(kvarena_cache_synchronize(cache));
}

typedef struct named_case {
  const char* name;
  void (*run)(void);
} named_case;

static const named_case kCases[] = {
    {"library", test_library},
    {"devices", test_devices},
    {"memory", test_memory},
    {"memory_of_objects", test_memory_of_objects},
    {"cache", test_cache},
    {"sequences", test_sequences},
    {"control", test_control},
    {"steps", test_steps},
    {"recordings", test_recordings},
    {"tickets", test_tickets},
    {"questions", test_questions},
    {"layout", test_layout},
    {"pool", test_pool},
    {"pool_refusals", test_pool_refusals},
    {"pool_prefixes", test_pool_prefixes},
    {"pool_prefix_refusals", test_pool_prefix_refusals},
    {"kernels", test_kernels},
    {"plans", test_plans},
    {"monitor", test_monitor},
    {"monitor_refusals", test_monitor_refusals},
    {"watches", test_watches},
    {"bad_handles", test_bad_handles},
    {"struct_sizes", test_struct_sizes},
    {"null_arguments", test_null_arguments},
    {"null_text", test_null_text},
    {"second_thread", test_second_thread},
    {"second_thread_in_pool", test_second_thread_in_pool},
    {"second_thread_in_kernels", test_second_thread_in_kernels},
    {"release_wins", test_release_wins},
    {"many_handles", test_many_handles},
    {"wild_counts", test_wild_counts},
    {"groups", test_groups},
    {"index", test_index},
    {"states", test_states},
    {"prefixes", test_prefixes},
    {"accounts", test_accounts},
    {"prefix_use", test_prefix_use},
    {"prefix_events", test_prefix_events},
    {"retentions", test_retentions},
    {"cuda", test_cuda},
};

int main(int count, char** arguments) {
  int num_run = 0;
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    bool is_wanted = count == 1;
    for (int a = 1; a < count; ++a) is_wanted |= strcmp(arguments[a], kCases[i].name) == 0;
    if (!is_wanted) continue;
    ++num_run;
    kCases[i].run();
  }
  printf("%d cases, %d failed checks\n", num_run, failures());
  return failures() > 0 || num_run == 0 ? 1 : 0;
}
