#include "verify/verifier.hpp"

#include "verify/attention_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvarena::verify {

std::string_view name_of(AttentionMode mode) noexcept {
  switch (mode) {
    case AttentionMode::off: return "off";
    case AttentionMode::sample: return "sample";
    case AttentionMode::full: return "full";
  }
  return "unknown";
}

std::string_view name_of(RunEnd end) noexcept {
  switch (end) {
    case RunEnd::completed: return "completed";
    case RunEnd::check_failed: return "check_failed";
    case RunEnd::bad_options: return "bad_options";
    case RunEnd::does_not_fit: return "does_not_fit";
    case RunEnd::bad_input: return "bad_input";
    case RunEnd::interrupted: return "interrupted";
    case RunEnd::environment: return "environment";
  }
  return "unknown";
}

namespace {

// A step whose attention would cost the host more multiplications is left to the next turn in
// sample mode.
constexpr std::int64_t kMaxSampledWork = std::int64_t{1} << 31;

std::int32_t num_compared(const StepRow& row) noexcept {
  return std::min(row.tokens, KvVerifier::kComparedQueries);
}

// First new token of a row.
std::int64_t first_token(std::span<const StepRow> rows, std::size_t row) noexcept {
  std::int64_t tokens = 0;
  for (const StepRow& before : rows.first(row)) tokens += before.tokens;
  return tokens;
}

}  // namespace

KvVerifier::KvVerifier(const VerifierOptions& options, const KvCache& cache,
                       std::unique_ptr<StepMemory> memory)
    : mode_(options.mode),
      shape_(options.shape),
      num_q_heads_(options.num_q_heads),
      sample_every_(std::max<std::int64_t>(1, options.sample_every)),
      layers_(options.layers.count > 0 ? options.layers : LayerRange{0, shape_.num_layers}),
      cache_(cache),
      memory_(std::move(memory)),
      derived_(shape_, num_q_heads_),
      token_bytes_(std::int64_t{layers_.count} * shape_.num_kv_heads *
                   (shape_.head_dim_k + shape_.head_dim_v) * bytes_of(shape_.dtype)) {
  step_hashes_.reserve(static_cast<std::size_t>(options.max_step_tokens));
  report_.tolerance = error_limit(memory_->out_dtype());
}

bool KvVerifier::compares_all_there() const noexcept {
  return mode_ == AttentionMode::full && memory_->compares();
}

std::int32_t KvVerifier::sampled_layer() const noexcept {
  return layers_.first + static_cast<std::int32_t>(turns_ % layers_.count);
}

// ---- writing -----------------------------------------------------------------------------------

// K and V that attention of the step reads, or 0 when a row computes prompt tokens.
std::int64_t KvVerifier::decode_kv_bytes(std::span<const StepRow> rows) const noexcept {
  std::int64_t tokens = 0;
  for (const StepRow& row : rows) {
    if (row.sequence->length <= row.sequence->prefill_length) return 0;
    tokens += row.sequence->length;
  }
  return tokens * token_bytes_;
}

MaybeFailure KvVerifier::write_only(std::span<const StepRow> rows) {
  step_hashes_.clear();
  for (const StepRow& row : rows) {
    for (std::int32_t i = 0; i < row.tokens; ++i) {
      step_hashes_.push_back(row.sequence->stream.next());
    }
  }
  report_.kv_bytes_written += std::ssize(step_hashes_) * token_bytes_;
  Status status =
      memory_->begin({.hashes = step_hashes_, .decode_kv_bytes = decode_kv_bytes(rows)});
  if (status) status = memory_->write(layers_.first, layers_.count);
  return status ? MaybeFailure{} : unexpected("write_kv", status);
}

// ---- attention ---------------------------------------------------------------------------------

bool KvVerifier::is_turn(std::span<const StepRow> rows) {
  const std::int64_t step = steps_++;
  if (mode_ == AttentionMode::full && !memory_->compares()) return true;
  if (step < next_turn_) return false;
  std::int64_t work = 0;
  for (const StepRow& row : rows) {
    work +=
        row.sequence->length * row.tokens * num_q_heads_ * (shape_.head_dim_k + shape_.head_dim_v);
    if (work > kMaxSampledWork) return false;
  }
  next_turn_ = step + sample_every_;
  return true;
}

MaybeFailure KvVerifier::write_step(std::span<const StepRow> rows) {
  if (auto failure = write_only(rows)) return failure;
  const bool turn = is_turn(rows);
  if (!turn && !memory_->compares()) return std::nullopt;
  if (compares_all_there()) collect_queries(rows);
  const bool all = memory_->compares() || mode_ == AttentionMode::full;
  const std::int32_t end = all ? layers_.end() : sampled_layer() + 1;
  for (std::int32_t layer = all ? layers_.first : sampled_layer(); layer < end;) {
    const std::int32_t count = std::min(memory_->layers_at_a_time(), end - layer);
    if (auto failure = attend(rows, layer, count, turn)) return failure;
    layer += count;
  }
  if (turn) ++turns_;
  return std::nullopt;
}

MaybeFailure KvVerifier::attend(std::span<const StepRow> rows, std::int32_t first_layer,
                                std::int32_t num_layers, bool turn) {
  const Status attended = memory_->attend(first_layer, num_layers);
  if (attended.code == StatusCode::unsupported) {
    return Failure{RunEnd::bad_options,
                   {.found = fmt::format("attention of this shape: {}", describe(attended)),
                    .advice = "change the model shape, or use another device"}};
  }
  if (!attended) return unexpected("attend", attended);
  if (compares_all_there()) {
    if (auto failure = compare_there(rows, first_layer, num_layers)) return failure;
  }
  const bool all = mode_ == AttentionMode::full && !memory_->compares();
  const auto chosen = static_cast<std::size_t>(turns_) % rows.size();
  for (std::int32_t layer = first_layer; layer < first_layer + num_layers; ++layer) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const bool sampled = turn && layer == sampled_layer() && r == chosen;
      if (!all && !sampled) continue;
      if (auto failure = check_row(rows, r, layer)) return failure;
      // What was compared on the device is not counted twice.
      if (!compares_all_there()) report_.attention_rows += num_compared(rows[r]);
    }
  }
  return std::nullopt;
}

// The last tokens of each row, and the hashes of its sequence.
void KvVerifier::collect_queries(std::span<const StepRow> rows) {
  hashes_.clear();
  queries_.clear();
  query_rows_.clear();
  std::int64_t end_token = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto first_hash = std::ssize(hashes_);
    append_hashes(*rows[r].sequence, hashes_);
    end_token += rows[r].tokens;
    for (std::int32_t i = num_compared(rows[r]); i > 0; --i) {
      queries_.push_back({.first_hash = first_hash,
                          .seq_len = static_cast<std::int32_t>(rows[r].sequence->length - i + 1),
                          .q_token = static_cast<std::int32_t>(end_token - i)});
      query_rows_.push_back(r);
    }
  }
}

MaybeFailure KvVerifier::compare_there(std::span<const StepRow> rows, std::int32_t first_layer,
                                       std::int32_t num_layers) {
  const Status compared = memory_->compare_attention(hashes_, queries_, sums_);
  if (!compared) return unexpected("compare_attention", compared);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const double error = relative_error(sums_[i]);
    if (error <= report_.tolerance) {
      report_.max_error = std::max(report_.max_error, error);
      continue;
    }
    const std::size_t row = query_rows_[i % queries_.size()];
    const std::int32_t layer = first_layer + static_cast<std::int32_t>(i / queries_.size());
    if (auto failure = check_row(rows, row, layer)) return failure;
    return disagreement(fmt::format(
        "attention of request {} sample {}, length {}, layer {} is {:.3g} from exact attention",
        rows[row].sequence->stream.owner(), rows[row].sequence->stream.sample(),
        queries_[i % queries_.size()].seq_len, layer, error));
  }
  report_.attention_rows += std::ssize(queries_) * num_layers;
  return std::nullopt;
}

MaybeFailure KvVerifier::check_row(std::span<const StepRow> rows, std::size_t row,
                                   std::int32_t layer) {
  const WrittenSequence& sequence = *rows[row].sequence;
  const std::int64_t compared = num_compared(rows[row]);
  std::vector<std::uint64_t> hashes;
  append_hashes(sequence, hashes);
  const std::span<const float> wanted = derived_.attend(hashes, layer, compared);
  const std::int64_t first = first_token(rows, row) + rows[row].tokens - compared;
  const auto found = memory_->read_outputs(layer, first, compared);
  if (!found) return unexpected("read_outputs", found.status());
  const DType dtype = memory_->out_dtype();
  const auto size = wanted.size() / static_cast<std::size_t>(compared);
  for (std::size_t i = 0; i < static_cast<std::size_t>(compared); ++i) {
    const auto token = wanted.subspan(i * size, size);
    const std::byte* outputs = *found + static_cast<std::int64_t>(i * size) * bytes_of(dtype);
    const double error = relative_error(compare_rows(token, outputs, dtype));
    if (!(error <= report_.tolerance))
      return wrong_attention(sequence, layer, token, outputs, error);
    report_.max_error = std::max(report_.max_error, error);
  }
  return std::nullopt;
}

MaybeFailure KvVerifier::wrong_attention(const WrittenSequence& sequence, std::int32_t layer,
                                         std::span<const float> wanted, const std::byte* found,
                                         double error) {
  ++report_.failures;
  const std::int64_t at = worst_element(wanted, found, memory_->out_dtype());
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format(
           "attention of request {} sample {}, length {}, layer {} is {:.3g} from "
           "contiguous attention (relative L2 distance of all heads); worst is query head "
           "{}, element {}: {:.7g} instead of {:.7g}",
           sequence.stream.owner(), sequence.stream.sample(), sequence.length, layer, error,
           at / shape_.head_dim_v, at % shape_.head_dim_v,
           load_f32(found, memory_->out_dtype(), at), wanted[static_cast<std::size_t>(at)]),
       .expected = fmt::format("a distance of at most {:.3g}", report_.tolerance),
       .advice = "the KV of this sequence or the kernel that read it is wrong; report it"}};
}

MaybeFailure KvVerifier::disagreement(const std::string& what) {
  ++report_.failures;
  return Failure{RunEnd::check_failed,
                 {.found = what + ", says the comparison on the GPU; the host finds nothing wrong",
                  .expected = "the same answer from both",
                  .advice = "a comparison or the content on the GPU is wrong; report it"}};
}

// ---- bytes -------------------------------------------------------------------------------------

MaybeFailure KvVerifier::check_sequence(const WrittenSequence& sequence) {
  hashes_.clear();
  append_hashes(sequence, hashes_);
  blocks_.resize(static_cast<std::size_t>(cache_.manager().num_blocks()));
  const auto count = cache_.tables().blocks_of(sequence.sequence, blocks_);
  if (!count) return unexpected("blocks_of", count.status());
  const Status opened =
      memory_->open_sequence(std::span(blocks_).first(static_cast<std::size_t>(*count)), hashes_);
  if (!opened) return unexpected("open_sequence", opened);

  const auto sampled =
      layers_.first + static_cast<std::int32_t>(report_.sequences_compared % layers_.count);
  ++report_.sequences_compared;
  const bool full = mode_ == AttentionMode::full;
  const std::int64_t layer_bytes = sequence.length * shape_.num_kv_heads *
                                   (shape_.head_dim_k + shape_.head_dim_v) * bytes_of(shape_.dtype);
  for (std::int32_t layer = layers_.first; layer < layers_.end(); ++layer) {
    if (!full && layer != sampled) continue;
    if (compares_all_there()) {
      if (auto failure = check_layer_there(sequence, layer)) return failure;
    }
    if (!compares_all_there() || layer == sampled) {
      if (auto failure = check_layer(sequence, layer)) return failure;
    }
    report_.kv_bytes_compared += layer_bytes;
  }
  return std::nullopt;
}

MaybeFailure KvVerifier::check_layer_there(const WrittenSequence& sequence, std::int32_t layer) {
  const auto wrong = memory_->count_wrong_words(layer);
  if (!wrong) return unexpected("count_wrong_words", wrong.status());
  if (*wrong == 0) return std::nullopt;
  if (auto failure = check_layer(sequence, layer)) return failure;
  return disagreement(fmt::format("{} words of request {} sample {}, layer {} are wrong", *wrong,
                                  sequence.stream.owner(), sequence.stream.sample(), layer));
}

MaybeFailure KvVerifier::check_layer(const WrittenSequence& sequence, std::int32_t layer) {
  const auto content = memory_->read_layer(layer);
  if (!content) return unexpected("read_layer", content.status());
  derived_.derive_layer(hashes_, layer);
  for (const RowKind kind : {RowKind::key, RowKind::value}) {
    const bool is_key = kind == RowKind::key;
    const std::byte* found = is_key ? content->key : content->value;
    const std::byte* wanted = is_key ? derived_.keys() : derived_.values();
    const std::int64_t bytes = sequence.length * shape_.num_kv_heads *
                               (is_key ? shape_.head_dim_k : shape_.head_dim_v) *
                               bytes_of(shape_.dtype);
    if (std::memcmp(found, wanted, static_cast<std::size_t>(bytes)) == 0) continue;
    const auto at = std::mismatch(found, found + bytes, wanted).first - found;
    return wrong_byte(sequence, at, layer, kind, found[at], wanted[at]);
  }
  return std::nullopt;
}

MaybeFailure KvVerifier::wrong_byte(const WrittenSequence& sequence, std::int64_t offset,
                                    std::int32_t layer, RowKind kind, std::byte found,
                                    std::byte wanted) {
  ++report_.failures;
  const bool is_key = kind == RowKind::key;
  const std::int64_t row =
      std::int64_t{is_key ? shape_.head_dim_k : shape_.head_dim_v} * bytes_of(shape_.dtype);
  const std::int64_t token = offset / (row * shape_.num_kv_heads);
  const std::int64_t index = token / shape_.block_size_tokens;
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format(
           "{} of request {} sample {}, token {}, layer {}, head {}, byte {} is {:#04x} (block "
           "{} of the pool, entry {} of its table)",
           is_key ? "K" : "V", sequence.stream.owner(), sequence.stream.sample(), token, layer,
           offset / row % shape_.num_kv_heads, offset % row, static_cast<unsigned>(found),
           blocks_[static_cast<std::size_t>(index)].value, index),
       .expected =
           fmt::format("{:#04x}, what was written for this token", static_cast<unsigned>(wanted)),
       .advice = "a block was overwritten, mapped wrongly or not copied; report it"}};
}

}  // namespace kvarena::verify
