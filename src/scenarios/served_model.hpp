#pragma once

/// @file
/// `ServedModel`: the figures of a model that scenarios use: the shape of its KV, the bytes of its
/// weights, and its longest context. No model is loaded. `ModelWeights` are bytes of the real size.
/// Each piece of them is filled with its own value, so a wrong write is found. One thread at a
/// time.

#include "kvarena/base/layout.hpp"
#include "kvarena/device/device.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::scenarios {

/// A model as memory sees it.
struct ServedModel {
  std::string name;
  UniformLayoutOptions shape;
  std::int32_t num_q_heads = 0;
  std::int64_t max_context_tokens = 0;  ///< prompt and output of one sequence
  std::int64_t weights_bytes = 0;       ///< of all parameters
};

/// Returns the blocks of one sequence of the longest context.
inline std::int64_t context_blocks(const ServedModel& model) noexcept {
  const std::int64_t block = model.shape.block_size_tokens;
  return (model.max_context_tokens + block - 1) / block;
}

/// Returns the names of the models that find_served_model has here, the default first.
std::vector<std::string> served_model_names();
/// Returns the model with this name from here or from the capacity presets, with the preset's
/// numbers; nullopt when there is none. The whole context is kept, also for models with windows.
std::optional<ServedModel> find_served_model(std::string_view name);

/// The size of the weights and how they are filled.
struct ModelWeightsOptions {
  std::int64_t bytes = 0;
  std::int64_t piece_bytes = 64 << 20;      ///< filled at a time
  const std::atomic<bool>* stop = nullptr;  ///< once true, load fails; may be null
};

class ModelWeights {
 public:
  /// Allocates, fills and reads once, and waits for it. Returns what Device::allocate,
  /// create_stream and fill return, failed_precondition when it was stopped; nothing is left behind
  /// then.
  static Result<ModelWeights> load(Device& device, const ModelWeightsOptions& options);
  ~ModelWeights();
  ModelWeights(ModelWeights&& other) noexcept;
  ModelWeights& operator=(ModelWeights&& other) noexcept;

  void* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return options_.bytes; }
  /// Returns how many of the first and last bytes of all pieces have changed. Waits for the device.
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

}  // namespace kvarena::scenarios
