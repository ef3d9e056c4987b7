#include "effects/cache_site.hpp"

namespace kvarena::test {

/// Calls in the wrong order and with things that do not exist.
void CacheSite::misuse(const Numbers& n) {
  static constexpr const char* kKind = "misuse taken";
  const Ticket never(cache_.manager().newest_ticket().value + 1 + n[1] % 3);
  const Sequence* sequence = pick(sequences_, n[1]);
  switch (n[0] % 8) {
    case 0:
      if (!is_in_step_)
        return refused(kKind, "end_step outside a step", [&] { return cache_.end_step(); });
      return refused(kKind, "begin_step inside a step", [&] { return cache_.begin_step(); });
    case 1:
      if (is_in_step_)
        return refused(kKind, "publish inside a step", [&] { return cache_.publish(); });
      return refused(kKind, "append outside a step", [&] { return cache_.append({}); });
    case 2: {
      const std::vector<float> input = input_of(std::vector<Word>{1}, 0, PlaneKind::key);
      if (has_appended_ && is_in_step_) return;
      return refused(kKind, "write_kv without an append", [&] {
        return cache_.write_kv({.layer = 0,
                                .key = input.data(),
                                .value = input.data(),
                                .dtype = DType::f32,
                                .scales = {}});
      });
    }
    case 3:
      if (sequence == nullptr) return;
      return refused(kKind, "destroy against a ticket that was never opened",
                     [&] { return cache_.destroy(sequence->id, never); });
    case 4:
      if (sequence == nullptr) return;
      return refused(kKind, "truncate past the length", [&] {
        return cache_.truncate(sequence->id, std::ssize(sequence->words) + 1 + n[3] % 4);
      });
    case 5:
      if (is_in_step_) return;
      return refused(kKind, "abort_step outside a step", [&] { return cache_.abort_step(); });
    case 6:
      return refused(kKind, "retire of a ticket that was never opened",
                     [&] { return cache_.retire(never); });
    default:
      return refused(kKind, "fence of a stream that was never created",
                     [&] { return cache_.fence(StreamId(1'000'000 + n[1])); });
  }
}

/// A stream of another device, whatever its number means here.
void CacheSite::offer_foreign_stream(const Numbers& n, const CacheSite& other) {
  if (&other.device_ == &device_) return;
  const StreamId stream = n[0] % 3 == 2 ? other.cache_.stream() : other.device_.streams[n[0] % 3];
  refused("stream of another device taken", "fence of another device's stream",
          [&] { return n[1] % 2 == 0 ? cache_.fence(stream) : cache_.open_ticket(stream); });
}

/// A ticket that is open elsewhere, whatever its number means here.
void CacheSite::offer_foreign_ticket(const Numbers& n, const CacheSite& other) {
  static constexpr const char* kKind = "ticket of another cache taken";
  std::vector<Ticket> open;
  for (const Reader& reader : other.readers_) {
    if (reader.is_open) open.push_back(reader.ticket);
  }
  const Sequence* sequence = pick(sequences_, n[1]);
  if (open.empty() || sequence == nullptr) return;
  const Ticket ticket = open[n[0] % open.size()];
  switch (n[2] % 4) {
    case 3:
      return refused(kKind, "retire of another cache's ticket",
                     [&] { return cache_.retire(ticket); });
    case 0:
      return refused(kKind, "destroy against another cache's ticket",
                     [&] { return cache_.destroy(sequence->id, ticket); });
    case 1:
      return refused(kKind, "truncate against another cache's ticket",
                     [&] { return cache_.truncate(sequence->id, 0, ticket); });
    default:
      return refused(kKind, "destroy_many against another cache's ticket",
                     [&] { return cache_.destroy_many(std::span(&sequence->id, 1), ticket); });
  }
}

}  // namespace kvarena::test
