#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {

/// Writes every layer of the tokens.
Status CacheSite::Filling::run(void* self) {
  const auto& f = *static_cast<const Filling*>(self);
  for (std::size_t i = 0; i < f.slots.size(); ++i) {
    write_word(f.site->cache_.arena(), f.slots[i], f.words[i]);
  }
  return {};
}

/// Another stream writes the tokens of a sequence, once the home stream has done what it was given
/// before.
void CacheSite::import_sequence(const Numbers& n) {
  const auto tokens =
      static_cast<std::int64_t>(n[0] % static_cast<std::uint32_t>(3 * options_.block_size_tokens));
  const auto urgency = n[1] % 2 == 0 ? Urgency::admission : Urgency::growth;
  if (is_in_step_ && has_appended_) {
    return refused("import", "import behind an append",
                   [&] { return cache_.import_sequence(tokens, {}, urgency); });
  }
  HostDevice& host = *device_.host;
  const StreamId stream = device_.streams[n[2] % kLongStream];
  if (!host.record(device_.event, cache_.stream())) return;
  const auto id =
      guarded("import_sequence", [&] { return cache_.import_sequence(tokens, {}, urgency); });
  if (!id) return;
  const std::uint32_t name = ++num_names_;
  sequences_.push_back({.id = *id,
                        .name = name,
                        .family = name,
                        .words = {},
                        .reader = {},
                        .may_append = false,
                        .is_import = true});
  Sequence& sequence = sequences_.back();
  for (std::int64_t i = 0; i < tokens; ++i) {
    add_word(sequence, static_cast<std::int32_t>((n[3] >> (i % 8)) % 2));
  }
  story_.tell(site_, "sequence ", name, " of ", tokens, " tokens is imported");
  fillings_.push_back({this, slots_of(sequence), contents_of(sequence.words)});
  if (host.wait(stream, device_.event) &&
      host.launch_host(&Filling::run, &fillings_.back(), stream)) {
    return;
  }
  run_by_hand(cache_.stream());  // the stream is full: the writes come at once
  static_cast<void>(Filling::run(&fillings_.back()));
}

/// Whatever writes imports comes to its end.
void CacheSite::run_fillings() {
  for (std::size_t i = 0; i < kLongStream; ++i) run_by_hand(device_.streams[i]);
}

/// Its tokens are there, or will not come.
void CacheSite::end_import(const Numbers& n) {
  std::vector<Sequence*> imports;
  for (Sequence& sequence : sequences_) {
    if (sequence.is_import) imports.push_back(&sequence);
  }
  if (imports.empty()) return;
  Sequence& sequence = *imports[n[0] % imports.size()];
  run_fillings();
  if (n[1] % 4 == 3) {
    if (guarded("fail_import", [&] { return cache_.fail_import(sequence.id); })) {
      story_.tell(site_, "the import of sequence ", sequence.name, " fails");
    }
    return;
  }
  if (!guarded("publish_import", [&] { return cache_.publish_import(sequence.id); })) return;
  sequence.is_import = false;
  sequence.may_append = true;
  for (const Word word : sequence.words) is_written_[word] = true;
  story_.tell(site_, "the import of sequence ", sequence.name, " is published");
  check_on_home(sequence);
}

void CacheSite::pin(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  const bool grew = std::any_of(growths_.begin(), growths_.end(),
                                [&](const Growth& growth) { return growth.id == sequence->id; });
  if (grew) return;  // the step can be aborted, and then some of its tokens are nobody's
  const auto holder =
      guarded("pin", [&] { return cache_.pin(sequence->id, {.purpose = "effects"}); });
  if (!holder) return;
  if (sequence->is_import) return fail("import", "an import was pinned before it was published");
  pins_.push_back({*holder, ++num_names_, sequence->words});
  story_.tell(site_, "pin ", num_names_, " holds sequence ", sequence->name);
}

/// What a pin holds is read when its blocks are still there and its sequence may be gone.
void CacheSite::unpin(const Numbers& n) {
  if (pins_.empty()) return;
  const std::size_t index = n[0] % pins_.size();
  const Pin& pin = pins_[index];
  const auto size = static_cast<std::size_t>(options_.block_size_tokens);
  std::vector<BlockId> blocks((pin.words.size() + size - 1) / size);
  const auto count = cache_.tables().blocks_of(pin.holder, blocks);
  if (!count || *count != std::ssize(blocks)) {
    return fail("pin", "pin " + std::to_string(pin.name) + " does not have its blocks");
  }
  Reading reading{.site = this, .kind = "pin", .name = pin.name};
  for (std::size_t i = 0; i < pin.words.size(); ++i) {
    reading.slots.push_back(static_cast<std::int64_t>(blocks[i / size].value) *
                                options_.block_size_tokens +
                            static_cast<std::int64_t>(i % size));
    reading.words.push_back(promised(pin.words[i]));
  }
  static_cast<void>(queue_reading(cache_.stream(), std::move(reading)));
  const Ticket ticket = ticket_for(std::nullopt, n[1]);
  const Status status = guarded("unpin", [&] { return cache_.unpin(pin.holder, ticket); });
  if (!status) return;
  story_.tell(site_, "pin ", pin.name, " reads its blocks and ends, against ",
              name_of_ticket(ticket));
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(index));
}

}  // namespace kvarena::test
