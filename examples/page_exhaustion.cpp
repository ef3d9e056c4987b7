// A pool with groups runs out of pages: the refused call says which group lacks them, and how the
// pages of each group are used.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cstdio>
#include <vector>

int main() {
  auto device = kvarena::HostDevice::create().value();
  // One layer sees all tokens, four see the last 32.
  const kvarena::GroupLayer full[] = {{0}};
  const kvarena::GroupLayer windowed[] = {{1}, {2}, {3}, {4}};
  const kvarena::LayerGroup groups[] = {{.layers = full, .num_kv_heads = 2, .head_dim_k = 64},
                                        {.kind = kvarena::PagedKind::window,
                                         .layers = windowed,
                                         .num_kv_heads = 2,
                                         .head_dim_k = 64,
                                         .limit_tokens = 32}};
  auto cache = kvarena::KvCache::create(*device, {.size = {.num_blocks = 12},
                                                  .num_q_heads = 4,
                                                  .max_sequences = 4,
                                                  .max_sequence_tokens = 4096,
                                                  .groups = groups})
                   .value();
  const kvarena::SequenceId first = cache.create_sequence().value();
  const kvarena::SequenceId second = cache.create_sequence().value();

  std::puts("1. A sequence of 100 tokens and one of 20.");
  const std::vector<kvarena::AppendDemand> fill{{first, 100}, {second, 20}};
  if (!cache.begin_step() || !cache.append(fill) || !cache.end_step()) return 1;

  std::puts("2. A third one does not fit:");
  const kvarena::SequenceId third = cache.create_sequence().value();
  const std::vector<kvarena::AppendDemand> prompt{{third, 80, kvarena::Urgency::admission}};
  if (!cache.begin_step()) return 1;
  const kvarena::Status refused = cache.append(prompt).status();
  if (refused.resource != kvarena::Resource::page) return 1;
  std::printf("%s", cache.describe(refused).c_str());
  std::printf("group %d lacks them\n", static_cast<int>(refused.subject));

  std::puts("3. The first sequence is released; the same call succeeds.");
  if (!cache.destroy(first) || !cache.append(prompt) || !cache.end_step()) return 1;
  return 0;
}
