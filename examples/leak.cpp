// Who holds blocks when no request runs? docs/howto/find-a-leak.md explains this program: its
// engine forgets to destroy one of three sequences.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cstdio>
#include <string>
#include <vector>

using namespace kvarena;

namespace {

/// What an engine calls when it believes that no request runs.
void report_leaks(const KvCache& cache) {
  const BlockStats stats = cache.manager().stats();
  std::printf("%lld of %lld blocks are free\n", static_cast<long long>(stats.free),
              static_cast<long long>(stats.num_blocks));
  for (const HolderReport& holder : cache.manager().holders()) {
    std::printf("%s holds %lld blocks\n", to_string(holder).c_str(),
                static_cast<long long>(holder.references));
  }
}

/// Serves a request: its tokens are appended, then its sequence ends, if nobody forgets that.
Status serve(KvCache& cache, std::uint64_t request, std::int32_t num_tokens, bool forget) {
  const Result<SequenceId> sequence = cache.create_sequence({.owner = request});
  if (!sequence) return sequence.status();
  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> demands{{*sequence, num_tokens}};
  if (auto batch = cache.append(demands); !batch) return batch.status();
  if (Status status = cache.end_step(); !status) return status;
  return forget ? Status{} : cache.destroy(*sequence);
}

}  // namespace

int main() {
  const auto device = HostDevice::create().value();
  KvCacheOptions options;
  options.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64};
  options.size.num_blocks = 64;
  options.num_q_heads = 4;
  auto cache = KvCache::create(*device, options).value();
  if (!serve(cache, 101, 40, false) || !serve(cache, 102, 100, true) ||
      !serve(cache, 103, 25, false)) {
    return 1;
  }
  report_leaks(cache);
  return 0;
}
