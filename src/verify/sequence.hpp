#pragma once

/// @file
/// A sequence as far as its content goes. The K and V of a token are a pure function of the whole
/// prefix of its sequence: a running hash over token ids, and elements expanded from it. Two
/// sequences with the same prefix have the same bytes, any other prefix, layer, head or position
/// has others. Nothing here reads a cache: what was written can be derived again without it.

#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvarena::verify {

/// What the tokens of a sequence follow from. A plain value.
struct SequenceContent {
  std::int64_t owner = 0;  ///< the engine's request: messages name it. Its own tokens differ
  std::int64_t prompt_tokens = 0;    ///< those behind them belong to one sample
  std::int32_t block_tokens = 0;     ///< prompt tokens each id stands for; 0 when there are no ids
  std::vector<std::int64_t> blocks;  ///< equal ids: equal prompts up to the end of that block
};

/// The tokens of one sequence, first to last, as prefix hashes. Prompt tokens come from the ids of
/// the content's blocks, the rest from its owner, those behind the prompt also from the sample. A
/// cheap value. Any thread.
class TokenStream {
 public:
  TokenStream() = default;
  /// At token 0.
  TokenStream(std::shared_ptr<const SequenceContent> content, std::int32_t sample) noexcept
      : content_(std::move(content)), sample_(sample) {}

  /// The hash of the prefix that ends with the next token; moves on by one.
  std::uint64_t next() noexcept;
  /// Tokens passed so far.
  std::int64_t position() const noexcept { return position_; }
  /// The same tokens so far, continued as another sample.
  TokenStream as_sample(std::int32_t sample) const noexcept {
    TokenStream other = *this;
    other.sample_ = sample;
    return other;
  }
  /// At token 0 again.
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
  SequenceId sequence = kNoSequence;  ///< in the tables, while it has any
  std::int64_t length = 0;            ///< tokens in the tables
  std::int64_t prefill_length = 0;    ///< tokens to prefill; behind them it decodes
  TokenStream stream;                 ///< behind the tokens that were written

  /// Whether its prefill is done.
  bool decodes() const noexcept { return length >= prefill_length; }
};

/// A sequence and the tokens by which it grew in a step.
struct StepRow {
  WrittenSequence* sequence = nullptr;
  std::int32_t tokens = 0;
};

/// Some layers of a model, one after the other.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t count = 0;

  /// The layer past the last.
  std::int32_t end() const noexcept { return first + count; }
};

}  // namespace kvarena::verify
