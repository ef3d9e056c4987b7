#include "effects/tables_pool.hpp"

namespace kvarena::test {

/// Programmer errors that every build finds at O(1).
void TablesPool::misuse(const Numbers& n) {
  static constexpr const char* kKind = "misuse taken";
  const Ticket never(manager_.newest_ticket().value + 1 + n[1] % 3);
  const Sequence* sequence = pick(sequences_, n[1]);
  const auto block = static_cast<std::int32_t>(
      n[2] % static_cast<std::uint32_t>(memory_.num_slots() / block_size_));
  const BlockId id(block);
  switch (n[0] % 7) {
    case 0:
      return refused(kKind, "retire of a ticket that was never opened",
                     [&] { return manager_.retire(never); });
    case 1: {
      if (sequence == nullptr) return;
      return refused(kKind, "destroy against a ticket that was never opened",
                     [&] { return tables_.destroy(sequence->id, never); });
    }
    case 2: {
      if (sequence == nullptr) return;
      const auto length = static_cast<std::int64_t>(sequence->words.size()) + 1 + n[3] % 4;
      return refused(kKind, "truncate past the length",
                     [&] { return tables_.truncate(sequence->id, length); });
    }
    case 3: {
      if (sequence == nullptr) return;
      const auto length = static_cast<std::int64_t>(sequence->words.size()) + 1 + n[3] % 4;
      return refused(kKind, "fork past the length",
                     [&] { return tables_.fork(sequence->id, length); });
    }
    case 4: {
      if (sequence == nullptr) return;
      const std::array<AppendDemand, 2> twice{AppendDemand{sequence->id, 1},
                                              AppendDemand{sequence->id, 1}};
      settle();  // which an append does, refused or not
      return refused(kKind, "append to a sequence twice", [&] { return tables_.append(twice); });
    }
    case 5: {  // the generation before
      const Generation stale(manager_.generation(id).value - 1);
      return refused(kKind, "release by a stale handle", [&] {
        return manager_.release(outsiders_[0], std::span(&id, 1), std::span(&stale, 1));
      });
    }
    default: {
      const auto report = manager_.holder(outsiders_[0]);
      if (!report || report->references > 0) return;
      const Generation generation = manager_.generation(id);
      return refused(kKind, "release by a holder of nothing", [&] {
        return manager_.release(outsiders_[0], std::span(&id, 1), std::span(&generation, 1));
      });
    }
  }
}

/// A ticket that is open elsewhere, whatever its number means here.
void TablesPool::offer_foreign_ticket(const Numbers& n, const TablesPool& other) {
  std::vector<Ticket> open;
  for (const Reader& reader : other.readers_) {
    if (reader.is_open) open.push_back(reader.ticket);
  }
  if (open.empty()) return;
  static constexpr const char* kKind = "ticket of another manager taken";
  const Ticket ticket = open[n[0] % open.size()];
  const Sequence* sequence = pick(sequences_, n[1]);
  const Holding* holding = pick(holdings_, n[1]);
  switch (n[2] % 4) {
    case 0:
      return refused(kKind, "retire of another manager's ticket",
                     [&] { return manager_.retire(ticket); });
    case 1: {
      if (sequence == nullptr) return;
      return refused(kKind, "destroy against another manager's ticket",
                     [&] { return tables_.destroy(sequence->id, ticket); });
    }
    case 2: {
      if (sequence == nullptr) return;
      return refused(kKind, "truncate against another manager's ticket",
                     [&] { return tables_.truncate(sequence->id, 0, ticket); });
    }
    default: {
      if (holding == nullptr) return;
      return refused(kKind, "release against another manager's ticket", [&] {
        return manager_.release_after(ticket, holding->holder, std::span(&holding->id, 1),
                                      std::span(&holding->generation, 1));
      });
    }
  }
}

}  // namespace kvarena::test
