#include "effects/cache_site.hpp"

#include <algorithm>

namespace kvarena::test {

/// The word that a token was promised to be: of one that nobody wrote, nothing.
Word CacheSite::promised(Word word) const { return is_written_[word] ? contents_[word] : 0; }

/// What a party is promised of the first `length` tokens of a sequence.
CacheSite::Reading CacheSite::reading_of(const char* kind, std::uint32_t name,
                                         const Sequence& sequence, std::size_t length) {
  Reading reading{.site = this, .kind = kind, .name = name, .slots = slots_of(sequence)};
  reading.slots.resize(std::min(length, reading.slots.size()));
  for (std::size_t i = 0; i < reading.slots.size(); ++i) {
    reading.words.push_back(promised(sequence.words[i]));
  }
  return reading;
}

/// Queues a reading. False when the stream is full.
bool CacheSite::queue_reading(StreamId stream, Reading reading) {
  if (failure_) return false;
  reading.is_long = stream == device_.streams[kLongStream];
  readings_.push_back(std::move(reading));
  if (device_.host->launch_host(&Reading::run, &readings_.back(), stream)) return true;
  readings_.pop_back();
  return false;
}

void CacheSite::check_on_home(const Sequence& sequence) {
  static_cast<void>(queue_reading(
      cache_.stream(), reading_of("sequence", sequence.name, sequence, sequence.words.size())));
}

void CacheSite::check_sequence(const Numbers& n) {
  const Sequence* sequence = pick(sequences_, n[0]);
  if (sequence == nullptr) return;
  story_.tell(site_, "sequence ", sequence->name, " reads its tokens on the cache's stream");
  check_on_home(*sequence);
  if (options_.expects_scrubbing) judge_recycled(*sequence);
}

/// Slots of a sequence's blocks past its length hold nothing of another owner.
void CacheSite::judge_recycled(const Sequence& sequence) {
  if (sequence.words.empty() || !cache_.synchronize()) return;
  const std::int64_t last =
      cache_.tables().slot_of(sequence.id, std::ssize(sequence.words) - 1).value();
  const std::int64_t size = options_.block_size_tokens;
  for (std::int64_t slot = last + 1; slot % size != 0; ++slot) {
    const auto word = intruder(cache_.arena(), slot, [&](Word w) {
      return w < families_.size() && families_[w] == sequence.family;
    });
    if (!word) continue;
    return fail("scrubbing", "sequence " + std::to_string(sequence.name) + " has word " +
                                 std::to_string(*word) + " of another owner in slot " +
                                 std::to_string(slot) + " past its length");
  }
}

/// Work on another stream that reads sequences, once what they hold now has been written.
void CacheSite::open_reader(const Numbers& n) { open_reader(n, Work::step, n[2] % kLongStream); }

/// The same that takes as long as it likes, on a stream or where no stream knows of it.
void CacheSite::open_long_reader(const Numbers& n) {
  const std::size_t stream = n[2] % 2 == 0 ? kLongStream : n[2] / 2 % device_.streams.size();
  open_reader(n, n[3] % 4 == 1 ? Work::elsewhere : Work::stream, stream);
}

void CacheSite::open_reader(const Numbers& n, Work work, std::size_t stream) {
  if (sequences_.empty()) return;
  HostDevice& host = *device_.host;
  if (work != Work::elsewhere && (!host.record(device_.event, cache_.stream()) ||
                                  !host.wait(device_.streams[stream], device_.event))) {
    return;
  }
  Reader reader{.name = ++num_names_, .work = work, .num_steps_before = num_steps_};
  const std::vector<std::size_t> read = read_several(n, reader, device_.streams[stream]);
  const auto ticket = guarded(work == Work::step ? "fence" : "open_ticket", [&] {
    return work == Work::step     ? cache_.fence(device_.streams[stream])
           : work == Work::stream ? cache_.open_ticket(device_.streams[stream])
                                  : cache_.open_ticket();
  });
  story_.tell(site_, work == Work::step ? "reader " : "open reader ", reader.name, " reads ",
              read.size(), " sequence(s) from ", read.empty() ? 0 : sequences_[read.front()].name,
              work == Work::elsewhere ? std::string(" elsewhere")
                                      : " on stream " + std::to_string(stream + 1),
              ticket ? "" : ", but there is no ticket");
  if (!ticket) {  // nothing may change before that work has ended
    if (work != Work::elsewhere) run_by_hand(device_.streams[stream]);
    return;
  }
  reader.ticket = *ticket;
  for (const std::size_t i : read) {
    sequences_[i].reader = readers_.size();
    sequences_[i].may_append = false;
  }
  readers_.push_back(std::move(reader));
}

/// A reader's readings, and which sequences they are of. Of a sequence that grows in this step it
/// reads the tokens of before: the step can be aborted.
std::vector<std::size_t> CacheSite::read_several(const Numbers& n, Reader& reader,
                                                 StreamId stream) {
  std::vector<std::size_t> read;
  for (const std::size_t i : several(n, sequences_.size())) {
    const Sequence& sequence = sequences_[i];
    if (sequence.reader || sequence.is_import) continue;
    const auto growth = std::find_if(growths_.begin(), growths_.end(),
                                     [&](const Growth& g) { return g.id == sequence.id; });
    const std::size_t length = growth == growths_.end()
                                   ? sequence.words.size()
                                   : std::min(sequence.words.size(), growth->length);
    Reading reading = reading_of("reader", reader.name, sequence, length);
    if (reader.work == Work::elsewhere) {
      readings_.push_back(std::move(reading));
    } else if (!queue_reading(stream, std::move(reading))) {
      break;
    }
    reader.readings.push_back(&readings_.back());
    read.push_back(i);
  }
  return read;
}

void CacheSite::run_by_hand(StreamId stream) {
  const CacheDevice::ByHand by_hand(device_);
  static_cast<void>(device_.host->synchronize(stream));
}

/// Work elsewhere comes to its end: it reads when all that the cache's stream was given has run.
void CacheSite::end_work_elsewhere(const Reader& reader) {
  run_by_hand(cache_.stream());
  for (Reading* reading : reader.readings) static_cast<void>(Reading::run(reading));
}

/// The engine says that a reader's work has ended, which may be wrong.
void CacheSite::retire(const Numbers& n) {
  std::vector<Reader*> open;
  for (Reader& reader : readers_) {
    if (reader.is_open) open.push_back(&reader);
  }
  if (!open.empty()) retire(*open[n[0] % open.size()]);
}

void CacheSite::retire(Reader& reader) {
  if (reader.work == Work::elsewhere) end_work_elsewhere(reader);
  const bool has_ended = reader.has_ended();
  const Status status = guarded("retire", [&] { return cache_.retire(reader.ticket); });
  if (status) story_.tell(site_, "the engine retires the ticket of reader ", reader.name);
  if (status.code == StatusCode::device_error) return;  // a planted failure
  const std::string whose = "the ticket of reader " + std::to_string(reader.name);
  if (status && reader.work == Work::step)
    return fail("retire", whose + " is a step's and retired");
  if (status && !has_ended) return fail("retire", whose + " retired while work is under way");
  if (!status && reader.work != Work::step && has_ended && !reader.readings.empty()) {
    return fail("retire", whose + " could not retire though its work has ended");
  }
  if (!status && status.code != StatusCode::failed_precondition) {
    return fail("retire", whose + " could not retire, and not for its work");
  }
  if (status) close(reader);
}

void CacheSite::run_stream(const Numbers& n) {
  const std::array<StreamId, 4> streams{cache_.stream(), device_.streams[0], device_.streams[1],
                                        device_.streams[kLongStream]};
  const CacheDevice::ByHand by_hand(device_);
  const StreamId stream = streams[n[0] % streams.size()];
  std::uint32_t count = 0;
  for (; count < 1 + n[1]; ++count) {
    const auto has_run = device_.host->run_one(stream);
    if (!has_run || !*has_run) break;
  }
  if (count > 0)
    story_.tell(site_, "stream ", n[0] % streams.size(), " runs ", count, " operation(s)");
}

void CacheSite::synchronize(const Numbers& /*n*/) {
  story_.tell(site_, "synchronizes");
  static_cast<void>(cache_.synchronize());
}

void CacheSite::plant_failure(const Numbers& n) {
  story_.tell(site_, "of the device's calls from now on number ", n[0] % 24, " will fail");
  device_.faulty.fail_after(n[0] % 24);
}

}  // namespace kvarena::test
