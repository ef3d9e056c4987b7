#include "verify/sequence.hpp"

#include "verify/content_pattern.hpp"

#include <bit>

namespace kvarena::verify {

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

}  // namespace kvarena::verify
