// Prefill attention on the GPU against double precision over the KV as stored: ragged, causal,
// chunked, with NaN in every slot that no sequence owns.

#include "kernel/cuda_pool.hpp"
#include "kernels/prefill/prefill.h"
#include "kernels/reference/attention.hpp"
#include "kernels/reference/kv_write.hpp"

#include "support/status_matchers.hpp"

#include "base/half.hpp"

#include <algorithm>
#include <cmath>

namespace kvarena::test {
namespace {

using kernels::AttentionParams;
using kernels::launch_prefill;
using kernels::PrefillParams;

struct PrefillCase {
  PoolShape pool;
  std::int32_t group = 4;
  DType q_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  std::vector<std::int32_t> seq_lens = {0, 1, 15, 16, 17, 130, 70, 33};
  std::vector<std::int32_t> q_counts = {2, 1, 15, 1, 17, 100, 65, 0};
  std::int32_t window_tokens = 0;
  float soft_cap = 0.0F;
  bool without_offsets = false;  ///< one query token a row
  std::uint32_t seed = 1;
};

std::string name_of(const PrefillCase& c) {
  return name_of(c.pool) + ", group " + std::to_string(c.group) + ", q " +
         std::string(name_of(c.q_dtype)) + ", out " + std::string(name_of(c.out_dtype)) +
         ", window " + std::to_string(c.window_tokens) + ", cap " + std::to_string(c.soft_cap) +
         ", seed " + std::to_string(c.seed);
}

/// Relative L2 distance of `out` from `exact`, and of `exact` rounded to the output's type.
struct Distances {
  double of_output = 0.0;
  double of_rounding = 0.0;
};
Distances distances(const std::vector<double>& exact, const std::vector<std::byte>& out,
                    DType dtype) {
  double norm = 0.0;
  double error = 0.0;
  double rounding = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    std::byte bytes[4];
    store_f32(bytes, dtype, 0, static_cast<float>(exact[i]));
    const double rounded = static_cast<double>(load_f32(bytes, dtype, 0)) - exact[i];
    const double ours =
        static_cast<double>(load_f32(out.data(), dtype, static_cast<std::int64_t>(i))) - exact[i];
    norm += exact[i] * exact[i];
    error += ours * ours;
    rounding += rounded * rounded;
  }
  norm = norm > 0.0 ? norm : 1.0;
  return {std::sqrt(error / norm), std::sqrt(rounding / norm)};
}

/// `count` normally distributed numbers of a type.
std::vector<std::byte> gaussian(std::int64_t count, DType dtype, std::uint32_t seed) {
  std::vector<std::byte> values(static_cast<std::size_t>(count * bytes_of(dtype)));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) store_f32(values.data(), dtype, i, normal(random));
  return values;
}

void expect_near(const std::vector<float>& ours, const std::vector<float>& lse,
                 const std::string& what) {
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) {
      EXPECT_EQ(ours[i], lse[i]) << what << ", result " << i;
    } else {
      EXPECT_NEAR(ours[i], lse[i], 1e-4) << what << ", result " << i;
    }
  }
}

class CudaPrefill : public CudaTest {
 protected:
  void expect_exact(const PrefillCase& c);
};

void CudaPrefill::expect_exact(const PrefillCase& c) {
  PoolShape shape = c.pool;
  shape.num_blocks = 3;
  for (const std::int32_t len : c.seq_lens) shape.num_blocks += len / shape.block_size + 1;
  TwinPool pool(shape);
  const auto ids = shuffled_ids(shape.num_blocks, c.seed);
  std::vector<std::vector<BlockId>> rows;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> q_offsets = {0};
  std::size_t next = 0;
  for (std::size_t r = 0; r < c.seq_lens.size(); ++r) {
    std::vector<BlockId> row(1, BlockId(ids[next++]));
    for (std::int32_t t = 0; t < c.seq_lens[r]; ++t) {
      if (t > 0 && t % shape.block_size == 0) row.emplace_back(ids[next++]);
      slots.push_back(std::int64_t{row.back().value} * shape.block_size + t % shape.block_size);
    }
    rows.push_back(row);
    q_offsets.push_back(q_offsets.back() + c.q_counts[r]);
  }
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const auto key = gaussian(tokens * shape.num_heads * shape.dim_k, DType::f32, c.seed);
  const auto value = gaussian(tokens * shape.num_heads * shape.dim_v, DType::f32, c.seed + 1);
  kernels::reference::append(
      {pool.host_view, key.data(), value.data(), slots.data(), tokens, DType::f32});
  pool.upload();

  const std::int64_t total_q = q_offsets.back();
  const std::int32_t q_heads = shape.num_heads * c.group;
  const auto q = gaussian(total_q * q_heads * shape.dim_k, c.q_dtype, c.seed + 2);
  const TwinTables tables(rows);
  const std::int64_t results = total_q * q_heads;
  std::vector<double> exact(static_cast<std::size_t>(results * shape.dim_v));
  std::vector<float> lse(static_cast<std::size_t>(results));
  AttentionParams host{
      pool.host_view,
      {tables.host(), c.seq_lens.data(), nullptr, static_cast<std::int32_t>(rows.size())},
      c.without_offsets ? nullptr : q_offsets.data(),
      q.data(),
      nullptr,
      lse.data(),
      q_heads,
      c.window_tokens,
      1.0F / std::sqrt(static_cast<float>(shape.dim_k)),
      c.soft_cap,
      c.q_dtype,
      c.out_dtype};
  kernels::reference::attention_paged_exact(host, exact.data());

  const DeviceArray<std::int32_t> seq_lens(c.seq_lens);
  const DeviceArray<std::int64_t> device_offsets(q_offsets);
  const DeviceArray<std::byte> device_q(q);
  const DeviceArray<float> device_lse(static_cast<std::size_t>(results));
  const DeviceArray<std::byte> out(std::vector<std::byte>(
      exact.size() * static_cast<std::size_t>(bytes_of(c.out_dtype)), std::byte{0xFF}));
  AttentionParams device = host;
  device.kv = pool.device_view;
  device.batch.tables = tables.device();
  device.batch.seq_lens = seq_lens.data();
  if (!c.without_offsets) device.q_offsets = device_offsets.data();
  device.q = device_q.data();
  device.out = out.data();
  device.lse = device_lse.data();
  ASSERT_OK(launch_prefill({device, total_q}, stream_));
  finish();
  const Distances d = distances(exact, out.download(), c.out_dtype);
  EXPECT_LE(d.of_output, 2.0 * d.of_rounding + 2e-6) << name_of(c);
  expect_near(device_lse.download(), lse, name_of(c));
  EXPECT_EQ(pool.device.download(), pool.bytes) << "the pool is only read";
}

TEST_F(CudaPrefill, TensorCoresForAllDimsBlocksAndOrders) {
  PrefillCase c;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t dim : {64, 96, 128, 256}) {
      for (const std::int32_t block_size : {1, 7, 16, 32, 128}) {
        for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
          c.pool.dim_k = c.pool.dim_v = dim;
          c.pool.dtype_k = c.pool.dtype_v = c.q_dtype = c.out_dtype = dtype;
          c.pool.block_size = block_size;
          c.pool.order = order;
          c.pool.block_major = ++c.seed % 3 != 0;
          c.group = static_cast<std::int32_t>(c.seed % 8) + 1;
          c.window_tokens = c.seed % 4 == 1 ? 20 : 0;
          c.soft_cap = c.seed % 4 == 2 ? 3.0F : 0.0F;
          if (is_valid(c.pool)) expect_exact(c);
        }
      }
    }
  }
}

TEST_F(CudaPrefill, PlainForOtherTypesAndDims) {
  PrefillCase c;
  constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType kv : kFloats) {
    for (const DType q : kFloats) {
      for (const auto& [dim_k, dim_v] : {std::pair{80, 80}, {64, 64}, {192, 128}, {7, 5}}) {
        c.pool.dim_k = dim_k;
        c.pool.dim_v = dim_v;
        c.pool.dtype_k = c.pool.dtype_v = kv;
        c.q_dtype = q;
        c.out_dtype = ++c.seed % 2 == 0 ? q : DType::f32;
        c.pool.block_size = c.seed % 3 == 0 ? 16 : 5;
        c.window_tokens = c.seed % 4 == 1 ? 20 : 0;
        c.soft_cap = c.seed % 4 == 2 ? 3.0F : 0.0F;
        c.group = 2;
        expect_exact(c);
      }
    }
  }
}

TEST_F(CudaPrefill, RandomBatches) {
  std::mt19937 random(11);
  const auto number = [&](std::int32_t most) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(most + 1));
  };
  for (std::uint32_t i = 0; i < 60; ++i) {
    PrefillCase c;
    c.seed = 1000 + i;
    constexpr std::int32_t kDims[] = {64, 96, 128};
    c.pool.dim_k = c.pool.dim_v = kDims[number(2)];
    c.pool.order = number(1) == 0 ? TileOrder::rows : TileOrder::chunked;
    c.pool.block_size = c.pool.order == TileOrder::chunked ? 16 * (1 + number(3)) : 1 + number(40);
    c.pool.num_heads = 1 + number(1);
    c.group = 1 + number(6);
    c.out_dtype = number(3) == 0 ? DType::f32 : DType::bf16;
    c.window_tokens = number(2) == 0 ? 1 + number(100) : 0;
    c.seq_lens.clear();
    c.q_counts.clear();
    for (std::int32_t row = number(5); row >= 0; --row) {
      c.seq_lens.push_back(number(300));
      c.q_counts.push_back(std::min(c.seq_lens.back(), number(200)));
    }
    if (c.q_counts.back() == 0) c.q_counts.back() = 1;
    expect_exact(c);
  }
}

TEST_F(CudaPrefill, OneQueryTokenARowWithoutOffsets) {
  PrefillCase c;
  c.q_counts.assign(c.seq_lens.size(), 1);
  c.without_offsets = true;
  expect_exact(c);
  c.pool.dim_k = c.pool.dim_v = 80;
  expect_exact(c);
}

TEST(CudaPrefillArguments, NameWhatIsWrong) {
  std::vector<std::byte> memory(std::size_t{1} << 17);
  std::byte* base = memory.data();
  const std::int64_t offset = 0;
  const BlockId entry(0);
  const std::int32_t len = 1;
  float lse = 0.0F;
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    PrefillParams params;
    params.attention = {view_of(PoolShape{}, base),
                        {{&entry, nullptr, &offset, 0, 1}, &len, nullptr, 1},
                        nullptr,
                        base,
                        base,
                        &lse,
                        4,
                        0,
                        1.0F,
                        0.0F,
                        DType::bf16,
                        DType::bf16};
    params.total_q = 1;
    change(params, params.attention);
    const Status status = launch_prefill(params, nullptr);
    EXPECT_EQ(status.code, code) << describe(status);
    EXPECT_EQ(status.resource, resource) << describe(status);
  };
  using P = PrefillParams&;
  using A = AttentionParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  fails([](P, A a) { a.q = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.out = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.batch.seq_lens = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.batch.tables.entries = nullptr; }, kInvalid, Resource::pointer);
  fails([](P, A a) { a.q = static_cast<const std::byte*>(a.q) + 1; }, kInvalid,
        Resource::alignment);
  fails([](P, A a) { a.num_q_heads = 3; }, kInvalid, Resource::num_q_heads);
  fails([](P, A a) { a.num_q_heads = 0; }, kInvalid, Resource::num_q_heads);
  fails([](P, A a) { a.scale = 0.0F; }, kInvalid, Resource::scale);
  fails([](P, A a) { a.soft_cap = -1.0F; }, kInvalid, Resource::soft_cap);
  fails([](P, A a) { a.window_tokens = -1; }, kInvalid, Resource::window);
  fails([](P p, A) { p.total_q = -1; }, kInvalid, Resource::num_tokens);
  fails([](P, A a) { a.q_dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P, A a) { a.kv.key.dtype = DType::int8; }, kUnsupported, Resource::dtype);
  fails([](P, A a) { a.kv.key.head_dim = a.kv.value.head_dim = 2048; }, kUnsupported,
        Resource::head_dim);
}

}  // namespace
}  // namespace kvarena::test
