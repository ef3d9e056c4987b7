// Attention of a cache with groups, compared with what a layer lets each token see.

#include "verify/attention_error.hpp"
#include "verify/group_verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvarena::verify {
namespace {

// As KvVerifier: a step whose attention would cost more is left to the next turn in sample mode.
constexpr std::int64_t kMaxSampledWork = std::int64_t{1} << 31;

std::int64_t first_visible(const PagedGroup& group, std::int64_t position) noexcept {
  if (group.kind == PagedKind::window) {
    return std::max<std::int64_t>(0, position + 1 - group.limit_tokens);
  }
  if (group.kind == PagedKind::chunk) return position / group.limit_tokens * group.limit_tokens;
  return 0;
}

}  // namespace

bool GroupVerifier::is_turn(std::span<const StepRow> rows) {
  const std::int64_t step = steps_++;
  if (options_.mode == AttentionMode::full) return true;
  if (step < next_turn_) return false;
  std::int64_t work = 0;
  for (const StepRow& row : rows) {
    const UniformLayoutOptions& shape = groups_.front().shape;
    work += row.sequence->length * row.tokens * options_.num_q_heads *
            (shape.head_dim_k + shape.head_dim_v);
    if (work > kMaxSampledWork) return false;
  }
  next_turn_ = step + options_.sample_every;
  return true;
}

MaybeFailure GroupVerifier::attend(std::span<const StepRow> rows) {
  const bool all = options_.mode == AttentionMode::full;
  const auto turn = static_cast<std::size_t>(turns_++);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!all && i != turn % layers_.size()) continue;
    const std::size_t chosen = all ? rows.size() : turn % rows.size();
    if (auto failure = attend_layer(rows, layers_[i], chosen)) return failure;
  }
  return std::nullopt;
}

// Compares the row `chosen`, or with rows.size() all rows.
MaybeFailure GroupVerifier::attend_layer(std::span<const StepRow> rows, const Layer& layer,
                                         std::size_t chosen) {
  const Status attended = queue_attention(layer);
  if (attended.code == StatusCode::unsupported) {
    return Failure{
        RunEnd::bad_options,
        {.found = fmt::format("attention of layer {}: {}", layer.layer, describe(attended)),
         .advice = "change the model, or use another device"}};
  }
  if (!attended) return unexpected("attend", attended);
  if (Status s = bytes_.download(outputs_, 0, outputs_.bytes()); !s) return unexpected("copy", s);
  if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
  std::int64_t end_token = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    end_token += rows[r].tokens;
    if (chosen < rows.size() && r != chosen) continue;
    if (auto failure = check_row(rows[r], end_token, layer)) return failure;
  }
  return std::nullopt;
}

// Queries are those of the layer whose K and V it reads. Outputs that nobody writes are not
// numbers.
Status GroupVerifier::queue_attention(const Layer& layer) {
  const Group& group = groups_[layer.group];
  const std::int32_t dim = group.shape.head_dim_k;
  const std::int64_t row_bytes = std::int64_t{dim} * bytes_of(group.shape.dtype);
  if (Status s = bytes_.synchronize(); !s) return s;
  std::byte* row = queries_.host();
  for (const std::uint64_t hash : step_hashes_) {
    for (std::int32_t head = 0; head < options_.num_q_heads; ++head, row += row_bytes) {
      fill_row(group.shape.dtype, hash, layer.owner, RowKind::query, head, dim, row);
    }
  }
  const std::int64_t rows = num_tokens() * options_.num_q_heads;
  if (Status s = bytes_.upload(queries_, 0, rows * row_bytes); !s) return s;
  std::memset(outputs_.host(), 0xff, static_cast<std::size_t>(outputs_.bytes()));
  if (Status s = bytes_.upload(outputs_, 0, outputs_.bytes()); !s) return s;
  return cache_.attend({.layer = layer.layer,
                        .q = queries_.device(),
                        .q_dtype = group.shape.dtype,
                        .out = outputs_.device(),
                        .out_dtype = out_dtype_});
}

// Each of the last query tokens sees what its layer lets it see.
MaybeFailure GroupVerifier::check_row(const StepRow& row, std::int64_t end_token,
                                      const Layer& layer) {
  Group& group = groups_[layer.group];
  const WrittenSequence& sequence = *row.sequence;
  hashes_.clear();
  append_hashes(sequence, hashes_);
  const std::int64_t out_bytes =
      std::int64_t{options_.num_q_heads} * group.shape.head_dim_v * bytes_of(out_dtype_);
  for (std::int32_t i = std::min(row.tokens, KvVerifier::kComparedQueries); i > 0; --i) {
    const std::int64_t position = sequence.length - i;
    const std::int64_t first = first_visible(group.retention, position);
    const auto visible = std::span(hashes_).subspan(static_cast<std::size_t>(first),
                                                    static_cast<std::size_t>(position + 1 - first));
    const std::span<const float> wanted = group.derived.attend(visible, layer.owner, 1);
    const std::byte* const found = outputs_.host() + (end_token - i) * out_bytes;
    const double error = relative_error(compare_rows(wanted, found, out_dtype_));
    ++report_.attention_rows;
    if (error <= report_.tolerance) {
      report_.max_error = std::max(report_.max_error, error);
      continue;
    }
    ++report_.failures;
    return Failure{
        RunEnd::check_failed,
        {.found = fmt::format("attention of request {} sample {}, token {}, layer {} is {:.3g} "
                              "from contiguous attention (relative L2 distance of all heads)",
                              sequence.stream.owner(), sequence.stream.sample(), position,
                              layer.layer, error),
         .expected = fmt::format("a distance of at most {:.3g}", report_.tolerance),
         .advice = "the KV of this sequence or the kernel that read it is wrong; report it"}};
  }
  return std::nullopt;
}

}  // namespace kvarena::verify
