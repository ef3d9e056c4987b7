#include "replay/kv_writer.hpp"

namespace kvarena::replay {

KvWriter::KvWriter(StepMemory& memory, const UniformLayoutOptions& shape,
                   std::int64_t max_step_tokens, LayerRange layers)
    : memory_(memory),
      layers_(layers),
      token_bytes_(std::int64_t{layers.count} * shape.num_kv_heads *
                   (shape.head_dim_k + shape.head_dim_v) * bytes_of(shape.dtype)) {
  hashes_.reserve(static_cast<std::size_t>(max_step_tokens));
}

// K and V that attention of the step reads, or 0 when a row computes prompt tokens.
std::int64_t KvWriter::decode_kv_bytes(std::span<const StepRow> rows) const noexcept {
  std::int64_t tokens = 0;
  for (const StepRow& row : rows) {
    if (row.job->length <= row.job->prefill_length) return 0;
    tokens += row.job->length;
  }
  return tokens * token_bytes_;
}

Status KvWriter::write(std::span<const StepRow> rows) {
  hashes_.clear();
  for (const StepRow& row : rows) {
    for (std::int32_t i = 0; i < row.tokens; ++i) {
      row.job->last_hash = row.job->stream.next();
      hashes_.push_back(row.job->last_hash);
    }
  }
  bytes_written_ += std::ssize(hashes_) * token_bytes_;
  const Status begun = memory_.begin({.hashes = hashes_, .decode_kv_bytes = decode_kv_bytes(rows)});
  return begun ? memory_.write(layers_.first, layers_.count) : begun;
}

}  // namespace kvarena::replay
