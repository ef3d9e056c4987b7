// Content and outputs in host memory. A ring of layers of K and V lets one be made while others are
// being written.

#include "verify/step_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvarena::verify {
namespace {

constexpr std::int64_t kRingBytes = std::int64_t{32} << 20;

class HostStepMemory final : public StepMemory {
 public:
  HostStepMemory(KvCache& cache, const StepMemoryOptions& options)
      : cache_(cache),
        shape_(options.shape),
        num_q_heads_(options.num_q_heads),
        key_row_(std::int64_t{shape_.head_dim_k} * bytes_of(shape_.dtype)),
        value_row_(std::int64_t{shape_.head_dim_v} * bytes_of(shape_.dtype)) {
    // At least two layers, so that one is made while the other is written.
    const std::int64_t layer_bytes = options.max_step_tokens * token_bytes();
    ring_.resize(static_cast<std::size_t>(std::max<std::int64_t>(2, kRingBytes / layer_bytes) *
                                          layer_bytes));
  }

  /// Steps that are queued read the ring: a run that ends early may leave some.
  ~HostStepMemory() override { static_cast<void>(cache_.synchronize()); }

  Status begin(const StepTokens& tokens) override;
  Status write(std::int32_t first_layer, std::int32_t num_layers) override;
  Status attend(std::int32_t first_layer, std::int32_t num_layers) override;
  std::int32_t layers_at_a_time() const noexcept override { return 1; }
  DType out_dtype() const noexcept override { return DType::f32; }
  Result<const std::byte*> read_outputs(std::int32_t layer, std::int64_t first_token,
                                        std::int64_t tokens) override;
  Status open_sequence(std::span<const BlockId> blocks,
                       std::span<const std::uint64_t> hashes) override;
  Result<LayerContent> read_layer(std::int32_t layer) override;
  bool compares() const noexcept override { return false; }
  Result<std::int64_t> count_wrong_words(std::int32_t) override {
    return unsupported(Resource::device);
  }
  Status compare_attention(std::span<const std::uint64_t>, std::span<const QueryToken>,
                           std::vector<AttentionSums>&) override {
    return unsupported(Resource::device);
  }
  Result<MeasuredReport> measure() override { return MeasuredReport{}; }

 private:
  std::int64_t token_bytes() const noexcept {
    return shape_.num_kv_heads * (key_row_ + value_row_);
  }
  Status write_layer(std::int32_t layer, std::span<std::byte> staging);
  void read_plane(const PlaneView& plane, std::vector<std::byte>& out) const;

  KvCache& cache_;
  UniformLayoutOptions shape_;
  std::int32_t num_q_heads_;
  std::int64_t key_row_;    // bytes of a head
  std::int64_t value_row_;  // the same
  std::vector<std::byte> ring_;
  std::span<const std::uint64_t> hashes_;  // of the step
  std::vector<std::byte> queries_;         // [tokens, num_q_heads, head_dim_k]
  std::vector<float> outputs_;             // [tokens, num_q_heads, head_dim_v]
  std::span<const BlockId> blocks_;        // of the sequence
  std::int64_t length_ = 0;                // of the sequence
  std::vector<std::byte> key_;             // read back
  std::vector<std::byte> value_;
};

Status HostStepMemory::begin(const StepTokens& tokens) {
  hashes_ = tokens.hashes;
  // The ring is cut anew for each step: what the steps before queued has to be done.
  return cache_.synchronize();
}

Status HostStepMemory::write_layer(std::int32_t layer, std::span<std::byte> staging) {
  std::byte* const keys = staging.data();
  std::byte* const values = keys + std::ssize(hashes_) * shape_.num_kv_heads * key_row_;
  std::byte* key = keys;
  std::byte* value = values;
  for (const std::uint64_t hash : hashes_) {
    for (std::int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      fill_row(shape_.dtype, hash, layer, RowKind::key, head, shape_.head_dim_k, key);
      fill_row(shape_.dtype, hash, layer, RowKind::value, head, shape_.head_dim_v, value);
      key += key_row_;
      value += value_row_;
    }
  }
  return cache_.write_kv({.layer = layer, .key = keys, .value = values, .dtype = shape_.dtype});
}

Status HostStepMemory::write(std::int32_t first_layer, std::int32_t num_layers) {
  const std::int64_t layer_bytes = std::ssize(hashes_) * token_bytes();
  const std::int64_t slots = std::ssize(ring_) / std::max<std::int64_t>(1, layer_bytes);
  std::int64_t next_slot = 0;
  for (std::int32_t layer = first_layer; layer < first_layer + num_layers; ++layer, ++next_slot) {
    if (next_slot == slots) {
      if (Status status = cache_.synchronize(); !status) return status;
      next_slot = 0;
    }
    const auto staging = std::span(ring_).subspan(static_cast<std::size_t>(next_slot * layer_bytes),
                                                  static_cast<std::size_t>(layer_bytes));
    if (Status status = write_layer(layer, staging); !status) return status;
  }
  return {};
}

Status HostStepMemory::attend(std::int32_t first_layer, std::int32_t) {
  const std::size_t heads = hashes_.size() * static_cast<std::size_t>(num_q_heads_);
  queries_.resize(heads * static_cast<std::size_t>(key_row_));
  std::byte* query = queries_.data();
  for (const std::uint64_t hash : hashes_) {
    for (std::int32_t head = 0; head < num_q_heads_; ++head, query += key_row_) {
      fill_row(shape_.dtype, hash, first_layer, RowKind::query, head, shape_.head_dim_k, query);
    }
  }
  outputs_.assign(heads * static_cast<std::size_t>(shape_.head_dim_v), std::nanf(""));
  return cache_.attend({.layer = first_layer,
                        .q = queries_.data(),
                        .q_dtype = shape_.dtype,
                        .out = outputs_.data(),
                        .out_dtype = DType::f32});
}

Result<const std::byte*> HostStepMemory::read_outputs(std::int32_t, std::int64_t first_token,
                                                      std::int64_t) {
  if (Status status = cache_.synchronize(); !status) return status;
  const float* row = outputs_.data() + first_token * num_q_heads_ * shape_.head_dim_v;
  return reinterpret_cast<const std::byte*>(row);
}

Status HostStepMemory::open_sequence(std::span<const BlockId> blocks,
                                     std::span<const std::uint64_t> hashes) {
  blocks_ = blocks;
  length_ = std::ssize(hashes);
  return cache_.synchronize();
}

void HostStepMemory::read_plane(const PlaneView& plane, std::vector<std::byte>& out) const {
  const std::int64_t bytes = std::int64_t{plane.head_dim} * bytes_of(plane.dtype);
  out.resize(static_cast<std::size_t>(length_ * plane.num_heads * bytes));
  std::byte* target = out.data();
  for (std::int64_t token = 0; token < length_; ++token) {
    const BlockId block = blocks_[static_cast<std::size_t>(token / shape_.block_size_tokens)];
    const std::byte* found = plane.base + block.value * plane.block_stride +
                             token % shape_.block_size_tokens * plane.token_stride;
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      std::memcpy(target, found, static_cast<std::size_t>(bytes));
      found += plane.head_stride;
      target += bytes;
    }
  }
}

Result<LayerContent> HostStepMemory::read_layer(std::int32_t layer) {
  const Result<KvLayerView> view = cache_.arena().layer_view(layer);
  if (!view) return view.status();
  read_plane(view->key, key_);
  read_plane(view->value, value_);
  return LayerContent{key_.data(), value_.data()};
}

}  // namespace

std::unique_ptr<StepMemory> create_host_step_memory(KvCache& cache,
                                                    const StepMemoryOptions& options) {
  return std::make_unique<HostStepMemory>(cache, options);
}

}  // namespace kvarena::verify
