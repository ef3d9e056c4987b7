#pragma once

/// @file
/// `PrefixEvent`: what happens to the blocks of a prefix cache that can be found. The events since
/// create, or since the last `cleared`, are enough to rebuild elsewhere which prefixes are cached:
/// for a router that sends requests where their prefix is. With groups of layers they tell of the
/// blocks of the registered group, which keeps all tokens. What other groups keep is not told: an
/// index that is rebuilt knows PrefixMatch::registered_tokens of each prompt, and
/// PrefixMatch::tokens can be less. Plain values.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/blocktable/extra_key.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

enum class PrefixRemoval : std::uint8_t;

/// What has happened.
enum class PrefixEventKind : std::uint8_t {
  stored,   ///< a block was published
  removed,  ///< a published block is not registered any more
  cleared,  ///< all blocks have gone at once (forget_all)
};

/// Returns "stored", "removed" or "cleared".
KVARENA_EXPORT std::string_view name_of(PrefixEventKind kind) noexcept;

/// One event. The spans are borrowed for the call of the sink.
struct PrefixEvent {
  std::uint64_t number = 0;                        ///< 1, 2, 3 ... without a gap
  PrefixEventKind kind = PrefixEventKind::stored;  ///< what has happened
  PrefixRemoval removal{};                         ///< removed: the cause
  BlockId block = kNoBlock;                        ///< the block; it has this name until it is
                                                   ///< removed. cleared: kNoBlock
  BlockId parent = kNoBlock;                       ///< stored: the block before it, which may be
                                                   ///< stored later; kNoBlock for a first block
  std::uint64_t salt = 0;                          ///< stored: the tenant
  std::span<const std::int32_t> tokens{};          ///< stored: of the block, [block_size]
  std::span<const ExtraKey> extra_keys{};          ///< stored: those that begin in the block; their
                                                   ///< first_token counts from its first token
};

/// Who is told. Called by the thread of the tables, within their calls: it must not call the tables
/// or their manager, and must not throw. Without a function nobody is told.
struct PrefixEventSink {
  void (*tell)(const PrefixEvent& event, void* context) = nullptr;  ///< null: nobody
  void* context = nullptr;                                          ///< handed to `tell`
};

}  // namespace kvarena
