#pragma once

/// @file
/// `TraceRequest`: one request of a trace, in the units that replay uses. A plain value.

#include <cstdint>
#include <vector>

namespace kvarena::trace {

/// The most prompt tokens of a request that a reader accepts.
inline constexpr std::int64_t kMaxInputTokens = std::int64_t{1} << 24;
/// The most output tokens of a request that a reader accepts. An engine makes them step by step.
inline constexpr std::int64_t kMaxOutputTokens = std::int64_t{1} << 20;
/// The latest time stamp that a reader accepts, in microseconds (about three years).
inline constexpr std::int64_t kMaxTraceMicroseconds = 100'000'000'000'000;

/// One request. An id in `prefix_blocks` stands for the whole prompt up to and including its block.
/// Two requests with the same id therefore share all tokens before it too.
struct TraceRequest {
  std::int64_t index = 0;          ///< position in the file, from 0
  std::int64_t arrival_us = 0;     ///< microseconds since the first request
  std::int64_t input_tokens = 0;   ///< tokens of the prompt, 1 .. kMaxInputTokens
  std::int64_t output_tokens = 0;  ///< tokens to generate, 0 .. kMaxOutputTokens
  std::int32_t prefix_block_tokens =
      0;  ///< tokens of the block of each id; 0 when there are no ids
  std::vector<std::int64_t> prefix_blocks;  ///< ids of the prompt's blocks, from its start
  std::int64_t session = -1;                ///< the conversation of the request, or -1
  std::int64_t turn = -1;                   ///< its place in the conversation, from 1, or -1
  /// The tenant: a number from 1 for each different value of the salt column, in the order in which
  /// they come; 0 without a salt column.
  std::uint64_t salt = 0;
};

}  // namespace kvarena::trace
