// The keys of a sparse-attention index: written by the cache or by the engine, read where they lie.

#include "capi_test.h"

#include <string.h>

enum { kTokens = 20, kIndexDim = 32 };

static const kvarena_group_layer kLayers[] = {{0, 0}, {1, 1}, {2, 1}};

static kvarena_cache* open_cache(kvarena_device* device, int32_t index_dim) {
  const kvarena_layer_group group = {.struct_size = sizeof group,
                                     .layers = kLayers,
                                     .num_layers = 3,
                                     .num_kv_heads = kHeads,
                                     .head_dim_k = kDim,
                                     .dtype = KVARENA_BF16,
                                     .index_dim = index_dim};
  const kvarena_cache_options options = {.struct_size = sizeof options,
                                         .num_blocks = 8,
                                         .num_q_heads = kHeads,
                                         .max_sequences = 2,
                                         .num_threads = 1,
                                         .groups = &group,
                                         .num_groups = 1};
  kvarena_cache* cache = NULL;
  if (index_dim == 6) {
    EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
    return NULL;
  }
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  return cache;
}

/// The size of token i's keys.
static float size_of(int64_t i) { return (float)(1 + i % 16); }

/// Token i has keys of size_of(i) and their opposite. The scale is the smallest power of two with
/// 448 of it at least as large.
static void check_keys(const kvarena_plane* plane, const int64_t* slots) {
  CHECK(plane->dtype == KVARENA_FP8_E4M3 && plane->head_dim == kIndexDim && plane->num_heads == 1);
  CHECK(plane->tile_order == KVARENA_TILE_ROWS);
  CHECK(plane->scales_offset_bytes == plane->block_size * kIndexDim);
  for (int64_t i = 0; i < kTokens; ++i) {
    const int64_t block = slots[i] / plane->block_size, token = slots[i] % plane->block_size;
    const char* base = (const char*)plane->base + block * plane->block_stride_bytes;
    float scale = 0;
    memcpy(&scale, base + plane->scales_offset_bytes + token * 4, 4);
    float power = 1;
    while (power * 448 >= 2 * size_of(i)) power /= 2;
    CHECK(scale == power);
    const unsigned char byte = (unsigned char)base[token * plane->token_stride_bytes];
    const unsigned char other = (unsigned char)base[token * plane->token_stride_bytes + 1];
    const float magnitude = (float)(8 + (byte & 7)) * (float)(1 << (byte >> 3)) / 1024;
    CHECK(magnitude * scale == size_of(i));
    CHECK(other == (byte | 0x80));
  }
}

void test_index(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  open_cache(device, 6);
  kvarena_cache* cache = open_cache(device, kIndexDim);
  const kvarena_sequence_options defaults = SIZED(kvarena_sequence_options);
  kvarena_demand demand = {.num_tokens = kTokens};
  EXPECT_OK(kvarena_sequence_create(cache, &defaults, &demand.sequence));
  kvarena_batch batch = SIZED(kvarena_batch);
  EXPECT_OK(kvarena_step_begin(cache, NULL));
  EXPECT_OK(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
  static float rows[kTokens][kIndexDim + 4];
  for (int i = 0; i < kTokens; ++i) {
    for (int d = 0; d < kIndexDim; ++d) rows[i][d] = d % 2 == 0 ? size_of(i) : -size_of(i);
  }
  kvarena_write_index_args write = {.struct_size = sizeof write,
                                    .key = rows,
                                    .key_token_stride_bytes = sizeof rows[0],
                                    .layer = 1,
                                    .dtype = KVARENA_F32};
  EXPECT_OK(kvarena_step_write_index(cache, &write));
  EXPECT_OK(kvarena_cache_synchronize(cache));
  kvarena_plane plane = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_cache_plane(cache, 1, KVARENA_INDEX, &plane));
  check_keys(&plane, batch.slots);
  EXPECT_STATUS(kvarena_cache_plane(cache, 2, KVARENA_INDEX, &plane), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_LAYER);
  EXPECT_CODE(kvarena_cache_plane(cache, 1, 3, &plane), KVARENA_INVALID_ARGUMENT);
  write.layer = 2;
  EXPECT_STATUS(kvarena_step_write_index(cache, &write), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_LAYER);
  write.layer = 1;
  write.dtype = KVARENA_LATENT_FP8;
  EXPECT_CODE(kvarena_step_write_index(cache, &write), KVARENA_UNSUPPORTED);
  write.dtype = KVARENA_LATENT_FP8 + 1;
  EXPECT_CODE(kvarena_step_write_index(cache, &write), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_step_write_index(cache, NULL), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_step_abort(cache));
  EXPECT_OK(kvarena_cache_release(cache));
  EXPECT_OK(kvarena_device_release(device));
}
