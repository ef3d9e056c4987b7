#pragma once

/// @file
/// `PoolBytes`: reads and writes bytes of a cache's pool from the host, on any device, and holds
/// inputs and outputs of the cache's calls in the device's memory. Borrows the cache. One thread at
/// a time.

#include "verify/device_memory.hpp"

#include "kvarena/base/views.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::verify {

/// Memory of the device, and its copy on the host. On a host device both are the same.
class StagedBytes {
 public:
  StagedBytes() = default;
  static Result<StagedBytes> create(Device& device, std::int64_t bytes, std::string_view purpose);
  std::byte* host() noexcept { return host_.empty() ? device_.data() : host_.data(); }
  std::byte* device() const noexcept { return device_.data(); }
  std::int64_t bytes() const noexcept { return device_.bytes(); }

 private:
  DeviceMemory device_;
  std::vector<std::byte> host_;  // empty on a host device
};

class PoolBytes {
 public:
  explicit PoolBytes(KvCache& cache) noexcept
      : cache_(cache), is_host_(cache.device().kind() == DeviceKind::host) {}

  /// Queues a copy from the host to the pool. On a host device, the work queued so far must have
  /// completed; the copy has been made then.
  Status write(std::byte* target, const std::byte* source, std::int64_t bytes) {
    return copy(target, source, bytes);
  }
  /// Queues a copy from the pool to the host. As write; the bytes are there after synchronize.
  Status read(std::byte* target, const std::byte* source, std::int64_t bytes) {
    return copy(target, source, bytes);
  }
  /// Queues the copy of the first `bytes` staged bytes to the device. Nothing on a host device.
  Status upload(StagedBytes& staged, std::int64_t offset, std::int64_t bytes) {
    return is_host_ ? Status{} : copy(staged.device() + offset, staged.host() + offset, bytes);
  }
  /// The same to the host.
  Status download(StagedBytes& staged, std::int64_t offset, std::int64_t bytes) {
    return is_host_ ? Status{} : copy(staged.host() + offset, staged.device() + offset, bytes);
  }
  /// Waits for all work of the cache.
  Status synchronize() { return cache_.synchronize(); }

  /// Reads tokens `first` .. `end` - 1 of a sequence in one plane into `rows`, [tokens, num_heads,
  /// head_dim]. `blocks` are the table ids of the blocks from that of `first` on. Waits for the
  /// device.
  Status read_rows(const PlaneView& plane, std::int32_t block_size,
                   std::span<const std::int64_t> blocks, std::int64_t first, std::int64_t end,
                   std::vector<std::byte>& rows);
  /// Reads the scales of tokens `first` .. `end` - 1 in a plane with one head and scales by token
  /// into `scales`, [tokens]. `blocks` as for read_rows. Waits for the device.
  Status read_scales(const PlaneView& plane, std::int32_t block_size,
                     std::span<const std::int64_t> blocks, std::int64_t first, std::int64_t end,
                     std::vector<float>& scales);

 private:
  Status copy(std::byte* target, const std::byte* source, std::int64_t bytes);

  KvCache& cache_;
  bool is_host_;
  std::vector<std::byte> tiles_;  // of the blocks that are read
};

}  // namespace kvarena::verify
