#pragma once

/// @file
/// The content of a sequence. The K and V of a token are a pure function of the whole prefix of its
/// sequence: a running hash over token ids, from which the elements are computed. Two sequences
/// with the same prefix have the same bytes. Another prefix, layer, head or position gives other
/// bytes. Nothing here reads a cache, so written bytes can be derived again without the cache.

#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <memory>
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
};

/// The tokens of one sequence, from first to last, as prefix hashes. Prompt tokens come from the
/// ids of the content's blocks, and from the owner where there are no ids. Tokens behind the prompt
/// come from the owner and the sample. A value that is cheap to copy. Any thread.
class TokenStream {
 public:
  TokenStream() = default;
  /// Makes a stream at token 0.
  TokenStream(std::shared_ptr<const SequenceContent> content, std::int32_t sample) noexcept
      : content_(std::move(content)), sample_(sample) {}

  /// Returns the hash of the prefix that ends with the next token, and moves on by one token.
  std::uint64_t next() noexcept;
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

}  // namespace kvarena::verify
