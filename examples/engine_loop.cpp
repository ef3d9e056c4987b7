// The loop of a serving engine on KvCache: first-come admission under a watermark, prefill in
// chunks beside decode, growth block by block, preemption (newest first, recomputed later) when
// blocks run out, completion. The "model" is a toy of one layer: the next token is where its output
// is largest.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <utility>
#include <vector>

namespace {

constexpr int kHeads = 2, kDim = 16, kBlocks = 24, kBlockSize = 16, kTokenBudget = 64;

struct Request {
  std::vector<int> tokens;  // the prompt, then what was generated
  std::size_t goal = 0;     // tokens when it is complete
  std::size_t cached = 0;   // tokens whose K and V are in the cache
  kvarena::SequenceId sequence{};
};

struct Engine {
  kvarena::KvCache& cache;
  std::deque<Request> waiting{};
  std::vector<Request> running{};  // oldest first
  long long steps = 0, completed = 0, computed = 0, preemptions = 0, recomputed = 0;

  /// Takes waiting requests while their tokens fit above the watermark.
  kvarena::Status admit() {
    for (std::size_t blocks = 0; !waiting.empty(); waiting.pop_front()) {
      blocks += waiting.front().tokens.size() / kBlockSize + 1;
      const auto wanted = static_cast<std::int64_t>(blocks);
      if (!cache.manager().can_allocate(wanted, kvarena::Urgency::admission)) break;
      const auto sequence = cache.create_sequence();
      if (!sequence) return sequence.status();
      waiting.front().sequence = *sequence;
      running.push_back(std::move(waiting.front()));
    }
    return {};
  }

  /// The newest request gives its blocks back and is computed again later.
  kvarena::Status preempt() {
    Request victim = std::move(running.back());
    running.pop_back();
    ++preemptions;
    recomputed += static_cast<long long>(std::exchange(victim.cached, 0));
    const kvarena::SequenceId sequence = victim.sequence;
    waiting.push_front(std::move(victim));
    return cache.destroy(sequence);
  }

  /// A token each for those that decode, chunks of the prompt for the others, within the budget.
  std::vector<kvarena::AppendDemand> demands() const {
    std::vector<kvarena::AppendDemand> list;
    std::size_t budget = kTokenBudget;
    for (const Request& r : running) {
      const std::size_t chunk = std::min(r.tokens.size() - r.cached, budget);
      budget -= chunk;
      list.push_back({r.sequence, static_cast<std::int32_t>(chunk)});
    }
    return list;
  }

  /// The model. K, V and Q are a function of the token; they stay until the work has completed.
  kvarena::Status compute(const std::vector<kvarena::AppendDemand>& rows, std::vector<float>& out) {
    std::vector<float> embedded;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (int t = 0; t < rows[i].num_tokens; ++t) {
        const int token = running[i].tokens[running[i].cached + static_cast<std::size_t>(t)];
        for (int e = 1; e <= kHeads * kDim; ++e) {
          embedded.push_back(std::sin(static_cast<float>((token + 1) * e) * 0.1F));
        }
      }
    }
    out.resize(embedded.size());
    const float* in = embedded.data();
    if (auto s = cache.write_kv({0, in, in, kvarena::DType::f32}); !s) return s;
    if (auto s = cache.attend({0, in, kvarena::DType::f32, out.data(), kvarena::DType::f32}); !s) {
      return s;
    }
    if (auto s = cache.end_step(); !s) return s;
    return cache.synchronize();
  }

  /// Takes the next token of each request whose tokens are all cached; ends those that are
  /// complete.
  kvarena::Status collect(const std::vector<kvarena::AppendDemand>& rows, const float* out) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Request& r = running[i];
      r.cached += static_cast<std::size_t>(rows[i].num_tokens);
      out += rows[i].num_tokens * kHeads * kDim;
      if (r.cached < r.tokens.size()) continue;
      const float* last = out - kHeads * kDim;
      r.tokens.push_back(static_cast<int>(std::max_element(last, out) - last));
      if (r.tokens.size() < r.goal) continue;
      if (auto s = cache.destroy(r.sequence); !s) return s;
      ++completed;
    }
    std::erase_if(running, [](const Request& r) { return r.tokens.size() == r.goal; });
    return {};
  }

  kvarena::Status serve() {
    for (std::vector<float> out; !waiting.empty() || !running.empty(); ++steps) {
      if (auto s = cache.begin_step(); !s) return s;
      if (auto s = admit(); !s) return s;
      auto rows = demands();
      auto batch = cache.append(rows);
      while (batch.status().code == kvarena::StatusCode::exhausted && running.size() > 1) {
        if (auto s = preempt(); !s) return s;
        rows = demands();
        batch = cache.append(rows);
      }
      if (!batch) return batch.status();
      computed += batch->num_tokens;
      if (auto s = compute(rows, out); !s) return s;
      if (auto s = collect(rows, out.data()); !s) return s;
    }
    return cache.check_invariants();
  }
};

}  // namespace

int main() {
  auto device = kvarena::HostDevice::create().value();
  auto cache = kvarena::KvCache::create(
      *device, {.layout = {.num_layers = 1, .num_kv_heads = kHeads, .head_dim_k = kDim},
                .size = {.num_blocks = kBlocks},
                .num_q_heads = kHeads,
                .max_step_tokens = kTokenBudget,
                .watermark_blocks = 2});
  if (!cache) return std::fprintf(stderr, "%s\n", device->describe(cache.status()).c_str()), 1;
  Engine engine{.cache = *cache};
  for (std::size_t i = 0; i < 20; ++i) {
    const std::size_t prompt = 20 + i * 37 % 90;
    engine.waiting.push_back({std::vector<int>(prompt, static_cast<int>(i)), prompt + 10 + i * 3});
  }
  if (const kvarena::Status status = engine.serve(); !status) {
    return std::fprintf(stderr, "%s\n", cache->describe(status).c_str()), 1;
  }
  const kvarena::BlockStats stats = cache->manager().stats();
  std::printf(
      "%lld requests completed in %lld steps; %lld tokens computed\n"
      "%lld preemptions had %lld tokens computed a second time\n"
      "at most %lld of %d blocks in use; %lld free at the end\n",
      engine.completed, engine.steps, engine.computed, engine.preemptions, engine.recomputed,
      static_cast<long long>(stats.peak_allocated), kBlocks, static_cast<long long>(stats.free));
  return stats.free == kBlocks ? 0 : 1;
}
