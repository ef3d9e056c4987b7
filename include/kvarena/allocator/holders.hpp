#pragma once

/// @file
/// What a caller tells a BlockManager about the holders of blocks. Plain values.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <optional>

namespace kvarena {

/// The blocks that one holder wants, in a call for many holders.
struct HolderDemand {
  HolderId holder;                   ///< registered
  std::uint32_t count = 0;           ///< blocks
  std::optional<Urgency> urgency{};  ///< of this demand; none: that of the call
  std::int32_t group = 0;            ///< whose blocks; 0 in a pool without groups
};

/// The facts about a holder. The manager only reports the times. Readers compare them with
/// steady_clock().
struct HolderInfo {
  std::uint64_t number = 0;      ///< the caller's number for it, for example a sequence id
  std::uint64_t owner = 0;       ///< for whom it holds, for example a request id; 0: unknown
  const char* purpose = "";      ///< static string, for example "sequence"
  std::int64_t since_ns = 0;     ///< when it began to hold; 0: unknown
  std::int64_t deadline_ns = 0;  ///< when it should end; 0: no deadline
};

}  // namespace kvarena
