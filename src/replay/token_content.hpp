#pragma once

/// @file
/// The K and V of a token as a pure function of the whole prefix of its sequence: a running hash
/// over token ids, and elements expanded from it, straight in the element type. Two sequences with
/// the same prefix have the same bytes, any other prefix, layer, head or position has others.
/// Nothing here reads a cache: what was written can be derived again without it. Any thread.

#include "replay/content_pattern.hpp"
#include "replay/trace_request.hpp"

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvarena::replay {

/// The tokens of one sequence of a request, first to last, as prefix hashes. Prompt tokens come
/// from the trace's block ids (shared between requests), the rest from the request, output tokens
/// also from the sample. A cheap value.
class TokenStream {
 public:
  TokenStream() = default;
  /// At token 0. Shares ownership of the request.
  TokenStream(std::shared_ptr<const TraceRequest> request, std::int32_t sample) noexcept
      : request_(std::move(request)), sample_(sample) {}

  /// The hash of the prefix that ends with the next token; moves on by one.
  std::uint64_t next() noexcept;
  /// Tokens passed so far.
  std::int64_t position() const noexcept { return position_; }
  /// The same tokens so far, continued as another sample of the request.
  TokenStream as_sample(std::int32_t sample) const noexcept {
    TokenStream other = *this;
    other.sample_ = sample;
    return other;
  }

 private:
  std::uint64_t token_at(std::int64_t position) const noexcept;

  std::shared_ptr<const TraceRequest> request_;
  std::int32_t sample_ = 0;
  std::int64_t position_ = 0;
  std::uint64_t hash_ = 0x6b766172656e61ULL;
};

/// Fills `count` elements of (prefix, layer, kind, head) at `out`. K and V have magnitudes in
/// [1/8, 1/2), queries in [2, 8); every value is exact in `dtype` (f32, f16 or bf16).
void fill_row(DType dtype, std::uint64_t prefix_hash, std::int32_t layer, RowKind kind,
              std::int32_t head, std::int32_t count, std::byte* out) noexcept;

}  // namespace kvarena::replay
