// A release beside calls that any thread may make: it lets no more in, and waits for those inside.

#include "capi_test.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_int is_inside, may_leave, is_released;

/// Looks at a cache until it is gone. Looks of several threads always overlap.
static void* look_until_stale(void* cache) {
  for (;;) {
    kvarena_stats stats = SIZED(kvarena_stats);
    size_t length = 0;
    const kvarena_status looked = kvarena_cache_snapshot(cache, &stats);
    const kvarena_status read = kvarena_cache_details_json(cache, NULL, 0, &length);
    if (read.code == KVARENA_STALE_HANDLE) return NULL;
    if (looked.code != KVARENA_STALE_HANDLE) EXPECT_OK(looked);
    EXPECT_OK(read);
  }
}

/// A monitor whose callback holds the check that it is in.
static kvarena_monitor* held;
static void hold_check(void* user, const char* name, int32_t from, int32_t to, const char* text) {
  (void)user, (void)name, (void)from, (void)to, (void)text;
  EXPECT_STATUS(kvarena_monitor_release(held), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_THREAD);
  atomic_store(&is_inside, 1);
  while (!atomic_load(&may_leave)) {
  }
}
static void* check_and_wait(void* monitor) {
  EXPECT_OK(kvarena_monitor_check(monitor, NULL));
  return NULL;
}
static void* release_monitor(void* monitor) {
  EXPECT_OK(kvarena_monitor_release(monitor));
  atomic_store(&is_released, 1);
  return NULL;
}

void test_release_wins(void) {
  pthread_t threads[4];
  for (int round = 0; round < 10; ++round) {
    site s = open_site(NULL, NULL);
    for (int i = 0; i < 4; ++i) {
      CHECK(pthread_create(&threads[i], NULL, look_until_stale, s.cache) == 0);
    }
    close_site(&s);
    for (int i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  }
  // One call is held inside: the release waits for it, and lets no other in.
  atomic_store(&is_inside, 0);
  atomic_store(&may_leave, 0);
  kvarena_monitor_options options = {.struct_size = sizeof options,
                                     .no_thread = 1,
                                     .ignore_vram = 1,
                                     .blocks_elevated = 0.9,
                                     .on_pressure = hold_check};
  EXPECT_OK(kvarena_monitor_start(&options, &held));
  site s = open_site(NULL, NULL);
  EXPECT_OK(kvarena_monitor_watch(held, s.cache, "pool"));
  kvarena_sequence sequence = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, NULL, &sequence));
  append_tokens(s.cache, sequence, kBlockSize * kBlocks / 2);
  CHECK(pthread_create(&threads[0], NULL, check_and_wait, held) == 0);
  while (!atomic_load(&is_inside)) {
  }
  CHECK(pthread_create(&threads[1], NULL, release_monitor, held) == 0);
  bool healthy = false;
  while (!atomic_load(&is_released) &&
         kvarena_monitor_is_healthy(held, &healthy).code != KVARENA_STALE_HANDLE) {
  }
  CHECK(!atomic_load(&is_released));
  EXPECT_CODE(kvarena_monitor_release(held), KVARENA_STALE_HANDLE);
  atomic_store(&may_leave, 1);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(atomic_load(&is_released));
  close_site(&s);
}
