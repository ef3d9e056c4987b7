#include "replay/verifier.hpp"

#include "kernels/reference/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvarena::replay {
namespace {

// Query tokens of a chunk that are compared; its K and V are all compared when the sequence ends.
constexpr std::int64_t kComparedQueries = 4;
// A step whose attention would cost more multiplications is left to the next turn in sample mode.
constexpr std::int64_t kMaxSampledWork = std::int64_t{1} << 31;
// Outputs are weighted means of values below 1/2, in f32; the cache adds in f32, the reference in
// f64.
constexpr double kTolerance = 2e-5;

}  // namespace

KvVerifier::KvVerifier(const ReplayOptions& options, EnginePool& pool)
    : mode_(options.attention.mode),
      shape_(options.attention.shape),
      num_q_heads_(options.attention.num_q_heads),
      sample_every_(std::max<std::int64_t>(1, options.attention.sample_every)),
      pool_(pool),
      cache_(*pool.cache()),
      writer_(cache_, shape_, options.limits.max_batched_tokens) {
  report_.tolerance = kTolerance;
}

VerificationReport KvVerifier::report() const {
  VerificationReport report = report_;
  report.kv_bytes_written = writer_.bytes_written();
  return report;
}

bool KvVerifier::is_turn(std::span<const StepRow> rows) {
  const std::int64_t step = steps_++;
  if (mode_ == AttentionMode::full) return true;
  if (step < next_turn_) return false;
  std::int64_t work = 0;
  for (const StepRow& row : rows) {
    work += row.job->length * row.tokens * num_q_heads_ * (shape_.head_dim_k + shape_.head_dim_v);
    if (work > kMaxSampledWork) return false;
  }
  next_turn_ = step + sample_every_;
  return true;
}

MaybeFailure KvVerifier::write_step(std::span<const StepRow> rows) {
  if (Status status = writer_.write(rows); !status) return unexpected("write_kv", status);
  if (!is_turn(rows)) return std::nullopt;
  const bool full = mode_ == AttentionMode::full;
  const auto layers = static_cast<std::int32_t>(shape_.num_layers);
  const auto sampled = static_cast<std::int32_t>(turns_ % layers);
  for (std::int32_t layer = full ? 0 : sampled; layer < (full ? layers : sampled + 1); ++layer) {
    if (auto failure = attend(rows, layer)) return failure;
  }
  ++turns_;
  return std::nullopt;
}

MaybeFailure KvVerifier::attend(std::span<const StepRow> rows, std::int32_t layer) {
  const auto hashes = writer_.hashes();
  derive_queries(hashes, layer, queries_);
  const std::size_t heads = hashes.size() * static_cast<std::size_t>(num_q_heads_);
  outputs_.assign(heads * static_cast<std::size_t>(shape_.head_dim_v), std::nanf(""));
  AttendArgs args;
  args.layer = layer;
  args.q = queries_.data();
  args.q_dtype = shape_.dtype;
  args.out = outputs_.data();
  args.out_dtype = DType::f32;
  if (Status status = cache_.attend(args); !status) return unexpected("attend", status);
  if (Status status = cache_.synchronize(); !status) return unexpected("synchronize", status);

  const auto chosen = static_cast<std::size_t>(turns_) % rows.size();
  std::int64_t first_token = 0;
  for (std::size_t r = 0; r < rows.size(); first_token += rows[r++].tokens) {
    if (mode_ == AttentionMode::sample && r != chosen) continue;
    if (auto failure = check_row(rows[r], first_token, layer)) return failure;
  }
  return std::nullopt;
}

std::vector<std::uint64_t> KvVerifier::derive_hashes(const Job& job) const {
  TokenStream stream(job.request->trace, job.sample);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(job.length));
  for (std::uint64_t& hash : hashes) hash = stream.next();
  return hashes;
}

void KvVerifier::derive_queries(std::span<const std::uint64_t> hashes, std::int32_t layer,
                                std::vector<std::byte>& queries) const {
  const std::int64_t row_bytes = std::int64_t{shape_.head_dim_k} * bytes_of(shape_.dtype);
  const std::size_t rows = hashes.size() * static_cast<std::size_t>(num_q_heads_);
  queries.resize(rows * static_cast<std::size_t>(row_bytes));
  std::byte* query = queries.data();
  for (const std::uint64_t hash : hashes) {
    for (std::int32_t head = 0; head < num_q_heads_; ++head, query += row_bytes) {
      fill_row(shape_.dtype, hash, layer, RowKind::query, head, shape_.head_dim_k, query);
    }
  }
}

void KvVerifier::derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer) {
  const std::int64_t key_row = std::int64_t{shape_.head_dim_k} * bytes_of(shape_.dtype);
  const std::int64_t value_row = std::int64_t{shape_.head_dim_v} * bytes_of(shape_.dtype);
  const std::size_t heads = hashes.size() * static_cast<std::size_t>(shape_.num_kv_heads);
  keys_.resize(heads * static_cast<std::size_t>(key_row));
  values_.resize(heads * static_cast<std::size_t>(value_row));
  std::byte* key = keys_.data();
  std::byte* value = values_.data();
  for (const std::uint64_t hash : hashes) {
    for (std::int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      fill_row(shape_.dtype, hash, layer, RowKind::key, head, shape_.head_dim_k, key);
      fill_row(shape_.dtype, hash, layer, RowKind::value, head, shape_.head_dim_v, value);
      key += key_row;
      value += value_row;
    }
  }
}

MaybeFailure KvVerifier::check_row(const StepRow& row, std::int64_t first_out_token,
                                   std::int32_t layer) {
  const auto hashes = derive_hashes(*row.job);
  derive_layer(hashes, layer);
  const std::int64_t compared = std::min<std::int64_t>(row.tokens, kComparedQueries);
  std::vector<std::byte> queries;
  derive_queries(std::span(hashes).last(static_cast<std::size_t>(compared)), layer, queries);
  const std::int64_t out_row = std::int64_t{num_q_heads_} * shape_.head_dim_v;
  std::vector<float> wanted(static_cast<std::size_t>(compared * out_row));
  kernels::ContiguousAttentionParams params{};
  params.key = keys_.data();
  params.value = values_.data();
  params.q = queries.data();
  params.out = wanted.data();
  params.seq_len = row.job->length;
  params.num_q_tokens = compared;
  params.num_q_heads = num_q_heads_;
  params.num_kv_heads = shape_.num_kv_heads;
  params.head_dim_k = shape_.head_dim_k;
  params.head_dim_v = shape_.head_dim_v;
  params.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim_k));
  params.kv_dtype = params.q_dtype = shape_.dtype;
  params.out_dtype = DType::f32;
  kernels::reference::attention_contiguous(params);

  const float* found = outputs_.data() + (first_out_token + row.tokens - compared) * out_row;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(double{found[i]} - double{wanted[i]});
    if (error <= kTolerance) {
      report_.max_error = std::max(report_.max_error, error);
      continue;
    }
    ++report_.failures;
    const auto at = static_cast<std::int64_t>(i);
    return ReplayFailure{
        ReplayEnd::check_failed,
        fmt::format(
            "attention of request {} sample {}, length {}, layer {}, query head {}, element "
            "{} is {:.7g}, contiguous attention gives {:.7g}",
            row.job->request->trace->index, row.job->sample, row.job->length, layer,
            at % out_row / shape_.head_dim_v, at % shape_.head_dim_v, found[i], wanted[i]),
        fmt::format("a difference of at most {}", kTolerance),
        "the KV of this sequence or the kernel that read it is wrong; report it"};
  }
  report_.attention_rows += compared;
  return std::nullopt;
}

MaybeFailure KvVerifier::check_sequence(const Job& job) {
  if (Status status = cache_.synchronize(); !status) return unexpected("synchronize", status);
  const auto layers = static_cast<std::int32_t>(shape_.num_layers);
  const bool full = mode_ == AttentionMode::full;
  const auto sampled = static_cast<std::int32_t>(report_.sequences_compared % layers);
  ++report_.sequences_compared;
  return check_bytes(job, full ? 0 : sampled, full ? layers : sampled + 1);
}

MaybeFailure KvVerifier::check_bytes(const Job& job, std::int32_t first_layer,
                                     std::int32_t end_layer) {
  blocks_.resize(static_cast<std::size_t>(pool_.manager().num_blocks()));
  const auto count = pool_.tables().blocks_of(job.sequence, blocks_);
  if (!count) return unexpected("blocks_of", count.status());
  const auto hashes = derive_hashes(job);
  const std::int64_t block_size = shape_.block_size_tokens;
  const Arena& arena = cache_.arena();
  for (std::int32_t layer = first_layer; layer < end_layer; ++layer) {
    derive_layer(hashes, layer);
    const KvLayerView view = *arena.layer_view(layer);
    for (const RowKind kind : {RowKind::key, RowKind::value}) {
      const PlaneView& plane = kind == RowKind::key ? view.key : view.value;
      const std::byte* wanted = kind == RowKind::key ? keys_.data() : values_.data();
      const std::int64_t bytes = std::int64_t{plane.head_dim} * bytes_of(plane.dtype);
      for (std::int64_t token = 0; token < job.length; ++token) {
        const BlockId block = blocks_[static_cast<std::size_t>(token / block_size)];
        const std::byte* found =
            plane.base + block.value * plane.block_stride + token % block_size * plane.token_stride;
        for (std::int32_t head = 0; head < plane.num_heads; ++head) {
          if (std::memcmp(found, wanted, static_cast<std::size_t>(bytes)) != 0) {
            return wrong_byte(job, token, layer, kind, head, found, wanted, bytes);
          }
          found += plane.head_stride;
          wanted += bytes;
        }
      }
      report_.kv_bytes_compared += job.length * plane.num_heads * bytes;
    }
  }
  return std::nullopt;
}

MaybeFailure KvVerifier::wrong_byte(const Job& job, std::int64_t token, std::int32_t layer,
                                    RowKind kind, std::int32_t head, const std::byte* found,
                                    const std::byte* wanted, std::int64_t bytes) {
  ++report_.failures;
  const auto at = std::mismatch(found, found + bytes, wanted).first - found;
  const std::int64_t index = token / shape_.block_size_tokens;
  return ReplayFailure{
      ReplayEnd::check_failed,
      fmt::format(
          "{} of request {} sample {}, token {}, layer {}, head {}, byte {} is {:#04x} (block "
          "{} of the pool, entry {} of its table)",
          kind == RowKind::key ? "K" : "V", job.request->trace->index, job.sample, token, layer,
          head, at, static_cast<unsigned>(found[at]),
          blocks_[static_cast<std::size_t>(index)].value, index),
      fmt::format("{:#04x}, what was written for this token", static_cast<unsigned>(wanted[at])),
      "a block was overwritten, mapped wrongly or not copied; report it"};
}

}  // namespace kvarena::replay
