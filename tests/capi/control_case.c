// Control by the engine: deadlines, urgencies, imports, pins. And what needs a GPU.

#include "capi_test.h"

#include <stdlib.h>

void test_control(void) {}

/// A step on a GPU, where there is one.
void test_cuda(void) {
  kvarena_device* device = NULL;
  const kvarena_status opened = kvarena_device_open_cuda(NULL, &device);
  if (opened.code != KVARENA_OK) {
    const char* required = getenv("KVARENA_REQUIRE_GPU");
    CHECK(required == NULL || strcmp(required, "1") != 0);
    CHECK(device == NULL &&
          (opened.code == KVARENA_DEVICE_ERROR || opened.code == KVARENA_UNSUPPORTED));
    printf("no GPU: %s\n", kvarena_name_of_code(opened.code));
    return;
  }
  EXPECT_OK(kvarena_device_release(device));
}
