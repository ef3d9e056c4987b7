#pragma once

/// @file
/// A history of a manager: the operations of its log, and the same calls on another manager.

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/allocator/operation_log.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace kvarena::model {

/// An operation with its ids.
struct Recorded {
  Operation operation;
  std::vector<BlockId> ids;

  friend bool operator==(const Recorded& a, const Recorded& b) {
    return a.operation.kind == b.operation.kind && a.operation.outcome == b.operation.outcome &&
           a.operation.flag == b.operation.flag && a.operation.holder == b.operation.holder &&
           a.operation.ticket == b.operation.ticket && a.operation.count == b.operation.count &&
           a.operation.group == b.operation.group &&
           a.operation.left_in_call == b.operation.left_in_call && a.ids == b.ids;
  }
};

class Recorder final : public OperationLog {
 public:
  void append(const Operation& operation) override {
    Recorded recorded{operation, {operation.ids.begin(), operation.ids.end()}};
    recorded.operation.ids = {};
    operations.push_back(std::move(recorded));
  }
  std::vector<Recorded> operations;
};

/// Makes the recorded call on another manager, which has opened `tickets` so far. Handles'
/// generations are what that manager says.
inline Status repeat(BlockManager& manager, const Recorded& recorded,
                     std::map<std::uint64_t, Ticket>& tickets) {
  const Operation& operation = recorded.operation;
  std::vector<Generation> generations;
  for (const BlockId id : recorded.ids) generations.push_back(manager.generation(id));
  switch (operation.kind) {
    case OperationKind::register_holder: return manager.register_holder({}).status();
    case OperationKind::unregister_holder: return manager.unregister_holder(operation.holder);
    case OperationKind::reserve:
      return manager.reserve(operation.holder, operation.count,
                             static_cast<Urgency>(operation.flag));
    case OperationKind::allocate: {
      std::vector<BlockId> ids(static_cast<std::size_t>(operation.count));
      generations.resize(ids.size());
      return manager
          .allocate(operation.holder, ids, generations, static_cast<Urgency>(operation.flag))
          .status();
    }
    case OperationKind::retain: return manager.retain(operation.holder, recorded.ids, generations);
    case OperationKind::release:
      return manager.release(operation.holder, recorded.ids, generations);
    case OperationKind::release_after:
      return manager.release_after(tickets[operation.ticket], operation.holder, recorded.ids,
                                   generations);
    case OperationKind::set_content:
      return manager.set_content(recorded.ids[0], generations[0],
                                 static_cast<BlockContent>(operation.flag));
    case OperationKind::quarantine: return manager.quarantine(recorded.ids[0]).status();
    case OperationKind::restore: return manager.restore(recorded.ids[0]);
    case OperationKind::open_ticket: {
      const Result<Ticket> ticket = manager.open_ticket();
      if (ticket) tickets[operation.ticket] = *ticket;
      return ticket.status();
    }
    case OperationKind::retire: return manager.retire(tickets[operation.ticket]);
    case OperationKind::set_retention:
      return manager.set_retention(recorded.ids[0], generations[0],
                                   {operation.flag, operation.count});
    case OperationKind::advance_clock: return manager.advance_clock(operation.count);
  }
  return unsupported(Resource::none);
}

/// Refused calls changed nothing, so a replay leaves them out.
inline std::vector<Recorded> successes(const std::vector<Recorded>& operations) {
  std::vector<Recorded> kept;
  std::copy_if(operations.begin(), operations.end(), std::back_inserter(kept),
               [](const Recorded& r) { return r.operation.outcome == StatusCode::ok; });
  return kept;
}

}  // namespace kvarena::model
