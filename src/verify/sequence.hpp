#pragma once

/// @file
/// The content of a sequence. The K and V of a token are a pure function of the whole prefix of its
/// sequence: a running hash over token ids, from which the elements are computed. Two sequences
/// with the same prefix have the same bytes. Another prefix, layer, head or position gives other
/// bytes. `DerivedContent` derives the right K, V and queries again on the host, from the
/// description of the sequence; no part comes from a cache or a device.

#include "verify/content_pattern.hpp"

#include "kvarena/base/ids.hpp"
#include "kvarena/base/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::verify {

/// The description from which the tokens of a sequence are derived. A plain value.
struct SequenceContent {
  std::int64_t owner = 0;  ///< id of the engine's request, for messages and for its own tokens
  std::int64_t prompt_tokens = 0;  ///< tokens of the prompt; later tokens belong to one sample
  std::int32_t block_tokens =
      0;  ///< prompt tokens of the block of each id; 0 when there are no ids
  std::vector<std::int64_t> blocks;  ///< equal ids mean equal prompts up to the end of that block
  /// The tenant. Tokens do not depend on it, K and V do: so bytes of another tenant are seen.
  std::uint64_t salt = 0;
};

/// The tokens of one sequence, from first to last, as prefix hashes. Prompt tokens come from the
/// ids of the content's blocks, and from the owner where there are no ids. Tokens behind the prompt
/// come from the owner and the sample. A value that is cheap to copy. Any thread.
class TokenStream {
 public:
  TokenStream() = default;
  /// Makes a stream at token 0.
  TokenStream(std::shared_ptr<const SequenceContent> content, std::int32_t sample) noexcept
      : content_(std::move(content)), sample_(sample) {
    if (content_ != nullptr) hash_ ^= mix(content_->salt);
  }

  /// Returns the hash of the prefix that ends with the next token, and moves on by one token.
  std::uint64_t next() noexcept;
  /// Returns the id of the token at a position, as an engine has it. Equal contents have equal ids.
  std::int32_t token(std::int64_t position) const noexcept {
    return static_cast<std::int32_t>(mix(token_at(position)) >> 33);
  }
  /// Returns the hash of the prefix of all tokens passed so far.
  std::uint64_t hash() const noexcept { return hash_; }
  /// Returns the number of tokens passed so far.
  std::int64_t position() const noexcept { return position_; }
  /// Returns a stream with the same tokens so far that continues as another sample.
  TokenStream as_sample(std::int32_t sample) const noexcept {
    TokenStream other = *this;
    other.sample_ = sample;
    return other;
  }
  /// Returns the same stream at token 0.
  TokenStream from_start() const noexcept { return {content_, sample_}; }

  std::int64_t owner() const noexcept { return content_->owner; }
  std::int32_t sample() const noexcept { return sample_; }

 private:
  std::uint64_t token_at(std::int64_t position) const noexcept;

  std::shared_ptr<const SequenceContent> content_;
  std::int32_t sample_ = 0;
  std::int64_t position_ = 0;
  std::uint64_t hash_ = 0x6b766172656e61ULL;
};

/// A sequence whose K and V are written and verified. Plain data of an engine.
struct WrittenSequence {
  SequenceId sequence = kNoSequence;  ///< in the tables; kNoSequence when it has none
  std::int64_t length = 0;            ///< tokens in the tables
  std::int64_t prefill_length = 0;    ///< tokens to prefill; later tokens are decoded
  TokenStream stream;                 ///< positioned behind the written tokens

  /// Returns whether its prefill is done.
  bool decodes() const noexcept { return length >= prefill_length; }
};

/// A sequence and the tokens by which it grew in a step.
struct StepRow {
  WrittenSequence* sequence = nullptr;
  std::int32_t tokens = 0;
};

/// Consecutive layers of a model.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t count = 0;

  /// Returns the layer past the last.
  std::int32_t end() const noexcept { return first + count; }
};

/// Appends to `hashes` the prefix hashes of the sequence's tokens in the tables. O(tokens).
void append_hashes(const WrittenSequence& sequence, std::vector<std::uint64_t>& hashes);

/// Derives content and owns the last result. One thread at a time.
class DerivedContent {
 public:
  /// With `value_in_key`, V is the leading head_dim_v elements of each head of K: a latent.
  DerivedContent(const UniformLayoutOptions& shape, std::int32_t num_q_heads,
                 bool value_in_key = false)
      : shape_(shape), num_q_heads_(num_q_heads), value_in_key_(value_in_key) {}

  /// Derives keys() and values() of one layer: [hashes, num_kv_heads, head_dim] each.
  void derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer);
  /// Computes attention in double precision for the last `queries` tokens over all tokens in one
  /// layer. Derives the layer too. Returns [queries, num_q_heads, head_dim_v], valid until the next
  /// call.
  std::span<const float> attend(std::span<const std::uint64_t> hashes, std::int32_t layer,
                                std::int64_t queries);

  const std::byte* keys() const noexcept { return keys_.data(); }
  const std::byte* values() const noexcept { return values_.data(); }

 private:
  void take_values_from_keys();

  UniformLayoutOptions shape_;
  std::int32_t num_q_heads_;
  bool value_in_key_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::byte> queries_;  // [queries, num_q_heads, head_dim_k]
  std::vector<float> outputs_;
};

}  // namespace kvarena::verify
