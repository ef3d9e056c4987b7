#pragma once

/// @file
/// `ExtraKey`: what the content of a block depends on apart from its tokens. A plain value.

#include <cstdint>

namespace kvarena {

/// Something apart from the tokens that the content depends on, such as an adapter or an image. It
/// counts for the block that has its first token, and for all blocks behind that one. Equal ids
/// that begin at different tokens are different.
struct ExtraKey {
  std::uint64_t key = 0;         ///< the engine's id of it
  std::int64_t first_token = 0;  ///< index of the first token that depends on it, >= 0
};

}  // namespace kvarena
