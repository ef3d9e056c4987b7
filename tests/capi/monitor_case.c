// Monitors: with and without a thread, watching devices and caches, over HTTP.

#include "capi_test.h"

#include <math.h>

static int num_reasons = 0;
static void count_reason(void* user, const char* code, const char* text) {
  CHECK(user == &num_reasons && code[0] != '\0' && text[0] != '\0');
  ++num_reasons;
}

static void note_pressure(void* user, const char* name, int32_t from, int32_t to,
                          const char* text) {
  (void)user;
  CHECK(strcmp(name, "pool") == 0 && from != to && text[0] != '\0');
}

static kvarena_monitor_options quiet(void) {
  return (kvarena_monitor_options){.struct_size = sizeof(kvarena_monitor_options),
                                   .no_thread = 1,
                                   .on_unhealthy = count_reason,
                                   .on_pressure = note_pressure,
                                   .user = &num_reasons};
}

void test_monitor(void) {
  kvarena_monitor* monitor = NULL;
  kvarena_monitor_options options = quiet();
  options.serve_http = 1;
  EXPECT_OK(kvarena_monitor_start(&options, &monitor));
  int32_t port = 0;
  EXPECT_OK(kvarena_monitor_port(monitor, &port));
  CHECK(port > 0);
  site s = open_site(NULL, NULL);
  EXPECT_OK(kvarena_monitor_watch_device(monitor, s.device));
  EXPECT_CODE(kvarena_monitor_watch_device(monitor, s.device), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_monitor_watch(monitor, s.cache, "pool"));
  EXPECT_CODE(kvarena_monitor_watch(monitor, s.cache, "pool"), KVARENA_FAILED_PRECONDITION);
  EXPECT_CODE(kvarena_monitor_watch(monitor, s.cache, ""), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_monitor_report_engine(monitor, "pool", 2, 1));
  EXPECT_CODE(kvarena_monitor_report_engine(monitor, "pond", 2, 1), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_monitor_report_engine(monitor, "pool", -1, 1), KVARENA_INVALID_ARGUMENT);
  bool healthy = false;
  EXPECT_OK(kvarena_monitor_check(monitor, &healthy));
  CHECK(healthy);
  EXPECT_OK(kvarena_monitor_is_healthy(monitor, &healthy));
  EXPECT_OK(kvarena_monitor_acknowledge(monitor));
  char text[4096];
  size_t length = 0;
  EXPECT_OK(kvarena_monitor_health_json(monitor, text, sizeof text, &length));
  CHECK(strstr(text, "\"status\":\"healthy\"") != NULL);
  EXPECT_OK(kvarena_monitor_stats_json(monitor, text, sizeof text, &length));
  CHECK(strstr(text, "\"pools\"") != NULL || length >= sizeof text);
  EXPECT_OK(kvarena_monitor_metrics(monitor, text, sizeof text, &length));
  CHECK(strstr(text, "kvarena_healthy 1\n") != NULL);
  EXPECT_OK(kvarena_monitor_unwatch(monitor, "pool"));
  EXPECT_CODE(kvarena_monitor_unwatch(monitor, "pool"), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_monitor_unwatch_device(monitor, s.device));
  EXPECT_CODE(kvarena_monitor_unwatch_device(monitor, s.device), KVARENA_NOT_FOUND);
  close_site(&s);
  EXPECT_OK(kvarena_monitor_release(monitor));
  EXPECT_CODE(kvarena_monitor_release(monitor), KVARENA_STALE_HANDLE);

  options = quiet();
  EXPECT_OK(kvarena_monitor_start(&options, &monitor));
  EXPECT_CODE(kvarena_monitor_port(monitor, &port), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_monitor_release(monitor));
  options.period_ns = -5;
  EXPECT_CODE(kvarena_monitor_start(&options, &monitor), KVARENA_INVALID_ARGUMENT);
  options = quiet();
  options.http_port = 70000;
  EXPECT_CODE(kvarena_monitor_start(&options, &monitor), KVARENA_INVALID_ARGUMENT);
  const double wrong[] = {(double)NAN, -0.1, 1.5};
  for (int i = 0; i < 3; ++i) {
    options = quiet();
    options.hysteresis = wrong[i];
    EXPECT_CODE(kvarena_monitor_start(&options, &monitor), KVARENA_INVALID_ARGUMENT);
    options = quiet();
    options.blocks_critical = wrong[i];
    EXPECT_CODE(kvarena_monitor_start(&options, &monitor), KVARENA_INVALID_ARGUMENT);
  }
}

/// Starts a monitor that must be refused, with a sentence that says the member, the value and the
/// accepted range.
static void refuse(const kvarena_monitor_options* options, const char* sentence, int line) {
  kvarena_monitor* monitor = NULL;
  const kvarena_status status = kvarena_monitor_start(options, &monitor);
  char text[200];
  kvarena_describe(&status, text, sizeof text);
  CHECK(status.code == KVARENA_INVALID_ARGUMENT && monitor == NULL);
  if (strstr(text, sentence) == NULL) fail(__FILE__, line, text);
}

#define REFUSES(member, given, range)                                                   \
  do {                                                                                  \
    kvarena_monitor_options options = {.struct_size = sizeof options, .no_thread = 1};  \
    options.serve_http = 1;                                                             \
    options.member = given;                                                             \
    refuse(&options, "invalid " #member ": got " #given ", expected " range, __LINE__); \
  } while (0)

#define YEAR "31622400000000000"
#define MINUTE "60000000000"
#define MOST "9223372036854775807"

void test_monitor_refusals(void) {
  REFUSES(period_ns, -1, "1 to " YEAR);
  REFUSES(period_ns, -5, "1 to " YEAR);
  REFUSES(pressure_period_ns, -2, "-1 to " MOST);
  REFUSES(check_limit_ns, -1, "1 to " MINUTE);
  REFUSES(ticket_limit_ns, -1, "1 to " YEAR);
  REFUSES(holder_grace_ns, -1, "0 to " YEAR);
  REFUSES(step_limit_ns, -1, "1 to " YEAR);
  REFUSES(drift_warning_bytes, -2, "-1 to " MOST);
  REFUSES(drift_limit_bytes, -2, "-1 to " MOST);
  REFUSES(http_port, -1, "0 to 65535");
  REFUSES(http_port, 70000, "0 to 65535");
  REFUSES(http_max_connections, -1, "1 to 1024");
  REFUSES(http_max_connections, 1025, "1 to 1024");
  REFUSES(http_request_limit_ms, -1, "10 to 600000");
  REFUSES(http_max_request_bytes, 1, "256 to 1048576");
  kvarena_monitor_options options = quiet();  // -1 where it means "off"
  options.pressure_period_ns = options.drift_warning_bytes = options.drift_limit_bytes = -1;
  kvarena_monitor* monitor = NULL;
  EXPECT_OK(kvarena_monitor_start(&options, &monitor));
  EXPECT_OK(kvarena_monitor_release(monitor));
}

/// The ends of caches, devices and monitors in any order.
void test_watches(void) {
  kvarena_monitor *first = NULL, *second = NULL;
  EXPECT_OK(kvarena_monitor_start(NULL, &first));
  kvarena_monitor_options options = quiet();
  EXPECT_OK(kvarena_monitor_start(&options, &second));
  site s = open_site(NULL, NULL);
  EXPECT_OK(kvarena_monitor_watch(first, s.cache, "one"));
  EXPECT_OK(kvarena_monitor_watch(first, s.cache, "two"));
  EXPECT_OK(kvarena_monitor_watch(second, s.cache, "pool"));
  EXPECT_OK(kvarena_device_release(s.device));
  EXPECT_OK(kvarena_cache_release(s.cache));
  EXPECT_CODE(kvarena_monitor_unwatch(first, "one"), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_monitor_unwatch(second, "pool"), KVARENA_NOT_FOUND);
  bool healthy = false;
  EXPECT_OK(kvarena_monitor_check(second, &healthy));
  CHECK(healthy);
  EXPECT_OK(kvarena_monitor_release(first));
  s = open_site(NULL, NULL);
  EXPECT_OK(kvarena_monitor_watch(second, s.cache, "pool"));
  EXPECT_OK(kvarena_monitor_release(second));
  close_site(&s);
}
