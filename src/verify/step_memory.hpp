#pragma once

/// @file
/// `StepMemory`: K, V, q and outputs of an engine's steps in the memory of the cache's device. It
/// makes the content there from prefix hashes, and copies content to the host for comparison. There
/// is one implementation for the host and one for a GPU. On a GPU, kernels make and compare the
/// content, so only hashes cross the bus. Borrows cache and device. One thread at a time.

#include "verify/content_pattern.hpp"
#include "verify/verification.hpp"

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena::verify {

/// The options that decide the size of the memory.
struct StepMemoryOptions {
  UniformLayoutOptions shape;
  std::int32_t num_q_heads = 0;
  std::int64_t max_step_tokens = 0;  ///< new tokens in a step
  std::int64_t longest_tokens = 0;   ///< tokens of the longest sequence
  bool compares_attention = false;   ///< GPU: whether compare_attention will be called
};

/// The new tokens of a step.
struct StepTokens {
  std::span<const std::uint64_t> hashes;  ///< the prefix hash of each, row by row
  std::int64_t decode_kv_bytes = 0;  ///< K and V that attention reads when all rows decode; else 0
};

/// A query token to compare.
struct QueryToken {
  std::int64_t first_hash = 0;  ///< index of the first prefix hash of its sequence
  std::int32_t seq_len = 0;     ///< tokens that it sees, with itself
  std::int32_t q_token = 0;     ///< its index among the step's new tokens
};

/// Sums of squares that give the error of a query token's outputs in one layer.
struct AttentionSums {
  double exact = 0.0;       ///< of the exact outputs
  double difference = 0.0;  ///< of the differences
};

/// K and V of one layer of a sequence, each contiguous [length, num_kv_heads, head_dim].
struct LayerContent {
  const std::byte* key = nullptr;
  const std::byte* value = nullptr;
};

/// The memory of the verifier on a device. All functions return device failures as a Status.
/// Functions that copy bytes to the host wait for the work queued so far.
class StepMemory {
 public:
  StepMemory() = default;
  virtual ~StepMemory() = default;
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  // ---- a step ----------------------------------------------------------------------------------

  /// Begins a step. Call it after the step's append. Waits for the step before. The hashes must
  /// stay valid until the next call.
  virtual Status begin(const StepTokens& tokens) = 0;
  /// Queues the work that makes and writes K and V of `num_layers` layers from `first_layer` on.
  virtual Status write(std::int32_t first_layer, std::int32_t num_layers) = 0;
  /// Queues the work that makes q and computes attention of `num_layers` layers from `first_layer`
  /// on.
  virtual Status attend(std::int32_t first_layer, std::int32_t num_layers) = 0;
  /// Returns the most layers for one call of attend in this step.
  virtual std::int32_t layers_at_a_time() const noexcept = 0;
  /// Returns the type of the outputs.
  virtual DType out_dtype() const noexcept = 0;
  /// Returns the outputs [tokens, num_q_heads, head_dim_v] of one layer of the latest attend, for
  /// `tokens` new tokens from `first_token` on. Valid until the next call.
  virtual Result<const std::byte*> read_outputs(std::int32_t layer, std::int64_t first_token,
                                                std::int64_t tokens) = 0;

  // ---- a sequence, between steps ---------------------------------------------------------------

  /// Opens a sequence for read_layer and count_wrong_words: its blocks in order, and the prefix
  /// hashes of its tokens. Both spans must stay valid until the last of those calls.
  virtual Status open_sequence(std::span<const BlockId> blocks,
                               std::span<const std::uint64_t> hashes) = 0;
  /// Reads one layer back through the blocks. Valid until the next call.
  virtual Result<LayerContent> read_layer(std::int32_t layer) = 0;

  // ---- on the device itself --------------------------------------------------------------------

  /// Returns whether the device computes attention in every step and has the functions below.
  virtual bool compares() const noexcept = 0;
  /// Returns the number of words in one layer of the opened sequence that differ from the written
  /// content.
  virtual Result<std::int64_t> count_wrong_words(std::int32_t layer) = 0;
  /// Compares outputs of the latest attend with attention in double precision over K, V and q that
  /// are derived from `hashes`. `sums`: [num_layers, tokens].
  virtual Status compare_attention(std::span<const std::uint64_t> hashes,
                                   std::span<const QueryToken> tokens,
                                   std::vector<AttentionSums>& sums) = 0;
  /// Returns the device's time for attention so far.
  virtual Result<MeasuredReport> measure() = 0;
};

/// Makes the memory for a cache on the host.
std::unique_ptr<StepMemory> create_host_step_memory(KvCache& cache,
                                                    const StepMemoryOptions& options);

/// Makes the memory for a cache on a GPU. Returns what Device::allocate returns, or unsupported
/// (device) in a build without CUDA.
Result<std::unique_ptr<StepMemory>> create_cuda_step_memory(Device& device, KvCache& cache,
                                                            const StepMemoryOptions& options);

/// Returns the bytes of device memory that create_cuda_step_memory takes. A pure function.
std::int64_t cuda_step_memory_bytes(const StepMemoryOptions& options) noexcept;

}  // namespace kvarena::verify
