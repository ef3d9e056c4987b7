#pragma once

/// @file
/// `OperationLog`: receives every mutating call of a BlockManager, in order. With the log a second
/// manager with the same options can be brought to the same state, bit for bit, and the ranks of a
/// tensor-parallel group can compare their histories. A manager has no log by default.
///
/// A replay makes the calls that ended with ok again, in order, on a manager with the same options.
/// A call of allocate_each has an entry for each of its demands. Without groups the entries may be
/// replayed one by one. With groups they must be one call again, because a call takes the pages of
/// all its demands before the single blocks of any: collect the demands of entries while
/// `left_in_call` is not 0, and make one call of them, each with its own urgency (`flag`).

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// The mutating calls.
enum class OperationKind : std::uint8_t {
  register_holder,
  unregister_holder,
  reserve,
  allocate,
  retain,
  release,
  release_after,
  set_content,
  quarantine,
  restore,
  open_ticket,
  retire,
  set_retention,
  advance_clock,
};

/// One call with its arguments and its outcome. A call whose outcome is not ok has changed nothing,
/// and a replay leaves it out. `ids` is borrowed for the duration of the callback.
struct Operation {
  OperationKind kind{};      ///< which call
  StatusCode outcome{};      ///< how it ended
  std::uint8_t flag = 0;     ///< urgency of allocate and reserve, content of set_content,
                             ///< priority of set_retention
  HolderId holder{};         ///< argument, or result of register_holder
  std::uint64_t ticket = 0;  ///< argument, or result of open_ticket: a number that rises from
                             ///< ticket to ticket and does not depend on ids; 0: no ticket of
                             ///< this manager
  std::int64_t count = 0;    ///< blocks asked for, or reserved; RetentionHint::expires_at; the
                             ///< time of advance_clock
  std::span<const BlockId> ids{};  ///< arguments, or the result of allocate
  std::int32_t group = 0;          ///< of allocate; 0 in a pool without groups
  std::int32_t left_in_call = 0;   ///< of allocate in a pool with groups: entries of the same call
                                   ///< that follow this one
};

/// Receives operations. The manager's thread calls it synchronously after each call. It must not
/// call the manager.
class KVARENA_EXPORT OperationLog {
 public:
  virtual ~OperationLog() = default;
  /// Receives a mutating call that has ended.
  virtual void append(const Operation& operation) = 0;
};

}  // namespace kvarena
