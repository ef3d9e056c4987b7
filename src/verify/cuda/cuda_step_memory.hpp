#pragma once

/// @file
/// `CudaStepMemory`: a StepMemory on a GPU. All work is queued on the cache's stream, so
/// staging memory may be used again at once. cuda_step_memory.cpp has the steps,
/// cuda_step_comparison.cpp the comparisons. `CudaStepTimer`: measures the GPU's time for the
/// attention of each step with CUDA events. One thread at a time. The device must outlive both.

#include "device/current_gpu.hpp"
#include "verify/cuda/content_kernels.h"
#include "verify/cuda/exact_attention.h"
#include "verify/device_memory.hpp"
#include "verify/step_memory.hpp"
#include "verify/verification.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::verify {

/// Adds up times by the kind of step.
class CudaStepTimer {
 public:
  explicit CudaStepTimer(const CudaDevice& device) noexcept : device_(device) {}
  ~CudaStepTimer();
  CudaStepTimer(const CudaStepTimer&) = delete;
  CudaStepTimer& operator=(const CudaStepTimer&) = delete;

  /// Makes events for `max_spans` spans a step. Returns device_error.
  Status create(std::int32_t max_spans);

  /// Begins a step. `decode_kv_bytes` is what attention reads when all rows decode, and 0 for a
  /// step with prompts.
  void begin_step(std::int64_t decode_kv_bytes) noexcept { decode_kv_bytes_ = decode_kv_bytes; }
  /// Queues the begin of a span. Returns device_error.
  Status start(StreamId stream) { return record(2 * spans_, stream); }
  /// Queues the end of the span. Returns device_error.
  Status stop(StreamId stream) { return record(2 * spans_++ + 1, stream); }
  /// Adds up the spans of the step. Requires that the step's work has completed. Returns
  /// device_error.
  Status collect();
  /// Returns the sums.
  const MeasuredReport& report() const noexcept { return report_; }

 private:
  Status record(std::size_t index, StreamId stream);

  const CudaDevice& device_;
  std::vector<cudaEvent_t> events_;
  std::size_t spans_ = 0;  // of this step
  std::int64_t decode_kv_bytes_ = 0;
  MeasuredReport report_;
};

/// Token content and outputs in the memory of a GPU.
class CudaStepMemory final : public StepMemory {
 public:
  CudaStepMemory(CudaDevice& device, KvCache& cache, const StepMemoryOptions& options)
      : device_(device),
        cache_(cache),
        options_(options),
        shape_(options.shape),
        token_(options),
        timer_(device) {}
  ~CudaStepMemory() override { static_cast<void>(cache_.synchronize()); }
  /// Allocates all memory. Returns what Device::allocate returns, or device_error.
  Status allocate();
  Status load_code();
  /// Returns the bytes that allocate takes.
  static std::int64_t bytes_of_all(const StepMemoryOptions& options) noexcept;

  Status begin(const StepTokens& tokens) override;
  Status write(std::int32_t first_layer, std::int32_t num_layers) override;
  Status attend(std::int32_t first_layer, std::int32_t num_layers) override;
  std::int32_t layers_at_a_time() const noexcept override;
  DType out_dtype() const noexcept override { return shape_.dtype; }
  Result<const std::byte*> read_outputs(std::int32_t layer, std::int64_t first_token,
                                        std::int64_t tokens) override;
  Status open_sequence(std::span<const BlockId> blocks,
                       std::span<const std::uint64_t> hashes) override;
  Result<LayerContent> read_layer(std::int32_t layer) override;
  bool compares() const noexcept override { return true; }
  Result<std::int64_t> count_wrong_words(std::int32_t layer) override;
  Status compare_attention(std::span<const std::uint64_t> hashes,
                           std::span<const QueryToken> tokens,
                           std::vector<AttentionSums>& sums) override;
  Result<MeasuredReport> measure() override;

 private:
  static constexpr std::int64_t kAlignment = 256;
  static constexpr std::uint8_t kNotANumber = 0xff;

  static constexpr std::int64_t aligned(std::int64_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Bytes of one token in one layer.
  struct TokenBytes {
    explicit TokenBytes(const StepMemoryOptions& options) noexcept;
    std::int64_t kv_layer(std::int64_t tokens) const noexcept {
      return aligned(tokens * key) + aligned(tokens * value);
    }
    std::int64_t attention_layer(std::int64_t tokens) const noexcept {
      return aligned(tokens * q) + aligned(tokens * out);
    }
    std::int64_t key, value, q, out;
  };
  /// Bytes of each allocation.
  struct Sizes {
    explicit Sizes(const StepMemoryOptions& options) noexcept;
    std::int64_t kv, attention, step_hashes, hashes, table, partials, items;
  };
  /// As many of the tokens to compare as fit into memory, and their hashes.
  struct Batch {
    std::span<const QueryToken> tokens;
    std::int64_t first_hash = 0;
    std::int64_t num_hashes = 0;
    std::int64_t longest = 0;
  };

  template <class Launch>
  Status on_gpu(Launch launch) const;
  Status copy(void* target, const void* source, std::int64_t bytes) {
    return device_.copy(target, source, static_cast<std::uint64_t>(bytes), cache_.stream());
  }
  ContentRows rows_of(RowKind kind, const std::uint64_t* hashes, std::byte* rows,
                      std::int64_t num_tokens) const noexcept;
  Status write_layers(std::int32_t first_layer, std::int32_t num_layers);
  std::int64_t gather_tokens() const noexcept;
  Status gather(std::int32_t layer, std::int64_t first_token, std::int64_t num_tokens);
  Batch next_batch(std::span<const QueryToken> tokens) const noexcept;
  ExactAttention comparison_of(const Batch& batch) const noexcept;
  Status compare_batch(std::span<const std::uint64_t> hashes, const Batch& batch,
                       std::span<AttentionSums> sums, std::int64_t sums_stride);

  std::int64_t num_tokens() const noexcept { return std::ssize(step_.hashes); }
  std::byte* value_staging(std::int64_t tokens) const noexcept {
    return kv_.data() + aligned(tokens * token_.key);
  }

  CudaDevice& device_;
  KvCache& cache_;
  StepMemoryOptions options_;
  UniformLayoutOptions shape_;
  TokenBytes token_;
  CudaStepTimer timer_;
  DeviceMemory kv_;         // K of some layers, then V; or gathered K and V
  DeviceMemory attention_;  // q of some layers, then outputs
  DeviceMemory step_hashes_;
  DeviceMemory staging_;    // pinned: the step's hashes on their way to the GPU
  DeviceMemory hashes_;     // of sequences
  DeviceMemory table_;      // of the opened sequence
  DeviceMemory workspace_;  // of counting
  DeviceMemory partials_;
  DeviceMemory query_tokens_;
  DeviceMemory sums_;
  StepTokens step_;
  std::int32_t attended_first_ = 0;
  std::int32_t attended_layers_ = 0;
  std::byte* out_ = nullptr;  // of the latest attend
  std::int64_t length_ = 0;   // of the opened sequence
  std::vector<std::byte> key_;
  std::vector<std::byte> value_;
};

template <class Launch>
Status CudaStepMemory::on_gpu(Launch launch) const {
  const Result<void*> stream = device_.native_stream(cache_.stream());
  if (!stream) return stream.status();
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  const Status status = launch(static_cast<cudaStream_t>(*stream));
  if (status.code != StatusCode::device_error) return status;
  return device_.check(status.native, status.resource);
}

}  // namespace kvarena::verify
