// An engine that keeps its block tables itself: the blocks of a prompt that an earlier request has
// computed are found by their tokens. There are only ids here; K and V are the engine's.

#include <kvarena/allocator/block_manager.hpp>
#include <kvarena/blocktable/prefix_pool.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

using namespace kvarena;

namespace {

constexpr std::size_t kBlock = 16;  // tokens

/// A request of the engine: its block table, and where its prefix goes on.
struct Request {
  HolderId holder;
  std::vector<BlockId> blocks;
  std::vector<Generation> generations;
  PrefixPosition position;
};

/// Computes a prompt: what is cached already, and the rest.
Result<Request> serve(BlockManager& pool, PrefixPool& prefixes, std::uint64_t tenant,
                      std::span<const std::int32_t> prompt) {
  Request r;
  const auto holder = pool.register_holder({.purpose = "request"});
  if (!holder) return holder.status();
  r.holder = *holder;
  r.blocks.resize((prompt.size() + kBlock - 1) / kBlock);
  r.generations.resize(r.blocks.size());

  // 1. The table begins with the cached blocks of the prompt. The holder has a reference on each.
  const auto begun = prefixes.adopt(r.holder, {prompt, tenant}, r.blocks, r.generations);
  if (!begun) return begun.status();
  const auto cached = std::size_t(begun->found.blocks);
  r.position = begun->end;

  // 2. The rest gets new blocks. Evicted blocks are found no more.
  const auto taken = pool.allocate(r.holder, std::span(r.blocks).subspan(cached),
                                   std::span(r.generations).subspan(cached));
  if (!taken) return taken.status();
  prefixes.notice(pool.evicted());

  // 3. The engine queues the work that fills them, and registers those that are full.
  const std::size_t full = prompt.size() / kBlock - cached;
  const auto its = std::span(r.blocks).subspan(cached, full);
  const auto numbers = std::span(r.generations).subspan(cached, full);
  const auto registered = prefixes.register_blocks(
      r.position, prompt.subspan(cached * kBlock, full * kBlock), its, numbers);
  if (!registered) return registered.status();

  // 4. The work has been queued: from now on other requests find them.
  if (const auto published = prefixes.publish(its, numbers); !published) return published.status();

  std::printf("tenant %llu: %lld of %zu tokens were there (%s)\n",
              static_cast<unsigned long long>(tenant), static_cast<long long>(begun->found.tokens),
              prompt.size(), name_of(begun->found.stop).data());
  return r;
}

/// Ends a request. The last block goes first, so that beginnings stay the longest.
Status end(BlockManager& pool, PrefixPool& prefixes, Request& r) {
  std::ranges::reverse(r.blocks);
  std::ranges::reverse(r.generations);
  if (Status status = pool.release(r.holder, r.blocks, r.generations); !status) return status;
  prefixes.notice(r.blocks);  // those that were not published are free
  return pool.unregister_holder(r.holder);
}

}  // namespace

int main() {
  BlockManager pool = BlockManager::create({.num_blocks = 8}).value();
  PrefixPool prefixes = PrefixPool::create(pool, {.block_size_tokens = kBlock}).value();
  std::vector<std::int32_t> prompt(50);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (const std::uint64_t tenant : {1U, 1U, 2U}) {
    Result<Request> request = serve(pool, prefixes, tenant, prompt);
    if (!request || !end(pool, prefixes, *request)) return 1;
  }
  std::printf("%lld blocks are cached\n", static_cast<long long>(pool.stats().evictable));
  return 0;
}
