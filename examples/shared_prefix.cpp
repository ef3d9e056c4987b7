// Two requests that begin with the same system prompt: the second one's sequence begins with the
// blocks that the first one has computed. A request of another tenant finds nothing.

#include <kvarena/blocktable/prefix.hpp>
#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

using namespace kvarena;

namespace {

constexpr std::int64_t kSystemTokens = 40;

/// Computes a prompt: what the cache has already, and the rest in one step.
Status serve(KvCache& cache, std::uint64_t tenant, const std::vector<std::int32_t>& prompt_tokens) {
  const std::span prompt(prompt_tokens);
  // 1. A sequence begins with the longest cached prefix of its prompt.
  const auto created = cache.create_sequence({.tokens = prompt, .salt = tenant});
  if (!created) return created.status();
  const SequenceId id = *created;
  const PrefixMatch found = *cache.tables().prefix_of(id);

  // 2. Only the rest is computed. The step says which tokens it computes.
  const std::span rest = prompt.subspan(std::size_t(found.tokens));
  const AppendDemand demand{id, std::int32_t(rest.size()), {}, rest};
  if (Status status = cache.begin_step(); !status) return status;
  if (const auto batch = cache.append({&demand, 1}); !batch) return batch.status();
  // For each layer: write_kv and attend, as ever. Here the engine's own kernels write all layers.

  // 3. The end of the step publishes the blocks that its tokens fill: the next sequence finds them.
  if (Status status = cache.end_step(); !status) return status;
  std::printf("tenant %llu: %lld of %zu tokens were there (%s), %zu computed\n",
              static_cast<unsigned long long>(tenant), static_cast<long long>(found.tokens),
              prompt.size(), name_of(found.stop).data(), rest.size());

  // The system prompt is worth keeping.
  const auto kept = cache.set_retention(id, 0, kSystemTokens, {.priority = 90});
  return kept ? Status() : kept.status();
}

/// The system prompt, and a question.
std::vector<std::int32_t> prompt_with(std::int32_t question) {
  std::vector<std::int32_t> tokens(kSystemTokens + 10);
  std::iota(tokens.begin(), tokens.begin() + kSystemTokens, 0);
  std::iota(tokens.begin() + kSystemTokens, tokens.end(), question);
  return tokens;
}

}  // namespace

int main() {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCacheOptions options;
  options.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .dtype = DType::f32};
  options.size.num_blocks = 32;
  options.num_q_heads = 1;
  options.prefix_cache = {.is_on = true};
  options.eviction = EvictionPolicy::priority;
  auto cache = KvCache::create(*device, options);
  if (!cache) {
    std::printf("%s\n", device->describe(cache.status()).c_str());
    return 1;
  }
  for (const std::uint64_t tenant : {1U, 1U, 2U}) {
    const Status status = serve(*cache, tenant, prompt_with(1000 * std::int32_t(tenant)));
    if (status) continue;
    std::printf("%s\n", cache->describe(status).c_str());
    return 1;
  }
  return 0;
}
