#include "verify/sequence.hpp"

#include "kernels/reference/attention.hpp"
#include "verify/content_pattern.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvarena::verify {
namespace {

void fill_rows(std::span<const std::uint64_t> hashes, DType dtype, std::int32_t layer, RowKind kind,
               std::int32_t num_heads, std::int32_t head_dim, std::vector<std::byte>& rows) {
  const std::int64_t row_bytes = std::int64_t{head_dim} * bytes_of(dtype);
  rows.resize(hashes.size() * static_cast<std::size_t>(num_heads * row_bytes));
  std::byte* row = rows.data();
  for (const std::uint64_t hash : hashes) {
    for (std::int32_t head = 0; head < num_heads; ++head, row += row_bytes) {
      fill_row(dtype, hash, layer, kind, head, head_dim, row);
    }
  }
}

}  // namespace

std::uint64_t TokenStream::token_at(std::int64_t position) const noexcept {
  const SequenceContent& content = *content_;
  if (position < content.prompt_tokens && content.block_tokens > 0) {
    const auto block = static_cast<std::size_t>(position / content.block_tokens);
    if (block < content.blocks.size()) {
      const auto id = static_cast<std::uint64_t>(content.blocks[block]);
      return id * kGolden + static_cast<std::uint64_t>(position % content.block_tokens);
    }
  }
  const bool output = position >= content.prompt_tokens;
  const auto writer = static_cast<std::uint64_t>(content.owner) * 2 + (output ? 1 : 0);
  const auto sample = output ? static_cast<std::uint64_t>(sample_) : 0;
  return mix(writer * kGolden + sample) ^ static_cast<std::uint64_t>(position);
}

std::uint64_t TokenStream::next() noexcept {
  hash_ = (std::rotl(hash_, 23) ^ token_at(position_)) * kGolden;
  hash_ ^= hash_ >> 29;
  ++position_;
  return hash_;
}

void append_hashes(const WrittenSequence& sequence, std::vector<std::uint64_t>& hashes) {
  TokenStream stream = sequence.stream.from_start();
  for (std::int64_t i = 0; i < sequence.length; ++i) hashes.push_back(stream.next());
}

void DerivedContent::derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer) {
  fill_rows(hashes, shape_.dtype, layer, RowKind::key, shape_.num_kv_heads, shape_.head_dim_k,
            keys_);
  if (value_in_key_) return take_values_from_keys();
  fill_rows(hashes, shape_.dtype, layer, RowKind::value, shape_.num_kv_heads, shape_.head_dim_v,
            values_);
}

void DerivedContent::take_values_from_keys() {
  const std::int64_t key_bytes = std::int64_t{shape_.head_dim_k} * bytes_of(shape_.dtype);
  const std::int64_t value_bytes = std::int64_t{shape_.head_dim_v} * bytes_of(shape_.dtype);
  const std::int64_t rows = std::ssize(keys_) / key_bytes;
  values_.resize(static_cast<std::size_t>(rows * value_bytes));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(keys_.data() + row * key_bytes, value_bytes, values_.data() + row * value_bytes);
  }
}

std::span<const float> DerivedContent::attend(std::span<const std::uint64_t> hashes,
                                              std::int32_t layer, std::int64_t queries) {
  derive_layer(hashes, layer);
  fill_rows(hashes.last(static_cast<std::size_t>(queries)), shape_.dtype, layer, RowKind::query,
            num_q_heads_, shape_.head_dim_k, queries_);
  outputs_.resize(static_cast<std::size_t>(queries * num_q_heads_ * shape_.head_dim_v));
  kernels::ContiguousAttentionParams params{};
  params.key = keys_.data();
  params.value = values_.data();
  params.q = queries_.data();
  params.out = outputs_.data();
  params.seq_len = std::ssize(hashes);
  params.num_q_tokens = queries;
  params.num_q_heads = num_q_heads_;
  params.num_kv_heads = shape_.num_kv_heads;
  params.head_dim_k = shape_.head_dim_k;
  params.head_dim_v = shape_.head_dim_v;
  params.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim_k));
  params.kv_dtype = params.q_dtype = shape_.dtype;
  params.out_dtype = DType::f32;
  kernels::reference::attention_contiguous(params);
  return outputs_;
}

}  // namespace kvarena::verify
