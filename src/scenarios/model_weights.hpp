#pragma once

/// @file
/// `ModelWeights`: an allocation of the size of a model's weights, recorded as ModelWeights and
/// filled piece by piece, each piece with a value of its own, so that whoever writes into it is
/// found. Owns its memory and a stream; move-only. The device must outlive it. One thread at a
/// time.

#include "kvarena/device/device.hpp"

#include <cstdint>

namespace kvarena::replay::pressure {

/// How large, and filled how.
struct ModelWeightsOptions {
  std::int64_t bytes = 0;
  std::int64_t piece_bytes = 64 << 20;  ///< filled at a time
};

/// Bytes that stand for weights.
class ModelWeights {
 public:
  /// Allocates, fills and reads once, and waits for it. Returns what Device::allocate,
  /// create_stream and fill return; nothing is left behind then.
  static Result<ModelWeights> load(Device& device, const ModelWeightsOptions& options);
  ~ModelWeights();
  ModelWeights(ModelWeights&& other) noexcept;
  ModelWeights& operator=(ModelWeights&& other) noexcept;

  /// First byte.
  void* data() const noexcept { return data_; }
  /// As asked for.
  std::int64_t bytes() const noexcept { return options_.bytes; }
  /// How many of the first and last bytes of all pieces are not what they were filled with. Waits
  /// for the device.
  Result<std::int64_t> count_wrong_bytes() const;

 private:
  ModelWeights(Device& device, const ModelWeightsOptions& options, void* data) noexcept
      : device_(&device), options_(options), data_(data) {}
  Status fill() const;

  Device* device_;
  ModelWeightsOptions options_;
  void* data_;
  StreamId stream_{};  // for filling and reading
};

}  // namespace kvarena::replay::pressure
