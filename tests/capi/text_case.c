// Text that is written to NULL.

#include "capi_test.h"

/// Every call that writes text refuses to write to NULL, and leaves the length as it was.
void test_null_text(void) {
  const kvarena_status ok = {0};
  site s = open_site(NULL, NULL);
  kvarena_monitor* m = NULL;
  kvarena_pool* p = NULL;
  kvarena_pool_options options = {.struct_size = sizeof options, .num_blocks = 4};
  kvarena_monitor_options quiet = {.struct_size = sizeof quiet, .no_thread = 1};
  EXPECT_OK(kvarena_pool_create(&options, &p));
  EXPECT_OK(kvarena_monitor_start(&quiet, &m));
  const char* plan = "{\"model\": \"Qwen2.5-0.5B\", \"gpu\": \"RTX-4090\"}";
  const size_t sizes[] = {0, 1, 100, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    const size_t size = sizes[i];
    size_t length = 0;
#define WRITES_TEXT(...)                                                              \
  do {                                                                                \
    length = 0;                                                                       \
    if (size == 0) {                                                                  \
      EXPECT_OK(__VA_ARGS__);                                                         \
      CHECK(length > 0);                                                              \
    } else {                                                                          \
      EXPECT_STATUS(__VA_ARGS__, KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_POINTER); \
      CHECK(length == 0);                                                             \
    }                                                                                 \
  } while (0)
    WRITES_TEXT(kvarena_device_name(s.device, NULL, size, &length));
    WRITES_TEXT(kvarena_device_json(s.device, NULL, size, &length));
    WRITES_TEXT(kvarena_device_report(s.device, NULL, size, &length));
    WRITES_TEXT(kvarena_device_describe(s.device, &ok, NULL, size, &length));
    WRITES_TEXT(kvarena_devices_json(0, NULL, size, &length));
    WRITES_TEXT(kvarena_memory_verify(s.device, NULL, size, &length));
    WRITES_TEXT(kvarena_cache_describe(s.cache, &ok, NULL, size, &length));
    WRITES_TEXT(kvarena_cache_details_json(s.cache, NULL, size, &length));
    WRITES_TEXT(kvarena_cache_stats_json(s.cache, NULL, size, &length));
    WRITES_TEXT(kvarena_cache_explain_json(s.cache, NULL, 1, 0, NULL, size, &length));
    WRITES_TEXT(kvarena_cache_explain_text(s.cache, NULL, 1, 0, NULL, size, &length));
    WRITES_TEXT(kvarena_pool_explain_json(p, NULL, 1, 0, NULL, size, &length));
    WRITES_TEXT(kvarena_pool_explain_text(p, NULL, 1, 0, NULL, size, &length));
    WRITES_TEXT(kvarena_plan_json(plan, NULL, size, &length));
    WRITES_TEXT(kvarena_presets_json(NULL, size, &length));
    WRITES_TEXT(kvarena_monitor_health_json(m, NULL, size, &length));
    WRITES_TEXT(kvarena_monitor_stats_json(m, NULL, size, &length));
    WRITES_TEXT(kvarena_monitor_metrics(m, NULL, size, &length));
#undef WRITES_TEXT
    CHECK(kvarena_describe(&ok, NULL, size) == 2);
    CHECK(kvarena_kernels_describe(&ok, NULL, size) == 2);
  }
  EXPECT_OK(kvarena_monitor_release(m));
  EXPECT_OK(kvarena_pool_release(p));
  close_site(&s);
}
