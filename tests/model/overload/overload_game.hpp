#pragma once

/// @file
/// An engine in overload, and two pools for it: block tables with groups, and an allocator that is
/// exact to the byte. All requests wait from the beginning, in the order of their trace. A step
/// decodes 16 tokens of each running sequence. A prompt enters when all of its memory can be had
/// with 1 % of the pool left. A sequence that cannot grow preempts the youngest, which starts over.
/// At most 1,024 sequences run. A step's own tokens are counted by nobody: tokens come in pieces of
/// a block, so that a window gives up a block before it takes the next but one.

#include "kvarena/base/choose_pages.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvarena::model {

/// The pool of the comparison.
inline constexpr std::int64_t kOverloadPoolBytes = 40'000'000'000;

/// The tokens of a request.
struct OverloadRequest {
  std::int64_t prompt = 0;
  std::int64_t output = 0;
};

/// The memory of an engine. A sequence is a number that the engine chooses.
class OverloadPool {
 public:
  virtual ~OverloadPool() = default;
  /// Takes what a prompt needs, with 1 % of the pool left; or nothing and returns false.
  virtual bool admit(std::size_t sequence, std::int64_t tokens) = 0;
  /// Grows a sequence to `tokens` tokens, or returns false. The sequence may then only end.
  virtual bool grow(std::size_t sequence, std::int64_t tokens) = 0;
  /// Ends a sequence.
  virtual void end(std::size_t sequence) = 0;
};

/// Returns a pool of bytes without blocks.
std::unique_ptr<OverloadPool> exact_pool(std::span<const PagedGroup> groups);
/// Returns a pool of block tables in pages that choose_pages chooses.
std::unique_ptr<OverloadPool> paged_pool(std::span<const PagedGroup> groups,
                                         std::size_t num_sequences);

/// Bytes that the next token of a sequence can still read.
std::int64_t readable_bytes(std::span<const PagedGroup> groups, std::int64_t tokens) noexcept;

/// What a run came to.
struct OverloadResult {
  std::int64_t steps = 0;
  double waste = 0.0;  ///< 1 - readable bytes / pool, mean over steps in which a request waited for
                       ///< memory
  std::int64_t preemptions = 0;
  bool is_complete = false;  ///< every request ended
};

/// Plays the requests.
OverloadResult play_overload(std::span<const PagedGroup> groups, OverloadPool& pool,
                             std::span<const OverloadRequest> requests);

}  // namespace kvarena::model
