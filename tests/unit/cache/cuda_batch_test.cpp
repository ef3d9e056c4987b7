// What a sequence's result owes to the rest of its step: nothing but its last bits, and not even
// those when the cache is made batch-invariant; rows of every kind in any order.

#include "support/device_buffer.hpp"
#include "support/gpu.hpp"
#include "support/status_matchers.hpp"

#include "base/half.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kHeads = 2;
constexpr std::int32_t kGroup = 4;
constexpr std::int32_t kDim = 128;
constexpr std::int64_t kMostTokens = 30000;

/// A sequence: the seed of its content, the tokens that it has before the step, and those of the
/// step.
struct Member {
  std::uint32_t seed = 0;
  std::int32_t cached = 0;
  std::int32_t tokens = 1;
};

/// The result of a sequence: the bytes of out, then lse.
using RowBytes = std::vector<std::byte>;

class CudaBatch : public ::testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device_ = test::make_cuda();
    ASSERT_NE(device_, nullptr);
  }

  static KvCacheOptions options(std::int64_t batch_invariant_tokens) {
    return {.layout = {.num_layers = 1,
                       .num_kv_heads = kHeads,
                       .head_dim_k = kDim,
                       .dtype = DType::bf16,
                       .block_size_tokens = 16},
            .size = {.num_blocks = 16 * kMostTokens / 16},
            .num_q_heads = kHeads * kGroup,
            .max_sequences = 256,
            .max_step_tokens = 16 * kMostTokens,
            .batch_invariant_tokens = batch_invariant_tokens};
  }
  /// `count` tokens of `width` elements from position `first` on, of a sequence.
  static std::vector<std::byte> content(std::uint32_t seed, std::int32_t first, std::int32_t count,
                                        std::int32_t width) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * static_cast<std::size_t>(width) *
                                 2);
    for (std::int32_t i = 0; i < count; ++i) {
      std::minstd_rand random(seed * 100003U + static_cast<std::uint32_t>(first + i) + 1);
      for (std::int32_t j = 0; j < width; ++j) {
        const float value = static_cast<float>(random() % 2001) / 500.0F - 2.0F;
        store_f32(bytes.data(), DType::bf16, std::int64_t{i} * width + j, value);
      }
    }
    return bytes;
  }
  static void append_to(std::vector<std::byte>& all, const std::vector<std::byte>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }

  /// Runs one step of all members, in their order, and returns the result of each, by seed.
  std::map<std::uint32_t, RowBytes> run(const KvCacheOptions& options,
                                        const std::vector<Member>& members) {
    std::map<std::uint32_t, RowBytes> results;
    auto cache = KvCache::create(*device_, options);
    EXPECT_TRUE(cache) << describe_cuda(cache.status());
    if (!cache) return results;
    std::vector<AppendDemand> old;
    std::vector<AppendDemand> fresh;
    std::vector<std::byte> old_key;
    std::vector<std::byte> key;
    std::vector<std::byte> q;
    for (const Member& m : members) {
      const SequenceId id = cache->create_sequence().value();
      if (m.cached > 0) old.push_back({id, m.cached});
      fresh.push_back({id, m.tokens});
      append_to(old_key, content(m.seed, 0, m.cached, kHeads * kDim));
      append_to(key, content(m.seed, m.cached, m.tokens, kHeads * kDim));
      append_to(q, content(m.seed + 7, m.cached, m.tokens, kHeads * kGroup * kDim));
    }
    if (!old.empty()) step(*cache, old, old_key, nullptr, nullptr, nullptr);
    const test::DeviceBuffer queries = buffer_of(q);
    const std::size_t rows = q.size() / kDim / 2;
    const auto out = test::DeviceBuffer::create(*device_, q.size()).value();
    const auto lse = test::DeviceBuffer::create(*device_, rows * 4).value();
    step(*cache, fresh, key, queries.data(), out.data(), static_cast<float*>(lse.data()));
    std::vector<std::byte> host_out(q.size());
    std::vector<std::byte> host_lse(rows * 4);
    EXPECT_EQ(cudaMemcpy(host_out.data(), out.data(), q.size(), cudaMemcpyDeviceToHost), 0);
    EXPECT_EQ(cudaMemcpy(host_lse.data(), lse.data(), rows * 4, cudaMemcpyDeviceToHost), 0);
    std::int64_t at = 0;
    for (const Member& m : members) {
      const std::int64_t count = std::int64_t{m.tokens} * kHeads * kGroup;
      RowBytes& result = results[m.seed];
      result.assign(host_out.begin() + at * kDim * 2, host_out.begin() + (at + count) * kDim * 2);
      result.insert(result.end(), host_lse.begin() + at * 4, host_lse.begin() + (at + count) * 4);
      at += count;
    }
    return results;
  }

  std::unique_ptr<CudaDevice> device_;

 private:
  test::DeviceBuffer buffer_of(const std::vector<std::byte>& bytes) {
    auto buffer = test::DeviceBuffer::create(*device_, bytes.size()).value();
    EXPECT_EQ(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), 0);
    EXPECT_EQ(cudaDeviceSynchronize(), 0);
    return buffer;
  }
  /// One step; K serves as V too.
  void step(KvCache& cache, const std::vector<AppendDemand>& demands,
            const std::vector<std::byte>& key, const void* q, void* out, float* lse) {
    const test::DeviceBuffer keys = buffer_of(key);
    ASSERT_OK(cache.begin_step());
    ASSERT_OK(cache.append(demands).status());
    ASSERT_OK(cache.write_kv({.key = keys.data(), .value = keys.data(), .dtype = DType::bf16}));
    if (q != nullptr) {
      ASSERT_OK(cache.attend(
          {.q = q, .q_dtype = DType::bf16, .out = out, .out_dtype = DType::bf16, .lse = lse}));
    }
    ASSERT_OK(cache.end_step());
    ASSERT_OK(cache.synchronize());
  }
};

/// Rows of every class and many lengths: decode, many query columns, prompts.
std::vector<Member> members(int count, std::uint32_t first_seed) {
  std::mt19937 random(first_seed);
  std::vector<Member> list;
  for (int i = 0; i < count; ++i) {
    constexpr std::int32_t kTokens[] = {1, 2, 1, 3, 16, 17, 40, 200};
    list.push_back({.seed = first_seed + static_cast<std::uint32_t>(i) * 11,
                    .cached = static_cast<std::int32_t>(random() % (i % 5 == 0 ? 4000 : 300)),
                    .tokens = kTokens[random() % std::size(kTokens)]});
  }
  return list;
}

TEST_F(CudaBatch, AnInvariantRowHasTheSameBitsWhateverRunsBesideIt) {
  const KvCacheOptions invariant = options(16 * kMostTokens);
  const std::vector<Member> watched = {{.seed = 1, .cached = 9000, .tokens = 1},
                                       {.seed = 2, .cached = 9000, .tokens = 12},
                                       {.seed = 3, .cached = 700, .tokens = 1},
                                       {.seed = 4, .cached = 500, .tokens = 300},
                                       {.seed = 5, .cached = 0, .tokens = 2}};
  std::map<std::uint32_t, RowBytes> alone;
  for (const Member& m : watched) alone.merge(run(invariant, {m}));
  for (const int others : {3, 60, 200}) {
    std::vector<Member> batch = members(others, 100);
    batch.insert(batch.end(), watched.begin(), watched.end());
    std::shuffle(batch.begin(), batch.end(), std::mt19937(static_cast<unsigned>(others)));
    const auto results = run(invariant, batch);
    for (const Member& m : watched) {
      EXPECT_EQ(results.at(m.seed), alone.at(m.seed)) << "seed " << m.seed << ", " << others;
    }
  }
}

/// Expects the results of a row in two steps to be equal but for rounding.
void expect_alike(const Member& m, const RowBytes& a, const RowBytes& b) {
  const std::int64_t elements = std::int64_t{m.tokens} * kHeads * kGroup * kDim;
  double difference = 0.0;
  double norm = 0.0;
  for (std::int64_t i = 0; i < elements; ++i) {
    const double x = load_f32(a.data(), DType::bf16, i);
    const double y = load_f32(b.data(), DType::bf16, i);
    ASSERT_TRUE(std::isfinite(x) && std::isfinite(y)) << "seed " << m.seed;
    difference += (x - y) * (x - y);
    norm += x * x;
  }
  EXPECT_LT(difference, 2e-5 * norm) << "seed " << m.seed << " of " << m.tokens << " tokens";
}

TEST_F(CudaBatch, RowsOfEveryKindMayComeInAnyOrder) {
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    KvCacheOptions any = options(0);
    any.layout.dtype = dtype;
    std::vector<Member> batch = members(90, 50);
    const auto sorted = run(any, batch);
    std::shuffle(batch.begin(), batch.end(), std::mt19937(3));
    const auto shuffled = run(any, batch);
    for (const Member& m : batch) expect_alike(m, sorted.at(m.seed), shuffled.at(m.seed));
  }
}

// Over fp8 the kernel of rows with 9 to 16 query columns depends on the number of a step's rows.
TEST_F(CudaBatch, StepsOfFewRowsRunInACacheForMany) {
  KvCacheOptions fp8 = options(0);
  fp8.layout.dtype = DType::fp8_e4m3;
  std::vector<Member> many = members(80, 900);
  for (std::uint32_t i = 0; i < 12; ++i) {
    many.push_back({.seed = 7 + i, .cached = 900, .tokens = 1 + static_cast<std::int32_t>(i % 6)});
  }
  const auto beside_many = run(fp8, many);
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{12}}) {
    const std::vector<Member> few(many.end() - static_cast<std::ptrdiff_t>(count), many.end());
    const auto results = run(fp8, few);
    for (const Member& m : few) expect_alike(m, results.at(m.seed), beside_many.at(m.seed));
  }
}

}  // namespace
}  // namespace kvarena
