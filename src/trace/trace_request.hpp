#pragma once

/// @file
/// `TraceRequest`: one request of a trace, in the units that replay uses. A plain value.

#include <cstdint>
#include <vector>

namespace kvarena::trace {

/// The most prompt tokens of a request that a reader accepts.
inline constexpr std::int64_t kMaxInputTokens = std::int64_t{1} << 24;
/// The most output tokens that a reader accepts: an engine makes them step by step.
inline constexpr std::int64_t kMaxOutputTokens = std::int64_t{1} << 20;
/// Latest time stamp that a reader accepts, microseconds (about three years).
inline constexpr std::int64_t kMaxTraceMicroseconds = 100'000'000'000'000;

/// One request. Ids in `prefix_blocks` name the whole prompt up to and including their block, so
/// two requests that share an id share all tokens before it too.
struct TraceRequest {
  std::int64_t index = 0;                   ///< position in the file, from 0
  std::int64_t arrival_us = 0;              ///< microseconds since the first request
  std::int64_t input_tokens = 0;            ///< prompt, 1 .. kMaxInputTokens
  std::int64_t output_tokens = 0;           ///< to be generated, 0 .. kMaxOutputTokens
  std::int32_t prefix_block_tokens = 0;     ///< tokens each id stands for; 0 when there are no ids
  std::vector<std::int64_t> prefix_blocks;  ///< ids of the prompt's blocks, from its start
  std::int64_t session = -1;                ///< conversation it belongs to, or -1
  std::int64_t turn = -1;                   ///< place in the conversation, from 1, or -1
};

}  // namespace kvarena::trace
