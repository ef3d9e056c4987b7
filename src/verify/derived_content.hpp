#pragma once

/// @file
/// `DerivedContent`: K, V and queries of a sequence as they have to be, derived again on the host
/// from its description alone. Nothing of it comes from a cache or a device. One thread at a time.

#include "verify/content_pattern.hpp"
#include "verify/sequence.hpp"

#include "kvarena/base/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::verify {

/// Appends the prefix hashes of all tokens in the tables. O(tokens).
void append_hashes(const WrittenSequence& sequence, std::vector<std::uint64_t>& hashes);

/// Owns what was derived last.
class DerivedContent {
 public:
  DerivedContent(const UniformLayoutOptions& shape, std::int32_t num_q_heads)
      : shape_(shape), num_q_heads_(num_q_heads) {}

  /// K and V of one layer: [hashes, num_kv_heads, head_dim] each.
  void derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer);
  /// Attention, in double precision, of the last `queries` tokens over all of them in one layer.
  /// Derives that layer. [queries, num_q_heads, head_dim_v], valid until the next call.
  std::span<const float> attend(std::span<const std::uint64_t> hashes, std::int32_t layer,
                                std::int64_t queries);

  /// As derived last.
  const std::byte* keys() const noexcept { return keys_.data(); }
  /// As derived last.
  const std::byte* values() const noexcept { return values_.data(); }

 private:
  UniformLayoutOptions shape_;
  std::int32_t num_q_heads_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::byte> queries_;  // [queries, num_q_heads, head_dim_k]
  std::vector<float> outputs_;
};

}  // namespace kvarena::verify
