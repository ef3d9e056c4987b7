// A first engine, step by step. docs/tutorial.md explains each part of this program.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <vector>

using namespace kvarena;

namespace {

constexpr int kLayers = 2, kKvHeads = 2, kQueryHeads = 4, kHeadDim = 64;

void show_pool(const KvCache& cache) {
  const BlockStats stats = cache.manager().stats();
  std::printf("  pool: %lld of %lld blocks are free\n", static_cast<long long>(stats.free),
              static_cast<long long>(stats.num_blocks));
}

/// Stands for a language model. All K are equal and V is the token's number, so attention gives
/// the mean of all tokens so far.
struct ToyModel {
  std::vector<float> k, v, q, out;  // must live until the step's work has completed

  /// Computes all layers for the new tokens of a step.
  Status run_layers(KvCache& cache, const std::vector<int>& tokens) {
    k.assign(tokens.size() * kKvHeads * kHeadDim, 1.0F);
    q.assign(tokens.size() * kQueryHeads * kHeadDim, 1.0F);
    out.assign(q.size(), 0.0F);
    v.clear();
    for (const int token : tokens) v.insert(v.end(), kKvHeads * kHeadDim, float(token));
    for (int layer = 0; layer < kLayers; ++layer) {
      Status status = cache.write_kv({layer, k.data(), v.data(), DType::f32});
      if (!status) return status;
      status = cache.attend({layer, q.data(), DType::f32, out.data(), DType::f32});
      if (!status) return status;
    }
    return {};
  }

  /// The next token after new token `index` of the step: the mean, rounded.
  int next_token(std::size_t index) const {
    return static_cast<int>(std::lround(out[index * kQueryHeads * kHeadDim]));
  }
};

/// The second half of a step: the layers, the end, and waiting for the results.
Status finish_step(KvCache& cache, ToyModel& model, const std::vector<int>& tokens) {
  if (Status status = model.run_layers(cache, tokens); !status) return status;
  if (Status status = cache.end_step(); !status) return status;
  return cache.synchronize();
}

Status prefill(KvCache& cache, ToyModel& model, SequenceId sequence) {
  std::puts("A prompt of 21 tokens:");
  std::vector<int> prompt(21);
  std::iota(prompt.begin(), prompt.end(), 1);  // the tokens 1 to 21

  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> demands{{sequence, 21}};
  const Result<StepBatch> batch = cache.append(demands);
  if (!batch) return batch.status();
  const auto new_blocks = static_cast<long long>(batch->new_blocks);
  if (Status status = finish_step(cache, model, prompt); !status) return status;

  std::printf("  %lld new blocks; the next token is %d\n", new_blocks, model.next_token(20));
  show_pool(cache);
  return {};
}

Status decode(KvCache& cache, ToyModel& model, SequenceId sequence) {
  std::puts("Twelve decode steps:");
  int token = model.next_token(20);
  for (int length = 22; length <= 33; ++length) {
    if (Status status = cache.begin_step(); !status) return status;
    const std::vector<AppendDemand> demands{{sequence, 1}};
    const Result<StepBatch> batch = cache.append(demands);
    if (!batch) return batch.status();
    if (batch->new_blocks > 0) std::printf("  token %d takes a new block\n", length);
    if (Status status = finish_step(cache, model, {token}); !status) return status;
    token = model.next_token(0);
  }
  show_pool(cache);
  return {};
}

Status run_out_of_blocks(KvCache& cache, ToyModel& model, SequenceId first) {
  std::puts("A second sequence takes the rest of the pool:");
  const Result<SequenceId> second = cache.create_sequence({.owner = 7});
  if (!second) return second.status();
  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> prompt{{*second, 80}};
  if (auto batch = cache.append(prompt); !batch) return batch.status();
  if (Status status = finish_step(cache, model, std::vector<int>(80, 1)); !status) return status;
  show_pool(cache);

  std::puts("Both want one more token:");
  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> both{{first, 1}, {*second, 1}};
  Result<StepBatch> batch = cache.append(both);
  if (batch.status().code != StatusCode::exhausted) return batch.status();
  std::printf("%s", cache.describe(batch.status()).c_str());

  std::puts("The second sequence is preempted. The first goes on in the same step:");
  if (Status status = cache.destroy(*second); !status) return status;
  const std::vector<AppendDemand> one{{first, 1}};
  batch = cache.append(one);
  if (!batch) return batch.status();
  if (Status status = finish_step(cache, model, {11}); !status) return status;
  show_pool(cache);
  return {};
}

Status fork_a_sequence(KvCache& cache, ToyModel& model, SequenceId parent) {
  std::puts("The first sequence, 34 tokens long, is forked:");
  const Result<SequenceId> child = cache.fork(parent, 34);
  if (!child) return child.status();
  show_pool(cache);

  std::puts("Both append a token of their own:");
  if (Status status = cache.begin_step(); !status) return status;
  const std::vector<AppendDemand> demands{{parent, 1}, {*child, 1}};
  const Result<StepBatch> batch = cache.append(demands);
  if (!batch) return batch.status();
  const auto copies = static_cast<long long>(batch->num_copies);
  if (Status status = finish_step(cache, model, {11, 81}); !status) return status;
  std::printf("  %lld block copied; the next tokens are %d and %d\n", copies, model.next_token(0),
              model.next_token(1));
  show_pool(cache);
  return cache.destroy(*child);
}

Status end(KvCache& cache, SequenceId sequence) {
  std::puts("The last sequence ends:");
  if (Status status = cache.destroy(sequence); !status) return status;
  show_pool(cache);
  return cache.check_invariants();
}

Status run(KvCache& cache) {
  ToyModel model;
  const Result<SequenceId> first = cache.create_sequence();
  if (!first) return first.status();
  if (Status status = prefill(cache, model, *first); !status) return status;
  if (Status status = decode(cache, model, *first); !status) return status;
  if (Status status = run_out_of_blocks(cache, model, *first); !status) return status;
  if (Status status = fork_a_sequence(cache, model, *first); !status) return status;
  return end(cache, *first);
}

}  // namespace

int main() {
  const auto device = HostDevice::create().value();
  KvCacheOptions options;
  options.layout = {.num_layers = kLayers, .num_kv_heads = kKvHeads, .head_dim_k = kHeadDim};
  options.size.num_blocks = 8;  // of 16 tokens each
  options.num_q_heads = kQueryHeads;
  auto cache = KvCache::create(*device, options);
  if (!cache) {
    std::printf("%s\n", device->describe(cache.status()).c_str());
    return 1;
  }
  const Status status = run(*cache);
  if (!status) std::printf("%s\n", cache->describe(status).c_str());
  return status ? 0 : 1;
}
