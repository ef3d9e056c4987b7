#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {
namespace {

/// Work of the engine on the cache's stream that fails.
Status fail_work(void*) { return {StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0}; }

}  // namespace

/// What comes later on the cache's stream is skipped. False when the stream is full.
bool CacheSite::break_stream() {
  return static_cast<bool>(device_.host->launch_host(&fail_work, nullptr, cache_.stream()));
}

/// The failure goes to the cache, or to the engine, which does not tell the cache.
void CacheSite::take_failure(std::uint32_t number) {
  story_.tell(site_, number % 2 == 0 ? "the cache" : "the engine", " takes the failure");
  if (number % 2 == 0) static_cast<void>(cache_.synchronize());
  run_by_hand(cache_.stream());
  is_loss_pending_ = true;
}

/// These tokens of a sequence are promised to nobody. The same words of other sequences may be in
/// other blocks.
void CacheSite::lose_words(Sequence& sequence, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    const Word word = sequence.words[i];
    sequence.words[i] = families_.size();
    families_.push_back(sequence.family);
    is_written_.push_back(false);
    is_lost_.push_back(true);
    contents_.push_back(contents_[word]);
    tokens_.push_back(tokens_[word]);
  }
}

/// The new tokens of a step, the older ones of a block that it was to copy, and those of a block
/// that its end may give up for an equal one.
void CacheSite::lose_words_of_step(bool loses_copies) {
  const auto size = static_cast<std::size_t>(options_.block_size_tokens);
  for (const Growth& growth : growths_) {
    const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                       [&](const Sequence& s) { return s.id == growth.id; });
    if (sequence == sequences_.end()) continue;
    const std::size_t length = sequence->words.size();
    const bool may_share =
        options_.duplicates == DuplicateRule::share && length / size > growth.length / size;
    const bool was_copied = loses_copies && num_copies_ > 0;
    const std::size_t whole = growth.length - growth.length % size;
    lose_words(*sequence, may_share || was_copied ? whole : growth.length, length);
  }
}

/// A step whose work fails, whole or behind its copies. Until somebody takes the failure, others
/// fork its sequences and begin with what it has published.
void CacheSite::lose_step(const Numbers& n) {
  if (!options_.has_prefix_cache || !enter_step() || has_appended_) return;
  if (cache_.stream() != home_) return;  // others work there too
  const bool loses_copies = n[1] % 2 == 0;
  if (loses_copies && !break_stream()) return;
  if (!grow(n)) return loses_copies ? take_failure(n[2]) : void();
  if (!loses_copies && !break_stream()) return;
  story_.tell(site_, "the work of the step fails", loses_copies ? ", with its copies" : "");
  for (std::size_t layer = 0; layer < is_layer_written_.size(); ++layer) write_layer(layer);
  lose_words_of_step(loses_copies);
  if (n[1] / 2 % 4 == 0) take_failure(n[2]);
  if (n[0] % 8 == 7) {
    abort_step({});
  } else {
    leave_step();
  }
  const std::size_t num_before = sequences_.size();
  if (n[2] / 2 % 2 == 1) fork(n);
  if (n[2] / 4 % 2 == 1) create_with_prompt(n);
  for (std::size_t i = num_before; i < sequences_.size(); ++i) {
    lose_words(sequences_[i], 0, sequences_[i].words.size());
  }
  take_failure(n[2]);
}

}  // namespace kvarena::test
