// Work on other streams: blocks released against a ticket stay as they are until that work is over,
// whenever it completes, and the history of calls alone decides who gets which block.

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/small_cache.hpp"

#include "kvarena/allocator/operation_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace kvarena {
namespace {

using test::SmallCache;

/// Reads blocks many times over on another stream and compares them with what they held.
struct Reader {
  const Arena* arena = nullptr;
  std::vector<BlockId> blocks;
  std::vector<std::byte> expected;
  int rounds = 1;
  bool has_run = false;
  bool is_intact = true;

  std::vector<std::byte> read() const {
    const auto size = static_cast<std::size_t>(arena->layout().block_bytes());
    std::vector<std::byte> bytes(size * blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::memcpy(bytes.data() + i * size, arena->address(blocks[i], 0, PlaneKind::key), size);
    }
    return bytes;
  }
  static Status run(void* self) {
    auto& reader = *static_cast<Reader*>(self);
    for (int i = 0; i < reader.rounds; ++i) reader.is_intact &= reader.read() == reader.expected;
    reader.has_run = true;
    return {};
  }
};

/// A reader of a sequence whose KV has been written.
Reader reader_of(const SmallCache& t, SequenceId id) {
  Reader reader;
  reader.arena = &t.cache.arena();
  reader.blocks.resize(static_cast<std::size_t>(t.cache.tables().info(id)->num_blocks));
  EXPECT_OK(t.cache.tables().blocks_of(id, reader.blocks));
  reader.expected = reader.read();
  return reader;
}

/// A step that grows `id` by `tokens` and writes `value` to K and V.
void write_step(SmallCache& t, SequenceId id, std::int32_t tokens, float value) {
  ASSERT_OK(t.cache.begin_step());
  const std::vector<AppendDemand> demands{{id, tokens}};
  ASSERT_OK(t.cache.append(demands));
  ASSERT_OK(t.fill(value));
  ASSERT_OK(
      t.cache.write_kv({.layer = 0, .key = t.buffer(), .value = t.buffer(), .dtype = DType::f32}));
  ASSERT_OK(t.cache.end_step());
  ASSERT_OK(t.cache.synchronize());
}

TEST(KvCacheFence, BlocksOfADestroyedSequenceStayWhileAnotherStreamReadsThem) {
  for (const std::int32_t k : {1, 2, 3}) {
    KvCacheOptions options = test::small_options();
    options.steps_in_flight = k;
    SmallCache t(options);
    const StreamId other = *t.device->create_stream();
    const SequenceId old = *t.cache.create_sequence();
    write_step(t, old, 12, 1.0F);
    Reader reader = reader_of(t, old);
    ASSERT_OK(t.device->launch_host(Reader::run, &reader, other));
    const Result<Ticket> ticket = t.cache.fence(other);
    ASSERT_OK(ticket);
    ASSERT_OK(t.cache.destroy(old, *ticket));
    EXPECT_EQ(t.cache.manager().stats().fenced, 3);
    EXPECT_EQ(t.cache.manager().available_after(*ticket), test::kSmallBlocks);

    const SequenceId next = *t.cache.create_sequence();
    write_step(t, next, 1, 2.0F);
    for (std::int32_t step = 1; step < k; ++step) write_step(t, next, 4, 2.0F);
    EXPECT_FALSE(reader.has_run) << "nobody has waited for it";
    EXPECT_EQ(t.cache.manager().stats().fenced, 3);
    ASSERT_OK(t.cache.begin_step());  // k steps after the fence
    EXPECT_TRUE(reader.has_run) << "begin_step waited";
    EXPECT_TRUE(reader.is_intact);
    EXPECT_EQ(t.cache.manager().stats().fenced, 0);
    const std::vector<AppendDemand> rest{{next, 4 * 8 - 1 - 4 * (k - 1)}};
    EXPECT_OK(t.cache.append(rest)) << "every block can be used again";
    EXPECT_OK(t.cache.end_step());
    EXPECT_OK(t.cache.check_invariants());
  }
}

TEST(KvCacheFence, AReaderOnAThreadSeesIntactBlocksWhileNewSequencesRun) {
  SmallCache t(test::small_options(), HostStreams::threads);
  const StreamId other = *t.device->create_stream();
  for (int round = 0; round < 20; ++round) {
    const SequenceId old = *t.cache.create_sequence();
    write_step(t, old, 12, static_cast<float>(round));
    Reader reader = reader_of(t, old);
    reader.rounds = 200;
    ASSERT_OK(t.device->launch_host(Reader::run, &reader, other));
    ASSERT_OK(t.cache.destroy(old, *t.cache.fence(other)));
    const SequenceId next = *t.cache.create_sequence();
    // All that is left, then what the fence gives back.
    for (const std::int32_t tokens : {19, 1, 3, 3, 3}) write_step(t, next, tokens, -1.0F);
    EXPECT_TRUE(reader.is_intact) << "round " << round;
    ASSERT_OK(t.cache.destroy(next));
    t.steps(3);  // retires the fence
    EXPECT_TRUE(reader.has_run);
  }
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
}

/// What holds on every kind of device.
class KvCacheFenceOn : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, KvCacheFenceOn, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

/// Holds a stream up: the work behind it runs late.
Status dawdle(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  return {};
}

TEST_P(KvCacheFenceOn, BlocksStayWhileAnotherStreamCopiesThem) {
  for (const std::int32_t k : {1, 3}) {
    KvCacheOptions options = test::small_options();
    options.steps_in_flight = k;
    SmallCache t(test::make_device(GetParam()), options);
    const StreamId other = *t.device->create_stream();
    const auto block_bytes = static_cast<std::uint64_t>(t.cache.arena().layout().block_bytes());
    for (int round = 0; round < 5; ++round) {
      const auto value = static_cast<float>(round + 1);
      const SequenceId old = *t.cache.create_sequence();
      write_step(t, old, 12, value);
      std::vector<BlockId> blocks(3);
      ASSERT_OK(t.cache.tables().blocks_of(old, blocks));
      std::vector<float> seen(3 * block_bytes / sizeof(float));
      ASSERT_OK(t.device->launch_host(dawdle, nullptr, other));
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        ASSERT_OK(t.device->copy(seen.data() + i * block_bytes / sizeof(float),
                                 t.cache.arena().address(blocks[i], 0, PlaneKind::key), block_bytes,
                                 other));
      }
      ASSERT_OK(t.cache.destroy(old, *t.cache.fence(other)));
      EXPECT_EQ(t.cache.manager().stats().fenced, 3);
      const SequenceId next = *t.cache.create_sequence();
      // All that is left, then what the fence gives back.
      write_step(t, next, 20, -1.0F);
      for (std::int32_t step = 1; step < k; ++step) t.steps(1);
      write_step(t, next, 12, -1.0F);
      ASSERT_OK(t.device->synchronize(other));
      for (const float x : seen) ASSERT_EQ(x, value) << "round " << round << ", k " << k;
      ASSERT_OK(t.cache.destroy(next));
    }
  }
}

TEST_P(KvCacheFenceOn, MoreThanTheMaximumIsExhaustedAndComesBack) {
  SmallCache t(GetParam());  // three tickets, two steps in flight
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(*t.cache.fence(t.cache.stream()));
  EXPECT_TRUE(std::is_sorted(tickets.begin(), tickets.end()));
  EXPECT_FAILS(t.cache.fence(t.cache.stream()), exhausted, ticket);
  EXPECT_FAILS(t.cache.fence(StreamId{12345}), exhausted, ticket);
  t.steps(2);
  EXPECT_FAILS(t.cache.fence(t.cache.stream()), exhausted, ticket);
  t.steps(1);
  for (const Ticket ticket : tickets) EXPECT_FALSE(t.cache.manager().is_open(ticket));
  EXPECT_FAILS(t.cache.fence(StreamId{12345}), not_found, stream);
  for (int i = 0; i < 3; ++i) EXPECT_OK(t.cache.fence(t.cache.stream()));
}

TEST_P(KvCacheFenceOn, TruncateAndDestroyManyTakeTickets) {
  SmallCache t(GetParam());
  const SequenceId a = t.sequence_of(12);
  const SequenceId b = t.sequence_of(4);
  const Ticket ticket = *t.cache.fence(t.cache.stream());
  ASSERT_OK(t.cache.truncate(a, 3, ticket));
  EXPECT_EQ(t.cache.manager().stats().fenced, 2);
  ASSERT_OK(t.cache.destroy_many(std::vector{a, b}, ticket));
  EXPECT_EQ(t.cache.manager().stats().fenced, 4);
  t.steps(3);
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
}

TEST(KvCacheFence, WorkThatFailedIsOverToo) {
  SmallCache t;
  const StreamId other = *t.device->create_stream();
  const auto fail = [](void*) {
    return Status{StatusCode::io_error, Resource::file, Option::none, 5, 0, 0, 0};
  };
  ASSERT_OK(t.device->launch_host(fail, nullptr, other));
  const SequenceId id = t.sequence_of(8);
  ASSERT_OK(t.cache.destroy(id, *t.cache.fence(other)));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(t.step({}));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
  EXPECT_OK(t.cache.synchronize()) << "the failure belongs to the other stream";
  EXPECT_FAILS(t.device->synchronize(other), io_error, file);
}

/// The order of mutating calls, as text.
class CallOrder final : public OperationLog {
 public:
  void append(const Operation& operation) override {
    calls.push_back(static_cast<int>(operation.kind));
    values.push_back(operation.ticket);
    for (const BlockId id : operation.ids) values.push_back(static_cast<std::uint64_t>(id.value));
    if (operation.kind == OperationKind::retire) retired.push_back(operation.ticket);
  }
  std::vector<int> calls;
  std::vector<std::uint64_t> values;
  std::vector<std::uint64_t> retired;
};

/// Three sequences destroyed against work on three streams that completes in the order
/// `completion`, then a new one that takes all blocks.
void play(const std::vector<std::size_t>& completion, bool eager, CallOrder& log) {
  KvCacheOptions options = test::small_options();
  options.log = &log;
  options.eager_retire = eager;
  SmallCache t(options);
  std::vector<StreamId> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(*t.device->create_stream());
    ASSERT_OK(t.device->launch_host([](void*) { return Status{}; }, nullptr, streams.back()));
  }
  std::vector<SequenceId> ids;
  for (const std::int32_t tokens : {8, 4, 12}) ids.push_back(t.sequence_of(tokens));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_OK(t.cache.destroy(ids[i], *t.cache.fence(streams[i])));
  }
  for (const std::size_t i : completion) {
    EXPECT_TRUE(*t.host().run_one(streams[i]));
    t.steps(1);
  }
  t.sequence_of(test::kSmallBlocks * test::kSmallBlockSize);
}

TEST(KvCacheFence, TheOrderOfCompletionChangesNoIdAndNoRetirement) {
  CallOrder first;
  play({0, 1, 2}, false, first);
  EXPECT_EQ(first.retired, (std::vector<std::uint64_t>{1, 2, 3}));
  std::vector<std::size_t> completion{0, 1, 2};
  while (std::next_permutation(completion.begin(), completion.end())) {
    CallOrder other;
    play(completion, false, other);
    EXPECT_EQ(other.calls, first.calls);
    EXPECT_EQ(other.values, first.values);
  }
}

TEST(KvCacheFence, AnEngineThatGoesIdleKeepsNoTicket) {
  SmallCache t;
  const StreamId other = *t.device->create_stream();
  const SequenceId id = *t.cache.create_sequence();
  write_step(t, id, 5, 1.0F);
  Reader reader = reader_of(t, id);
  ASSERT_OK(t.device->launch_host(Reader::run, &reader, other));
  const auto ticket = t.cache.fence(other);
  ASSERT_OK(ticket);
  ASSERT_OK(t.cache.destroy(id, *ticket));
  ASSERT_OK(t.cache.publish());
  EXPECT_TRUE(reader.has_run) << "publish waits for the work of fences";
  EXPECT_FALSE(t.cache.manager().is_open(*ticket));
  EXPECT_EQ(t.cache.snapshot().open_tickets, 0);
  EXPECT_EQ(t.cache.snapshot().blocks.fenced, 0);
  EXPECT_FALSE(t.cache.publisher().has_pending_work());
}

TEST(KvCacheFence, EagerRetiresWhatHasCompletedAndLogsIt) {
  const test::LogCapture lines(LogLevel::info);
  CallOrder log;
  play({2, 0, 1}, true, log);
  EXPECT_EQ(log.retired, (std::vector<std::uint64_t>{3, 1, 2}));
  EXPECT_TRUE(lines.contains(LogLevel::info, "eager: retired ticket"));
}

TEST(KvCacheFence, DestroyingTheCacheWaitsForReaders) {
  auto device = HostDevice::create({.streams = HostStreams::manual}).value();
  const StreamId other = *device->create_stream();
  bool has_run = false;
  const auto read = [](void* flag) {
    *static_cast<bool*>(flag) = true;
    return Status{};
  };
  {
    KvCache cache = KvCache::create(*device, test::small_options()).value();
    ASSERT_OK(device->launch_host(read, &has_run, other));
    ASSERT_OK(cache.fence(other));
  }
  EXPECT_TRUE(has_run);
}

// ---- bytes that readers were promised -----------------------------------------------------------

TEST(KvCacheFence, AReaderOfADestroyedBranchIsNotOverwrittenByTheOther) {
  KvCacheOptions options = test::small_options();
  options.steps_in_flight = 4;
  SmallCache t(options);
  const SequenceId parent = *t.cache.create_sequence();
  write_step(t, parent, 4, 1.0F);
  const SequenceId branch = *t.cache.fork(parent, 4);
  const StreamId other = *t.device->create_stream();
  Reader reader = reader_of(t, branch);
  ASSERT_OK(t.device->launch_host(Reader::run, &reader, other));
  ASSERT_OK(t.cache.destroy(branch, *t.cache.fence(other)));
  ASSERT_OK(t.cache.truncate(parent, 2));
  write_step(t, parent, 2, 99.0F);
  ASSERT_OK(t.device->synchronize(other));
  EXPECT_TRUE(reader.has_run && reader.is_intact);
}

TEST(KvCacheFence, TokensCutAgainstATicketCanBeReadUntilItRetires) {
  SmallCache t;
  const SequenceId id = *t.cache.create_sequence();
  write_step(t, id, 4, 1.0F);
  const StreamId other = *t.device->create_stream();
  Reader reader = reader_of(t, id);
  ASSERT_OK(t.device->launch_host(Reader::run, &reader, other));
  ASSERT_OK(t.cache.truncate(id, 2, *t.cache.open_ticket(other)));
  write_step(t, id, 2, 99.0F);
  ASSERT_OK(t.device->synchronize(other));
  EXPECT_TRUE(reader.has_run && reader.is_intact);
}

// ---- open tickets -------------------------------------------------------------------------------

TEST(KvCacheOpenTickets, NoStepWaitsForThem) {
  for (const bool eager : {false, true}) {
    KvCacheOptions options = test::small_options();
    options.eager_retire = eager;
    SmallCache t(options);
    const StreamId other = *t.device->create_stream();
    const SequenceId old = *t.cache.create_sequence();
    write_step(t, old, 12, 1.0F);
    Reader transfer = reader_of(t, old);
    ASSERT_OK(t.device->launch_host(Reader::run, &transfer, other));
    const Ticket ticket = *t.cache.open_ticket(other);
    ASSERT_OK(t.cache.destroy(old, ticket));
    const SequenceId next = *t.cache.create_sequence();
    for (int i = 0; i < 20; ++i) write_step(t, next, 1, 2.0F);
    ASSERT_OK(t.cache.publish());
    EXPECT_FALSE(transfer.has_run) << "who waits runs the stream";
    EXPECT_FALSE(t.cache.publisher().has_pending_work()) << "an idle engine is not stuck";
    EXPECT_EQ(t.cache.snapshot().open_tickets, 1);
    EXPECT_EQ(t.cache.manager().stats().fenced, 3);
    const Status early = t.cache.retire(ticket);
    EXPECT_FAILS(early, failed_precondition, ticket);
    EXPECT_NE(t.cache.describe(early).find("work is under way"), std::string::npos);
    ASSERT_OK(t.device->synchronize(other));
    EXPECT_TRUE(transfer.is_intact);
    if (eager) {
      ASSERT_OK(t.cache.begin_step());
      ASSERT_OK(t.cache.end_step());
      EXPECT_FAILS(t.cache.retire(ticket), not_found, ticket);
    } else {
      ASSERT_OK(t.cache.retire(ticket));
    }
    EXPECT_EQ(t.cache.manager().stats().fenced, 0);
  }
}

TEST(KvCacheOpenTickets, WithoutAStreamOnlyTheEngineRetiresThem) {
  KvCacheOptions options = test::small_options();
  options.eager_retire = true;
  SmallCache t(options);
  const SequenceId id = t.sequence_of(8);
  const Ticket ticket = *t.cache.open_ticket();
  ASSERT_OK(t.cache.destroy(id, ticket));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(t.step({}));
  EXPECT_EQ(t.cache.manager().stats().fenced, 2);
  const test::LogCapture lines(LogLevel::warning);
  EXPECT_OK(t.cache.retire(ticket));
  EXPECT_EQ(t.cache.manager().stats().free, test::kSmallBlocks);
  EXPECT_FAILS(t.cache.retire(ticket), not_found, ticket);
  ASSERT_OK(t.cache.open_ticket());
  KvCache(std::move(t.cache));
  EXPECT_TRUE(lines.contains(LogLevel::warning, "1 open tickets without a stream"));
}

TEST(KvCacheOpenTickets, AStepsTicketIsNotTheEnginesToRetire) {
  SmallCache t;
  const Ticket ticket = *t.cache.fence(t.cache.stream());
  const Status refused = t.cache.retire(ticket);
  EXPECT_FAILS(refused, failed_precondition, ticket);
  EXPECT_NE(t.cache.describe(refused).find("begin_step or publish retires it"), std::string::npos);
}

// ---- ids of others ------------------------------------------------------------------------------

TEST(KvCacheFence, StreamsAndTicketsOfOthersAreRefused) {
  SmallCache here;
  SmallCache there;
  const StreamId foreign = *there.device->create_stream();
  const StreamId own = *here.device->create_stream();
  EXPECT_NE(foreign, own);
  EXPECT_FAILS(here.cache.fence(foreign), not_found, stream);
  EXPECT_FAILS(here.cache.open_ticket(foreign), not_found, stream);
  EXPECT_FAILS(here.device->synchronize(foreign), not_found, stream);
  ASSERT_OK(here.cache.fence(own));
  const Ticket ticket = *there.cache.fence(foreign);
  const SequenceId id = here.sequence_of(3);
  EXPECT_FAILS(here.cache.destroy(id, ticket), not_found, ticket);
  EXPECT_FAILS(here.cache.truncate(id, 1, ticket), not_found, ticket);
  EXPECT_FAILS(here.cache.retire(ticket), not_found, ticket);
  const EventId event = *there.device->create_event();
  EXPECT_FAILS(here.device->record(event, own), not_found, event);
}

}  // namespace
}  // namespace kvarena
