// Every call with the k-th request for memory refused, for every k: nothing is thrown, nothing is
// lost, and the accounts hold.

#include "failing_memory.hpp"
#include "kvarena/cache/cache_footprint.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/device/residency.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

constexpr std::uint64_t kCapacityBytes = 1 << 24;
constexpr std::string_view kNoText = "(out of memory)";
constexpr std::string_view kLongText = "longer than a string without the heap";

KvCacheOptions small_cache() {
  KvCacheOptions options{.layout = {.num_layers = 2,
                                    .num_kv_heads = 1,
                                    .head_dim_k = 8,
                                    .dtype = DType::f32,
                                    .block_size_tokens = 4}};
  options.size.num_blocks = 16;
  options.num_q_heads = 1;
  options.max_sequences = 8;
  options.max_open_tickets = 4;
  options.num_threads = 2;
  return options;
}

/// What a call answered that had no memory: ok, or that there is none.
bool is_answer(const Status& status) {
  return status.is_ok() ||
         (status.code == StatusCode::exhausted && status.resource == Resource::host_memory) ||
         status.code == StatusCode::insufficient_vram;  // a host device's memory
}

/// Plays `call` with each request refused in turn until it makes no more. What it has made goes
/// when it returns. Returns how many requests it made.
long refuse_each(const std::function<Status(test::FailingMemory&)>& call) {
  for (long k = 1;; ++k) {
    const long before = test::live_pieces();
    test::FailingMemory memory(k);
    Status status;
    bool has_thrown = false;
    try {
      status = call(memory);
    } catch (...) {
      has_thrown = true;
    }
    memory.disarm();
    const long lost = test::live_pieces() - before;
    EXPECT_FALSE(has_thrown) << "request " << k;
    EXPECT_TRUE(is_answer(status)) << "request " << k << ": " << describe(status);
    EXPECT_EQ(lost, 0) << "request " << k;
    if (!memory.was_reached() || has_thrown || lost != 0) return k - 1;
  }
}

/// The same of a call that is made and then looked at while memory is there.
template <class Call>
long refuse_each_of(Call call) {
  return refuse_each([&](test::FailingMemory& memory) {
    const auto made = call();
    memory.disarm();
    return test::status_of(made);
  });
}

class OutOfMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<HostDevice>> device =
        HostDevice::create({.capacity_bytes = kCapacityBytes});
    ASSERT_OK(device);
    device_ = std::move(*device);
    // What process and device make once: a device keeps the room of its last refusal.
    EXPECT_FALSE(device_->allocate({.bytes = kCapacityBytes + 1, .description = kLongText}));
    Result<KvCache> cache = KvCache::create(*device_, small_cache());
    ASSERT_OK(cache);
    static_cast<void>(cache->describe(exhausted(Resource::block, 1, 0)));
  }
  void TearDown() override {
    EXPECT_EQ(device_->tracker().breakdown().total.bytes, 0U);
    EXPECT_EQ(device_->memory_info()->free_bytes, kCapacityBytes);
  }

  std::unique_ptr<HostDevice> device_;
};

TEST_F(OutOfMemory, LayoutsAreRefused) {
  const UniformLayoutOptions options{.num_layers = 4, .num_kv_heads = 1, .head_dim_k = 8};
  EXPECT_GT(refuse_each_of([&] { return KvLayout::create(options); }), 0);
}

TEST_F(OutOfMemory, DevicesAreRefused) {
  EXPECT_GT(refuse_each_of([] { return HostDevice::create({.capacity_bytes = kCapacityBytes}); }),
            0);
}

TEST_F(OutOfMemory, StreamsAndEventsAreRefused) {
  EXPECT_GT(refuse_each([this](test::FailingMemory& memory) {
              const Result<StreamId> stream = device_->create_stream();
              memory.disarm();
              return stream ? device_->destroy_stream(*stream) : stream.status();
            }),
            0);
  EXPECT_GT(refuse_each([this](test::FailingMemory& memory) {
              const Result<EventId> event = device_->create_event();
              memory.disarm();
              return event ? device_->destroy_event(*event) : event.status();
            }),
            0);
}

TEST_F(OutOfMemory, AllocationsAreRefused) {
  EXPECT_GT(refuse_each([this](test::FailingMemory& memory) {
              const Result<void*> pointer =
                  device_->allocate({.bytes = 4096, .description = kLongText});
              memory.disarm();
              // The refusal that the device keeps has the description.
              static_cast<void>(device_->allocate({.bytes = kCapacityBytes + 1}));
              return pointer ? device_->free(*pointer) : pointer.status();
            }),
            0);
}

TEST_F(OutOfMemory, ManagersAndTablesAreRefused) {
  EXPECT_GT(refuse_each_of([] { return BlockManager::create({.num_blocks = 64}); }), 0);
  BlockManager manager = BlockManager::create({.num_blocks = 64}).value();
  EXPECT_GT(refuse_each_of([&] { return BlockTables::create(manager, {}); }), 0);
  BlockTables tables = BlockTables::create(manager, {}).value();
  EXPECT_GT(refuse_each_of([&] { return StepPublisher::create(manager, tables); }), 0);
}

TEST_F(OutOfMemory, ArenasAreRefused) {
  const KvLayout layout =
      KvLayout::create(UniformLayoutOptions{.num_layers = 4, .num_kv_heads = 1, .head_dim_k = 8})
          .value();
  EXPECT_GT(
      refuse_each_of([&] { return Arena::create(*device_, layout, {.size = {.num_blocks = 8}}); }),
      0);
}

TEST_F(OutOfMemory, PlansAreRefused) {
  EXPECT_GT(refuse_each_of([] { return cache_footprint(small_cache(), {}); }), 0);
  EXPECT_GT(refuse_each_of([] { return fit_cache(small_cache(), {}, 1 << 20); }), 0);
  const capacity::ModelSpec model = *capacity::find_model_preset("Llama-3.1-8B");
  const capacity::PlanOptions options{.memory_bytes = std::int64_t{24} << 30};
  EXPECT_GT(refuse_each_of([&] { return capacity::plan(model, options); }), 0);
}

TEST_F(OutOfMemory, CachesAreRefused) {
  EXPECT_GT(refuse_each_of([this] { return KvCache::create(*device_, small_cache()); }), 0);
}

TEST_F(OutOfMemory, ChecksSayThatTheyCouldNotBeMade) {
  KvCache cache = KvCache::create(*device_, small_cache()).value();
  ASSERT_OK(cache.create_sequence());
  EXPECT_GT(refuse_each_of([&] { return cache.check_invariants(); }), 0);
  EXPECT_GT(refuse_each_of([this] { return verify_residency(*device_).status; }), 0);
}

TEST_F(OutOfMemory, ListsAreEmpty) {
  KvCache cache = KvCache::create(*device_, small_cache()).value();
  ASSERT_OK(cache.create_sequence());
  cache.publisher().request_details();
  ASSERT_OK(cache.publish());
  const test::FailingMemory refused(1);
  const std::vector<HolderReport> holders = cache.manager().holders();
  const test::FailingMemory refused_again(1);
  const std::vector<SequenceId> sequences = cache.tables().sequences();
  const test::FailingMemory refused_details(1);
  const PoolDetails details = cache.publisher().details();
  const test::FailingMemory refused_records(1);
  const std::vector<AllocationRecord> records = device_->tracker().allocations();
  EXPECT_TRUE(holders.empty());
  EXPECT_TRUE(sequences.empty());
  EXPECT_TRUE(details.holders.empty());
  EXPECT_EQ(details.explanation.stats.holders, 1);
  EXPECT_TRUE(records.empty());
}

TEST_F(OutOfMemory, TextsAreShort) {
  KvCache cache = KvCache::create(*device_, small_cache()).value();
  const Status refusal = exhausted(Resource::block, 1, 0);
  const std::vector<std::function<std::string()>> texts = {
      [&] { return describe(refusal); },
      [&] { return cache.describe(refusal); },
      [&] { return cache.describe(invalid_option(Option::dtype, 99, 0, 4)); },
      [&] { return device_->describe(insufficient_vram(2, 1)); },
      [&] { return device_->tracker().report(); },
      [&] { return to_string(device_->tracker().breakdown()); },
      [&] { return to_string(cache.manager().explain(1)); },
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string whole = texts[i]();
    const long requests = refuse_each([&](test::FailingMemory& memory) {
      const std::string text = texts[i]();
      memory.disarm();
      const bool says_so = text.find(kNoText) != std::string::npos;
      return says_so || text == whole ? Status{} : not_found(Resource::name, i);
    });
    EXPECT_GT(requests, 0) << i;
  }
}

TEST_F(OutOfMemory, ALifeTakesNone) {
  KvCache cache = KvCache::create(*device_, small_cache()).value();
  const StreamId other = device_->create_stream().value();
  std::vector<float> rows(64 * 8);
  const long requests = refuse_each([&](test::FailingMemory& memory) {
    Status first;  // an assertion would take memory of its own
    const auto expect_ok = [&first](const Status& status) { first = first ? status : first; };
    const Result<SequenceId> one = cache.create_sequence();
    const Result<SequenceId> two = cache.create_sequence();
    for (int step = 0; step < 4; ++step) {
      expect_ok(cache.begin_step());
      const AppendDemand demands[] = {{*one, 3}, {*two, 2}};
      expect_ok(cache.append(demands).status());
      expect_ok(cache.write_kv({0, rows.data(), rows.data(), DType::f32}));
      expect_ok(cache.attend({0, rows.data(), DType::f32, rows.data(), DType::f32}));
      expect_ok(cache.end_step());
    }
    const Result<SequenceId> branch = cache.fork(*one, 7);
    expect_ok(cache.truncate(*one, 5));
    expect_ok(cache.reserve_capacity(*two, 20));
    const Result<Ticket> ticket = cache.fence(other);
    expect_ok(cache.destroy(*branch, *ticket));
    expect_ok(cache.publish());
    expect_ok(cache.begin_step());
    const AppendDemand large{*one, 200};
    const bool fits = cache.append(std::span(&large, 1)).is_ok();
    expect_ok(cache.end_step());
    expect_ok(cache.synchronize());
    expect_ok(cache.destroy(*one));
    expect_ok(cache.destroy(*two));
    memory.disarm();
    EXPECT_FALSE(fits);
    EXPECT_OK(first);
    return cache.check_invariants();
  });
  EXPECT_EQ(requests, 0);
  EXPECT_OK(device_->destroy_stream(other));
}

}  // namespace
}  // namespace kvarena
