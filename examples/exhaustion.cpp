// A full pool is an answer, not an accident: the call that does not fit says why, has changed
// nothing, and succeeds as soon as somebody gives blocks back.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

void show_accounts(const kvarena::KvCache& cache) {
  const kvarena::BlockStats s = cache.manager().stats();
  std::printf("   %lld blocks = %lld free + %lld referenced; %s\n",
              static_cast<long long>(s.num_blocks), static_cast<long long>(s.free),
              static_cast<long long>(s.referenced),
              cache.check_invariants().is_ok() ? "every reference accounted for" : "BROKEN");
}

}  // namespace

int main() {
  auto device = kvarena::HostDevice::create().value();
  auto cache = kvarena::KvCache::create(
                   *device, {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64},
                             .size = {.num_blocks = 8},
                             .num_q_heads = 4})
                   .value();
  const kvarena::SequenceId first = cache.create_sequence().value();
  const kvarena::SequenceId second = cache.create_sequence().value();

  std::puts("1. Two sequences fill a pool of 8 blocks of 16 tokens.");
  const std::vector<kvarena::AppendDemand> fill{{first, 5 * 16}, {second, 3 * 16}};
  if (!cache.begin_step() || !cache.append(fill) || !cache.end_step()) return 1;
  show_accounts(cache);

  std::puts("2. One more token for the first is refused, with the reason:");
  if (!cache.begin_step()) return 1;
  const std::vector<kvarena::AppendDemand> one_more{{first, 1}};
  const kvarena::Status refused = cache.append(one_more).status();
  if (refused.code != kvarena::StatusCode::exhausted) return 1;
  std::printf("%s", cache.describe(refused).c_str());

  std::puts("3. Nothing has changed.");
  if (cache.tables().info(first)->length_tokens != 5 * 16) return 1;
  show_accounts(cache);

  std::puts("4. The second sequence is released; the same call succeeds.");
  if (!cache.destroy(second) || !cache.append(one_more) || !cache.end_step()) return 1;
  show_accounts(cache);
  return 0;
}
