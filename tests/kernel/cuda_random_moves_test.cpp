// Append, gather, scatter, conversion, block copies and scrubbing with random shapes: every byte of
// both sides is compared with the reference, so that a write outside its slots shows, whatever the
// pool held before.

#include "kernel/campaign.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/append/append.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/gather/gather.h"
#include "kernels/reference/gather.hpp"
#include "kernels/reference/kv_write.hpp"
#include "kernels/scrub/scrub.h"

#include "support/status_matchers.hpp"

#include <algorithm>

namespace kvarena::test {
namespace {

using kernels::TokenRun;

struct TypePair {
  DType from;
  DType to;
};
/// Every pair that can be moved.
constexpr TypePair kTypePairs[] = {
    {DType::f32, DType::f32},       {DType::f16, DType::f16},
    {DType::bf16, DType::bf16},     {DType::fp8_e4m3, DType::fp8_e4m3},
    {DType::int8, DType::int8},     {DType::f32, DType::f16},
    {DType::f32, DType::bf16},      {DType::f16, DType::f32},
    {DType::f16, DType::bf16},      {DType::bf16, DType::f32},
    {DType::bf16, DType::f16},      {DType::f32, DType::fp8_e4m3},
    {DType::f16, DType::fp8_e4m3},  {DType::bf16, DType::fp8_e4m3},
    {DType::fp8_e4m3, DType::f32},  {DType::fp8_e4m3, DType::f16},
    {DType::fp8_e4m3, DType::bf16},
};

/// Scales of fp8 planes on both sides of the bus, or none.
struct TwinScales {
  TwinScales(Dice& dice, std::int32_t num_heads) {
    per_head = dice.once_in(2);
    if (dice.once_in(4)) return;
    for (std::int32_t i = 0; i < (per_head ? num_heads : 1); ++i) {
      key.push_back(static_cast<float>(dice.between(1, 4000)) / 700.0F);
      value.push_back(static_cast<float>(dice.between(1, 4000)) / 900.0F);
    }
    device_key = DeviceArray<float>(key);
    device_value = DeviceArray<float>(value);
  }
  QuantScales host() const {
    return {key.empty() ? nullptr : key.data(), key.empty() ? nullptr : value.data(), per_head};
  }
  QuantScales device() const { return {device_key.data(), device_value.data(), per_head}; }

  bool per_head = false;
  std::vector<float> key;
  std::vector<float> value;
  DeviceArray<float> device_key;
  DeviceArray<float> device_value;
};

PoolShape random_shape(Dice& dice, DType stored) {
  PoolShape shape;
  shape.dtype_k = shape.dtype_v = stored;
  shape.num_heads = dice.between(1, dice.once_in(6) ? 12 : 4);
  shape.dim_k = dice.once_in(4) ? dice.between(1, 150) : dice.one_of({64, 96, 128, 256});
  shape.dim_v = dice.once_in(5) ? dice.one_of({32, 64, 80, 128, 192}) : shape.dim_k;
  shape.block_size = dice.once_in(3) ? dice.between(1, 70) : 16 * dice.one_of({1, 1, 2, 3, 4, 8});
  shape.order = dice.one_of({TileOrder::rows, TileOrder::chunked});
  if (!is_valid(shape)) shape.order = TileOrder::rows;
  shape.block_major = dice.once_in(2);
  const std::int64_t block_elements =
      std::int64_t{shape.block_size} * shape.num_heads * (shape.dim_k + shape.dim_v);
  shape.num_blocks = std::clamp<std::int64_t>(300000 / block_elements, 2, 24);
  return shape;
}

/// Numbers everywhere (a NaN's bits are not kept by conversions), also between the planes.
void fill(TwinPool& pool, DType dtype, std::uint32_t seed) {
  const auto values =
      random_elements(static_cast<std::int64_t>(pool.bytes.size()) / bytes_of(dtype), dtype, seed);
  std::copy(values.begin(), values.end(), pool.bytes.begin());
  pool.upload();
}

/// Sequences that own blocks of a pool in random order, some of them without any.
std::vector<std::vector<BlockId>> random_rows(Dice& dice, const PoolShape& shape) {
  std::vector<std::vector<BlockId>> rows(static_cast<std::size_t>(dice.between(1, 5)));
  const auto last = static_cast<std::int32_t>(rows.size()) - 1;
  for (const std::int32_t id :
       shuffled_ids(shape.num_blocks, static_cast<std::uint32_t>(dice.between(1, 1 << 30)))) {
    if (!dice.once_in(5)) rows[static_cast<std::size_t>(dice.between(0, last))].emplace_back(id);
  }
  return rows;
}

/// New tokens as runs, and the slots that they mean.
struct Runs {
  std::vector<TokenRun> runs;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int64_t> slots;
};
Runs random_runs(Dice& dice, const PoolShape& shape,
                 const std::vector<std::vector<BlockId>>& rows) {
  Runs all;
  const auto num_rows = static_cast<std::int32_t>(rows.size());
  const auto add = [&](std::int32_t row, std::int32_t start, std::int32_t count) {
    all.runs.push_back({row, start});
    all.offsets.push_back(all.offsets.back() + count);
    for (std::int32_t at = start; at < start + count; ++at) {
      const bool has_row = row >= 0 && row < num_rows;
      all.slots.push_back(has_row
                              ? std::int64_t{rows[static_cast<std::size_t>(row)]
                                                 [static_cast<std::size_t>(at / shape.block_size)]
                                                     .value} *
                                        shape.block_size +
                                    at % shape.block_size
                              : -1);
    }
  };
  for (const std::int32_t row :
       shuffled_ids(num_rows, static_cast<std::uint32_t>(dice.between(1, 1 << 30)))) {
    const auto most =
        static_cast<std::int32_t>(rows[static_cast<std::size_t>(row)].size()) * shape.block_size;
    if (dice.once_in(4)) add(dice.one_of({-1, num_rows, -7, 1 << 30}), 0, dice.between(0, 3));
    const std::int32_t start = most == 0 ? 0 : dice.between(0, most - 1);
    const std::int32_t left = most - start;
    add(row, start, std::min(left, dice.length(shape.block_size, left)));
  }
  return all;
}

class CudaRandomMoves : public CudaTest {
 protected:
  template <class Case>
  void for_each_case(int usual, Case&& run) {
    for (int i = 0; i < rounds(usual) && !HasFailure(); ++i) {
      const std::uint64_t seed = first_seed() * 100000 + static_cast<std::uint64_t>(i);
      Dice dice(seed);
      // Every pair of types in turn.
      run(dice, kTypePairs[static_cast<std::size_t>(i) % std::size(kTypePairs)],
          static_cast<std::uint32_t>(seed));
    }
  }
  static std::string context(const PoolShape& shape, DType flat, std::uint32_t seed) {
    return std::string(name_of(flat)) + " and " + name_of(shape) + ", KVARENA_SEED case " +
           std::to_string(seed);
  }
};

TEST_F(CudaRandomMoves, AppendByRunsAndBySlotsWritesItsBytesOnly) {
  for_each_case(1200, [&](Dice& dice, const TypePair& types, std::uint32_t seed) {
    const PoolShape shape = random_shape(dice, types.to);
    TwinPool pool(shape);
    fill(pool, types.to, seed);
    const auto rows = random_rows(dice, shape);
    const TwinTables tables(rows, dice.between(-1, 3));
    const Runs runs = random_runs(dice, shape, rows);
    const auto listed = static_cast<std::int64_t>(runs.slots.size());
    const std::int64_t tokens = listed + dice.between(0, 3);
    const auto key = random_elements(tokens * shape.num_heads * shape.dim_k, types.from, seed + 1);
    const auto value =
        random_elements(tokens * shape.num_heads * shape.dim_v, types.from, seed + 2);
    const TwinScales scales(dice, shape.num_heads);
    kernels::reference::append({pool.host_view, key.data(), value.data(), runs.slots.data(), listed,
                                types.from, scales.host()});
    const DeviceArray<std::byte> device_key(key);
    const DeviceArray<std::byte> device_value(value);
    const bool overlap = dice.once_in(2);
    if (dice.once_in(2)) {
      const DeviceArray<TokenRun> device_runs(runs.runs);
      const DeviceArray<std::int64_t> offsets(runs.offsets);
      ASSERT_OK(kernels::launch_append_runs(
          {pool.device_view, tables.device(), device_key.data(), device_value.data(),
           device_runs.data(), offsets.data(), static_cast<std::int64_t>(runs.runs.size()), tokens,
           types.from, scales.device()},
          overlap, stream_));
      finish();
    } else {
      std::vector<std::int64_t> given = runs.slots;
      for (std::int64_t& slot : given) {
        if (slot < 0)
          slot = dice.one_of<std::int64_t>({-1, shape.num_blocks * shape.block_size, 1LL << 50});
      }
      const DeviceArray<std::int64_t> slots(given);
      ASSERT_OK(kernels::launch_append({pool.device_view, device_key.data(), device_value.data(),
                                        slots.data(), listed, types.from, scales.device()},
                                       overlap, stream_));
      finish();
    }
    ASSERT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << context(shape, types.from, seed);
  });
}

TEST_F(CudaRandomMoves, GatherReadsAndScatterWritesItsBytesOnly) {
  for_each_case(1200, [&](Dice& dice, const TypePair& types, std::uint32_t seed) {
    const bool scatters = dice.once_in(2);
    const DType flat = scatters ? types.from : types.to;
    const PoolShape shape = random_shape(dice, scatters ? types.to : types.from);
    TwinPool pool(shape);
    fill(pool, shape.dtype_k, seed);
    auto rows = random_rows(dice, shape);
    for (auto& row : rows) {
      if (!row.empty() && dice.once_in(4)) row[row.size() / 2] = kNoBlock;
    }
    const TwinTables tables(rows, dice.between(-1, 3));
    const std::int32_t row = dice.between(0, static_cast<std::int32_t>(rows.size()) - 1);
    const auto most =
        static_cast<std::int32_t>(rows[static_cast<std::size_t>(row)].size()) * shape.block_size;
    const std::int32_t first = dice.between(0, most);
    const std::int32_t tokens = std::min(most - first, dice.length(shape.block_size, most));
    // Guards behind both arrays; what is skipped keeps what was there.
    auto key = random_elements((tokens + 1) * shape.num_heads * shape.dim_k, flat, seed + 1);
    auto value = random_elements((tokens + 1) * shape.num_heads * shape.dim_v, flat, seed + 2);
    const TwinScales scales(dice, shape.num_heads);
    const DeviceArray<std::byte> device_key(key);
    const DeviceArray<std::byte> device_value(value);
    const bool no_key = dice.once_in(6);
    kernels::GatherParams params{pool.host_view, tables.host(), row,
                                 first,          tokens,        no_key ? nullptr : key.data(),
                                 value.data(),   flat,          scales.host()};
    const auto as_scatter = [](const kernels::GatherParams& p) {
      return kernels::ScatterParams{p.kv,  p.tables, p.row,   p.first_token, p.num_tokens,
                                    p.key, p.value,  p.dtype, p.scales};
    };
    scatters ? kernels::reference::scatter(as_scatter(params)) : kernels::reference::gather(params);
    params.kv = pool.device_view;
    params.tables = tables.device();
    params.key = no_key ? nullptr : device_key.data();
    params.value = device_value.data();
    params.scales = scales.device();
    ASSERT_OK(scatters ? kernels::launch_scatter(as_scatter(params), stream_)
                       : kernels::launch_gather(params, stream_));
    finish();
    ASSERT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << context(shape, flat, seed);
    ASSERT_TRUE(same_bytes(device_key.download(), key)) << context(shape, flat, seed);
    ASSERT_TRUE(same_bytes(device_value.download(), value)) << context(shape, flat, seed);
  });
}

TEST_F(CudaRandomMoves, ConversionWritesItsBlocksOnly) {
  for_each_case(600, [&](Dice& dice, const TypePair& types, std::uint32_t seed) {
    const PoolShape from = random_shape(dice, types.from);
    PoolShape to = from;
    to.dtype_k = to.dtype_v = types.to;
    to.order = dice.one_of({TileOrder::rows, TileOrder::chunked});
    if (!is_valid(to)) to.order = TileOrder::rows;
    to.block_major = dice.once_in(2);
    to.num_blocks = from.num_blocks + dice.between(-1, 3);
    TwinPool source(from);
    TwinPool target(to);
    fill(source, types.from, seed);
    fill(target, types.to, seed + 1);
    const auto sources = shuffled_ids(from.num_blocks + 1, seed);
    const auto targets = shuffled_ids(to.num_blocks + 1, seed + 1);
    std::vector<BlockCopy> copies;
    for (std::size_t i = 0; i < std::min(sources.size(), targets.size()) && i < 6; ++i) {
      copies.push_back(
          {BlockId(dice.once_in(9) ? -1 : sources[i]), BlockId(dice.once_in(9) ? -1 : targets[i])});
    }
    const TwinScales scales(dice, from.num_heads);
    const auto count = static_cast<std::int64_t>(copies.size());
    kernels::reference::convert_blocks(
        {source.host_view, target.host_view, copies.data(), count, scales.host()});
    const DeviceArray<BlockCopy> list(copies);
    ASSERT_OK(kernels::launch_convert_blocks(
        {source.device_view, target.device_view, list.data(), count, scales.device()}, stream_));
    finish();
    ASSERT_TRUE(same_bytes(source.device.download(), source.bytes))
        << context(to, types.from, seed);
    ASSERT_TRUE(same_bytes(target.device.download(), target.bytes))
        << context(to, types.from, seed);
  });
}

TEST_F(CudaRandomMoves, CopiesTouchTheirBlocksOnly) {
  for_each_case(600, [&](Dice& dice, const TypePair&, std::uint32_t seed) {
    const std::int64_t bytes = dice.once_in(2) ? 16 * dice.between(1, 3000) : dice.between(1, 5000);
    const std::int64_t stride = bytes + (dice.once_in(2) ? 16 * dice.between(0, 4) : 0);
    const std::int64_t blocks = dice.between(2, 20);
    const std::int64_t planes = dice.once_in(2) ? 1 : dice.between(2, 5);
    const std::int64_t offset = dice.once_in(3) ? dice.between(0, 16) : 0;
    auto host =
        random_bytes(static_cast<std::size_t>(offset + stride * blocks * planes + 64), seed);
    const DeviceArray<std::byte> device(host);
    const auto ids = shuffled_ids(blocks + 2, seed);
    std::vector<BlockCopy> copies;
    for (std::size_t i = 0; i + 1 < ids.size(); i += 2) {
      copies.push_back({BlockId(ids[i] - 1), BlockId(ids[i + 1] - 1)});
    }
    std::vector<BlockCopy> inside;
    for (const BlockCopy& copy : copies) {
      const auto is_inside = [&](BlockId id) { return id.value >= 0 && id.value < blocks; };
      if (is_inside(copy.source) && is_inside(copy.target)) inside.push_back(copy);
    }
    kernels::CopyBlocksParams params{host.data() + offset,
                                     stride,
                                     bytes,
                                     inside.data(),
                                     static_cast<std::int64_t>(inside.size()),
                                     blocks,
                                     planes,
                                     stride * blocks};
    kernels::reference::copy_blocks(params);
    const DeviceArray<BlockCopy> list(copies);
    params.base = device.data() + offset;
    params.copies = list.data();
    params.num_copies = static_cast<std::int64_t>(copies.size());
    ASSERT_OK(kernels::launch_copy_blocks(params, stream_));
    finish();
    ASSERT_TRUE(same_bytes(device.download(), host))
        << bytes << " of " << stride << " bytes, " << blocks << " blocks, " << planes
        << " planes, offset " << offset << ", KVARENA_SEED case " << seed;
  });
}

TEST_F(CudaRandomMoves, ScrubsKeepTheFirstTokensOfTheirSources) {
  for_each_case(600, [&](Dice& dice, const TypePair& types, std::uint32_t seed) {
    PoolShape shape = random_shape(dice, types.from);
    shape.num_blocks = std::max<std::int64_t>(shape.num_blocks, 4);
    TwinPool pool(shape);
    std::ranges::copy(random_bytes(pool.bytes.size(), seed), pool.bytes.begin());
    pool.upload();
    const auto ids = shuffled_ids(shape.num_blocks, seed);
    std::vector<kernels::BlockScrub> scrubs;
    for (std::size_t i = 0; i + 1 < ids.size(); i += 2) {
      const BlockId target(ids[i]);
      const BlockId source = dice.once_in(2) ? target : BlockId(ids[i + 1]);
      const std::int32_t kept = dice.once_in(3) ? 0 : dice.between(0, shape.block_size);
      scrubs.push_back({source, target, kept});
    }
    const auto padded = [](const PlaneView& plane) {
      return (plane.head_stride * plane.num_heads + 15) / 16 * 16;
    };
    kernels::ScrubParams params{pool.host_view,
                                padded(pool.host_view.key),
                                padded(pool.host_view.value),
                                1,
                                0,
                                scrubs.data(),
                                static_cast<std::int64_t>(scrubs.size())};
    kernels::reference::scrub(params);
    params.kv = pool.device_view;
    ASSERT_OK(kernels::launch_scrub(params, stream_));
    finish();
    ASSERT_TRUE(same_bytes(pool.device.download(), pool.bytes))
        << name_of(shape) << ", KVARENA_SEED case " << seed;
  });
}

}  // namespace
}  // namespace kvarena::test
