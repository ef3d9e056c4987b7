#include "verify/pool_bytes.hpp"

#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvarena::verify {

Result<StagedBytes> StagedBytes::create(Device& device, std::int64_t bytes,
                                        std::string_view purpose) {
  StagedBytes staged;
  auto memory = DeviceMemory::create(device, bytes, purpose);
  if (!memory) return memory.status();
  staged.device_ = std::move(*memory);
  if (device.kind() != DeviceKind::host) staged.host_.resize(static_cast<std::size_t>(bytes));
  return staged;
}

Status PoolBytes::copy(std::byte* target, const std::byte* source, std::int64_t bytes) {
  const auto count = static_cast<std::size_t>(bytes);
  if (!is_host_) return cache_.device().copy(target, source, count, cache_.stream());
  std::memcpy(target, source, count);
  return {};
}

Status PoolBytes::read_rows(const PlaneView& plane, std::int32_t block_size,
                            std::span<const std::int64_t> blocks, std::int64_t first,
                            std::int64_t end, std::vector<std::byte>& rows) {
  if (Status s = synchronize(); !s) return s;
  const std::int64_t tile_bytes = plane.num_heads * plane.head_stride;
  tiles_.resize(blocks.size() * static_cast<std::size_t>(tile_bytes));
  std::byte* tile = tiles_.data();
  for (const std::int64_t block : blocks) {
    if (Status s = read(tile, plane.base + block * plane.block_stride, tile_bytes); !s) return s;
    tile += tile_bytes;
  }
  if (!is_host_) {
    if (Status s = synchronize(); !s) return s;
  }
  const auto element = static_cast<std::int32_t>(bytes_of(plane.dtype));
  const std::int32_t row_bytes = plane.head_dim * element;
  const bool is_chunked = plane.tile_order == TileOrder::chunked;
  const std::int32_t piece = is_chunked ? kChunkBytes : row_bytes;
  PlaneView in_tile = plane;
  in_tile.block_stride = tile_bytes;
  rows.resize(static_cast<std::size_t>((end - first) * plane.num_heads * row_bytes));
  std::byte* out = rows.data();
  for (std::int64_t token = first; token < end; ++token) {
    const std::int64_t block = token / block_size - first / block_size;
    const auto in_block = static_cast<std::int32_t>(token % block_size);
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      for (std::int32_t byte = 0; byte < row_bytes; byte += piece, out += piece) {
        const std::int64_t at =
            element_offset(in_tile, element, block, head, in_block, byte / element);
        std::memcpy(out, tiles_.data() + at, static_cast<std::size_t>(piece));
      }
    }
  }
  return {};
}

Status PoolBytes::read_scales(const PlaneView& plane, std::int32_t block_size,
                              std::span<const std::int64_t> blocks, std::int64_t first,
                              std::int64_t end, std::vector<float>& scales) {
  if (Status s = synchronize(); !s) return s;
  scales.resize(blocks.size() * static_cast<std::size_t>(block_size));
  float* to = scales.data();
  for (const std::int64_t block : blocks) {
    const std::byte* const from = plane.base + scale_byte(plane, block_size, block, 0, 0);
    const std::int64_t bytes = std::int64_t{block_size} * std::int64_t{sizeof(float)};
    if (Status s = read(reinterpret_cast<std::byte*>(to), from, bytes); !s) return s;
    to += block_size;
  }
  if (!is_host_) {
    if (Status s = synchronize(); !s) return s;
  }
  scales.erase(scales.begin(), scales.begin() + first % block_size);
  scales.resize(static_cast<std::size_t>(end - first));
  return {};
}

}  // namespace kvarena::verify
