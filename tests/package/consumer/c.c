// A C program of somebody else's: opens a device, makes a cache and looks at it.

#include <kvarena/kvarena.h>

#include <stdio.h>

int main(void) {
  kvarena_device* device = NULL;
  kvarena_cache* cache = NULL;
  kvarena_sequence sequence = 0;
  const kvarena_cache_options options = {.struct_size = sizeof options,
                                         .num_layers = 1,
                                         .num_kv_heads = 1,
                                         .head_dim_k = 16,
                                         .num_blocks = 4,
                                         .num_q_heads = 1};
  kvarena_stats stats = {.struct_size = sizeof stats};
  if (kvarena_abi() != KVARENA_ABI) return 1;
  if (kvarena_device_open_host(NULL, &device).code != KVARENA_OK) return 2;
  if (kvarena_cache_create(device, &options, &cache).code != KVARENA_OK) return 3;
  if (kvarena_device_release(device).code != KVARENA_OK) return 4;
  if (kvarena_sequence_create(cache, NULL, &sequence).code != KVARENA_OK) return 5;
  if (kvarena_cache_stats(cache, &stats).code != KVARENA_OK || stats.sequences != 1) return 6;
  if (kvarena_cache_release(cache).code != KVARENA_OK) return 7;
  printf("kvarena %s: %lld blocks\n", kvarena_version(), (long long)stats.num_blocks);
  return 0;
}
