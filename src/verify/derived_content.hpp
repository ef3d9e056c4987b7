#pragma once

/// @file
/// `DerivedContent`: the right K, V and queries of a sequence, derived again on the host from the
/// description of the sequence. No part comes from a cache or a device. One thread at a time.

#include "verify/content_pattern.hpp"
#include "verify/sequence.hpp"

#include "kvarena/base/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::verify {

/// Appends to `hashes` the prefix hashes of the sequence's tokens in the tables. O(tokens).
void append_hashes(const WrittenSequence& sequence, std::vector<std::uint64_t>& hashes);

/// Derives content and owns the last result.
class DerivedContent {
 public:
  DerivedContent(const UniformLayoutOptions& shape, std::int32_t num_q_heads)
      : shape_(shape), num_q_heads_(num_q_heads) {}

  /// Derives K and V of one layer: [hashes, num_kv_heads, head_dim] each.
  void derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer);
  /// Computes attention in double precision for the last `queries` tokens over all tokens in one
  /// layer. Derives the layer too. Returns [queries, num_q_heads, head_dim_v], valid until the next
  /// call.
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
