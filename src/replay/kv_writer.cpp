#include "replay/kv_writer.hpp"

#include <algorithm>

namespace kvarena::replay {
namespace {

constexpr std::int64_t kRingBytes = std::int64_t{32} << 20;

}  // namespace

KvWriter::KvWriter(KvCache& cache, const UniformLayoutOptions& shape, std::int64_t max_step_tokens)
    : cache_(cache),
      shape_(shape),
      key_bytes_(std::int64_t{shape.num_kv_heads} * shape.head_dim_k * bytes_of(shape.dtype)),
      value_bytes_(std::int64_t{shape.num_kv_heads} * shape.head_dim_v * bytes_of(shape.dtype)) {
  // At least two layers, so that one is made while the other is written.
  const std::int64_t layer_bytes = max_step_tokens * (key_bytes_ + value_bytes_);
  slots_ = std::max<std::int64_t>(2, kRingBytes / layer_bytes);
  ring_.resize(static_cast<std::size_t>(slots_ * layer_bytes));
  hashes_.reserve(static_cast<std::size_t>(max_step_tokens));
}

Status KvWriter::write_layer(std::int32_t layer, std::span<std::byte> staging) {
  const std::int64_t key_row = std::int64_t{shape_.head_dim_k} * bytes_of(shape_.dtype);
  const std::int64_t value_row = std::int64_t{shape_.head_dim_v} * bytes_of(shape_.dtype);
  std::byte* const keys = staging.data();
  std::byte* const values = keys + static_cast<std::int64_t>(hashes_.size()) * key_bytes_;
  std::byte* key = keys;
  std::byte* value = values;
  for (const std::uint64_t hash : hashes_) {
    for (std::int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      fill_row(shape_.dtype, hash, layer, RowKind::key, head, shape_.head_dim_k, key);
      fill_row(shape_.dtype, hash, layer, RowKind::value, head, shape_.head_dim_v, value);
      key += key_row;
      value += value_row;
    }
  }
  return cache_.write_kv({.layer = layer, .key = keys, .value = values, .dtype = shape_.dtype});
}

Status KvWriter::write(std::span<const StepRow> rows) {
  hashes_.clear();
  for (const StepRow& row : rows) {
    for (std::int32_t i = 0; i < row.tokens; ++i) {
      row.job->last_hash = row.job->stream.next();
      hashes_.push_back(row.job->last_hash);
    }
  }
  const std::int64_t layer_bytes =
      static_cast<std::int64_t>(hashes_.size()) * (key_bytes_ + value_bytes_);
  const std::int64_t slots =
      static_cast<std::int64_t>(ring_.size()) / std::max<std::int64_t>(1, layer_bytes);
  // The ring is cut anew for each step: what the steps before queued has to be done.
  if (Status status = cache_.synchronize(); !status) return status;
  next_slot_ = 0;
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    if (next_slot_ == slots) {
      if (Status status = cache_.synchronize(); !status) return status;
      next_slot_ = 0;
    }
    const auto staging = std::span(ring_).subspan(
        static_cast<std::size_t>(next_slot_ * layer_bytes), static_cast<std::size_t>(layer_bytes));
    if (Status status = write_layer(layer, staging); !status) return status;
    ++next_slot_;
    bytes_written_ += layer_bytes;
  }
  return {};
}

}  // namespace kvarena::replay
