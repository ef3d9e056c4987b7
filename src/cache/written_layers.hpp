#pragma once

/// @file
/// The layers that a step has written, of all that have data of one kind. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena {

/// Which layers the present batch has written.
class WrittenLayers {
 public:
  explicit WrittenLayers(std::int32_t num_layers) : in_(static_cast<std::size_t>(num_layers)) {}

  std::int32_t num_owners = 0;  ///< layers with such data of their own

  /// Begins a batch.
  void clear() noexcept {
    num_written_ = 0;
    began_ = false;
  }
  /// Says that the batch writes some layer, whether that succeeds or not.
  void begin() noexcept { began_ = true; }
  /// Says that `batch` has written this layer. Batches count from 1.
  void note(std::size_t layer, std::uint64_t batch) noexcept {
    if (in_[layer] != batch) ++num_written_;
    in_[layer] = batch;
  }
  /// Whether `batch` has written this layer.
  bool has(std::size_t layer, std::uint64_t batch) const noexcept { return in_[layer] == batch; }
  /// Whether the batch has written all of these layers, or tried none: kernels of the engine may
  /// have written them.
  bool is_whole() const noexcept { return !began_ || num_written_ == num_owners; }

 private:
  std::vector<std::uint64_t> in_;  // by layer: the last batch that wrote it
  std::int32_t num_written_ = 0;
  bool began_ = false;
};

}  // namespace kvarena
