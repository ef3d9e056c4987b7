#pragma once

/// @file
/// `TraceRequest`: one request of a trace, in the units that replay uses. A plain value.

#include <cstdint>
#include <vector>

namespace kvarena::trace {

/// Largest number of prompt or output tokens of one request that a reader accepts: both together
/// fit a sequence length.
inline constexpr std::int64_t kMaxTraceTokens = (std::int64_t{1} << 30) - 1;
/// Latest time stamp that a reader accepts, microseconds (about three years).
inline constexpr std::int64_t kMaxTraceMicroseconds = 100'000'000'000'000;

/// One request. Ids in `prefix_blocks` name the whole prompt up to and including their block, so
/// two requests that share an id share all tokens before it too.
struct TraceRequest {
  std::int64_t index = 0;                   ///< position in the file, from 0
  std::int64_t arrival_us = 0;              ///< microseconds since the first request
  std::int64_t input_tokens = 0;            ///< prompt, 1 .. kMaxTraceTokens
  std::int64_t output_tokens = 0;           ///< to be generated, 0 .. kMaxTraceTokens
  std::int32_t prefix_block_tokens = 0;     ///< tokens each id stands for; 0 when there are no ids
  std::vector<std::int64_t> prefix_blocks;  ///< ids of the prompt's blocks, from its start
  std::int64_t session = -1;                ///< conversation it belongs to, or -1
  std::int64_t turn = -1;                   ///< place in the conversation, from 1, or -1
};

}  // namespace kvarena::trace
