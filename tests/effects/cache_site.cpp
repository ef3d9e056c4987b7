#include "effects/cache_site.hpp"

namespace kvarena::test {
namespace {

std::unique_ptr<HostDevice> manual_device(std::uint32_t max_queued) {
  return HostDevice::create(
             {.capacity_bytes = 1 << 20, .streams = HostStreams::manual, .max_queued = max_queued})
      .value();
}

KvCacheOptions options_of(const CacheSiteOptions& options) {
  KvCacheOptions o;
  o.layout = {.num_layers = options.num_layers,
              .num_kv_heads = kCacheHeads,
              .head_dim_k = kCacheHeadDim,
              .dtype = DType::f32,
              .block_size_tokens = options.block_size_tokens};
  o.size.num_blocks = options.num_blocks;
  o.order = options.order;
  o.num_q_heads = kCacheHeads;
  o.max_sequences = options.max_sequences;
  o.max_step_tokens = 256;
  o.steps_in_flight = options.steps_in_flight;
  o.max_open_tickets = options.max_open_tickets;
  o.eager_retire = options.eager_retire;
  o.num_threads = 1;
  o.prefix_cache = {.is_on = options.has_prefix_cache,
                    .hash_key = {1, 2},
                    .max_extra_keys = options.has_extra_keys ? 2 : 0,
                    .duplicates = options.duplicates,
                    .max_accounts = options.has_accounts ? 2 : 0,
                    .share_parts = options.shares_parts};
  o.eviction = options.eviction;
  return o;
}

}  // namespace

CacheDevice::CacheDevice(std::uint32_t max_queued)
    : host(manual_device(max_queued)),
      faulty(*host),
      streams{host->create_stream().value(), host->create_stream().value(),
              host->create_stream().value()},
      event(host->create_event().value()) {}

CacheSite::CacheSite(CacheDevice& device, const CacheSiteOptions& options, Story& story)
    : site_("cache " + std::to_string(options.name) + ": "),
      story_(story),
      device_(device),
      options_(options),
      cache_(KvCache::create(device.faulty, options_of(options)).value()),
      home_(cache_.stream()) {
  story_.tell(site_, options.num_blocks, " blocks of ", options.block_size_tokens, " tokens, ",
              options.num_layers, " layer(s), ", options.max_sequences, " sequences, ",
              options.steps_in_flight, " steps in flight, ", options.max_open_tickets, " tickets",
              options.eager_retire ? ", retires eagerly" : "",
              options.has_prefix_cache ? ", with a prefix cache" : "",
              options.shares_parts ? ", parts of blocks" : "",
              options.has_extra_keys ? ", extra keys" : "",
              options.has_accounts ? " and accounts" : "", ", evicts ", name_of(options.eviction));
  for (std::uint64_t salt = 0; options.has_accounts && salt < 2; ++salt) {
    if (!cache_.set_salt_limits(salt, {})) fail("limits", "an account was refused");
  }
}

CacheSite::~CacheSite() {
  run_by_hand(cache_.stream());
  for (const StreamId stream : device_.streams) run_by_hand(stream);
  for (const Reader& reader : readers_) {
    if (reader.is_open) static_cast<void>(cache_.retire(reader.ticket));
  }
}

void CacheSite::fail(const char* kind, std::string text) {
  if (!failure_) failure_ = Failure{kind, site_ + text};
}

void CacheSite::require_unchanged(const char* name, const Status& status) {
  story_.tell(site_, name, " is refused: ", name_of(status.code), " ", name_of(status.resource));
  after_.look(cache_.manager(), cache_.tables());
  if (before_ == after_ || is_loss_pending_) return;
  fail("refused call", std::string(name) + " was refused and changed something");
}

std::vector<std::int64_t> CacheSite::slots_of(const Sequence& sequence) {
  std::vector<std::int64_t> slots;
  const auto info = cache_.tables().info(sequence.id);
  if (!info || info->length_tokens != std::ssize(sequence.words)) {
    fail("length", "sequence " + std::to_string(sequence.name) + " has " +
                       (info ? std::to_string(info->length_tokens) : std::string("no")) +
                       " tokens instead of " + std::to_string(sequence.words.size()));
    return slots;
  }
  for (std::int64_t i = 0; i < info->length_tokens; ++i) {
    const auto slot = cache_.tables().slot_of(sequence.id, i);
    if (!slot || *slot < 0 || *slot >= options_.num_blocks * options_.block_size_tokens) {
      fail("length", "sequence " + std::to_string(sequence.name) + " has no slot for token " +
                         std::to_string(i));
      return {};
    }
    slots.push_back(*slot);
  }
  return slots;
}

Status CacheSite::Reading::run(void* self) {
  auto& reading = *static_cast<Reading*>(self);
  reading.has_run = true;
  if (reading.is_long && reading.site->device_.num_by_hand == 0) {
    reading.site->fail("wait for an open ticket",
                       "a cache waited for the work of reader " + std::to_string(reading.name));
  }
  for (std::size_t i = 0; i < reading.slots.size(); ++i) {
    const auto wrong = difference(reading.site->cache_.arena(), reading.slots[i], reading.words[i]);
    if (!wrong) continue;
    reading.site->fail(reading.kind, std::string(reading.kind) + " " +
                                         std::to_string(reading.name) + ": token " +
                                         std::to_string(i) + ": " + *wrong);
    break;
  }
  return {};
}

Ticket CacheSite::ticket_for(const std::optional<std::size_t>& reader, std::uint32_t number) const {
  if (reader) return readers_[*reader].ticket;
  std::vector<Ticket> choices{kNoTicket, kNoTicket};
  for (const Reader& open : readers_) {
    if (open.is_open) choices.push_back(open.ticket);
  }
  return choices[number % choices.size()];
}

/// A ticket as stories name it: its number means nothing to a reader.
std::string CacheSite::name_of_ticket(Ticket ticket) const {
  for (const Reader& reader : readers_) {
    if (reader.ticket == ticket) return "the ticket of reader " + std::to_string(reader.name);
  }
  return "no ticket";
}

/// Whether the next begin_step retires the reader's ticket.
bool CacheSite::must_retire(const Reader& reader) const {
  if (reader.work == Work::elsewhere) return false;
  const auto in_flight = static_cast<std::uint64_t>(options_.steps_in_flight);
  if (reader.work == Work::step && num_steps_ >= reader.num_steps_before + in_flight) return true;
  return options_.eager_retire && !reader.readings.empty() && reader.has_ended();
}

/// Tickets that the cache has retired: it may have, and their work must have run.
void CacheSite::find_retired() {
  for (Reader& reader : readers_) {
    if (!reader.is_open || cache_.manager().is_open(reader.ticket)) continue;
    story_.tell(site_, "the ticket of reader ", reader.name, " has retired");
    const bool is_engines =
        reader.work == Work::elsewhere || (reader.work == Work::stream && !options_.eager_retire);
    if (is_engines || !reader.has_ended()) {
      fail("ticket retired early",
           "the ticket of reader " + std::to_string(reader.name) +
               (is_engines ? " was the engine's to retire" : " has retired before its work ran"));
    }
    close(reader);
  }
}

/// Its ticket has retired.
void CacheSite::close(Reader& reader) {
  reader.is_open = false;
  const auto index = static_cast<std::size_t>(&reader - readers_.data());
  for (Sequence& sequence : sequences_) {
    if (sequence.reader != index) continue;
    sequence.reader.reset();
    sequence.may_append = true;
  }
}

void CacheSite::finish() {
  device_.faulty.fail_after(kNoFailure);
  // A step that ends publishes: who has not written its tokens gives it up.
  if (options_.has_prefix_cache) abort_step({});
  leave_step();
  for (const Sequence& sequence : sequences_) check_on_home(sequence);
  while (!pins_.empty() && !failure_) unpin({});
  story_.tell(site_, "the cache's stream runs to its end; all readers read");
  static_cast<void>(cache_.synchronize());  // also returns what planted failures left behind
  const CacheDevice::ByHand by_hand(device_);
  for (const StreamId stream : device_.streams) {
    if (!device_.host->synchronize(stream)) fail("stream", "an engine's stream has failed");
  }
  if (!cache_.publish()) fail("step", "publish was refused between steps");
  find_retired();
  for (Reader& reader : readers_) {
    if (reader.is_open && reader.work != Work::step) retire(reader);
  }
  if (!failure_) check_whole();
}

void CacheSite::check_whole() {
  for (const Reader& reader : readers_) {
    if (reader.is_open) fail("accounts", "a ticket is open whose work is done");
  }
  std::vector<SequenceId> ids;
  for (const Sequence& sequence : sequences_) ids.push_back(sequence.id);
  const Status status = cache_.destroy_many(ids);
  if (options_.has_prefix_cache && !cache_.forget_all()) fail("forget", "forget was refused");
  const BlockStats stats = cache_.manager().stats();
  if (!status || stats.free != stats.num_blocks || stats.references != 0 ||
      stats.fence_entries != 0) {
    fail("accounts", "after everything was given back " + std::to_string(stats.free) + " of " +
                         std::to_string(stats.num_blocks) + " blocks are free");
  }
  if (!cache_.check_invariants()) fail("accounts", "an invariant is violated");
}

}  // namespace kvarena::test
