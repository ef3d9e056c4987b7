// A KvCache under load for a time that the environment sets: batches of sequences that are
// prefilled in chunks, decoded, forked, rolled back and freed at random, with sampled attention
// compared. Nothing may grow: not the device's bytes, not the process. On the host, and on a GPU
// where there is one.
//
// KVARENA_STRESS_SECONDS   how long (20; less under sanitizers)
// KVARENA_STRESS_LAYERS    layers of 32 heads of 128, f16 (4; 32 makes 8.4 GB with 1,000 blocks)
// KVARENA_STRESS_BLOCKS    blocks of 16 tokens (1,000)
// KVARENA_STRESS_SEED      of everything random (1)

#include "support/devices.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/shadow_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace kvarena {
namespace {

using test::number_from_environment;
using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kMaxGrowthBytes = std::int64_t{8} << 20;
constexpr std::int64_t kLongest = 512;  // tokens of a sequence
constexpr std::int32_t kHeads = test::kSanitized ? 8 : 32;
constexpr std::int32_t kHeadDim = test::kSanitized ? 32 : 128;
constexpr std::int32_t kStepTokens = test::kSanitized ? 128 : 512;

test::EngineOptions stress_options() {
  const std::uint64_t layers =
      number_from_environment("KVARENA_STRESS_LAYERS", test::kSanitized ? 1 : 4);
  const std::uint64_t blocks =
      number_from_environment("KVARENA_STRESS_BLOCKS", test::kSanitized ? 300 : 1000);
  test::EngineOptions options;
  options.cache = {.layout = {.num_layers = static_cast<std::int32_t>(layers),
                              .num_kv_heads = kHeads,
                              .head_dim_k = kHeadDim,
                              .dtype = DType::f16},
                   .size = {.num_blocks = static_cast<std::int64_t>(blocks)},
                   .num_q_heads = kHeads,
                   .max_sequences = 64,
                   .max_step_tokens = kStepTokens,
                   .steps_in_flight = 2};
  options.io_dtype = DType::f16;
  options.checked_outputs = 1;
  options.longest_tokens = kLongest;
  options.seed = number_from_environment("KVARENA_STRESS_SEED", 1);
  return options;
}

/// A point in the run.
struct Sample {
  double seconds = 0;    ///< since the start
  double step_ms = 0;    ///< of the engine's step, the sampled comparison included
  double decode_ns = 0;  ///< of a step in which all rows decode, for each token cached; 0: none
  std::uint64_t device_bytes = 0;
  std::int64_t resident_bytes = 0;
};

/// Batches of 10 to 50 sequences of 64 to 512 tokens.
class StressRun {
 public:
  StressRun(Device& device, test::ShadowEngine& engine, std::uint64_t seed)
      : device_(device), engine_(engine), random_(seed) {}

  void run_for(double seconds) {
    while (elapsed() < seconds) {
      play_batch(seconds);
      if (::testing::Test::HasFatalFailure()) return;
      ++num_batches_;
    }
  }
  const std::vector<Sample>& samples() const noexcept { return samples_; }
  std::int64_t num_batches() const noexcept { return num_batches_; }
  std::int64_t num_preemptions() const noexcept { return num_preemptions_; }

 private:
  struct Member {
    SequenceId id;
    std::int64_t prompt;  // tokens
    std::int64_t target;  // tokens when it is complete
  };

  double elapsed() const { return Seconds(std::chrono::steady_clock::now() - start_).count(); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::int64_t length_of(const Member& m) const { return std::ssize(engine_.sequences().at(m.id)); }

  void play_batch(double seconds) {
    forks_left_ = 10;
    for (std::int64_t n = between(10, 50); n > 0; --n) {
      const std::int64_t target = between(64, kLongest);
      members_.push_back({engine_.create_sequence(), target - between(8, 48), target});
      ASSERT_NE(members_.back().id, kNoSequence);
    }
    while (!members_.empty() && elapsed() < seconds) {
      change_members();
      play_step();
      if (::testing::Test::HasFatalFailure()) return;
      std::erase_if(members_, [this](const Member& m) {
        return length_of(m) >= m.target && engine_.destroy(m.id).is_ok();
      });
    }
    ASSERT_OK(engine_.finish());
    if (!members_.empty()) engine_.compare_bytes(members_.front().id);
    std::shuffle(members_.begin(), members_.end(), random_);
    for (const Member& member : members_) ASSERT_OK(engine_.destroy(member.id));
    members_.clear();
    ASSERT_EQ(engine_.cache().manager().stats().free, engine_.cache().arena().num_blocks());
    ASSERT_EQ(engine_.cache().tables().stats().entries, 0);
    ASSERT_EQ(engine_.mismatches().wrong, 0) << engine_.mismatches().first;
  }

  void change_members() {
    if (members_.empty()) return;
    const auto chosen = static_cast<std::size_t>(between(0, std::ssize(members_) - 1));
    const Member member = members_[chosen];
    const std::int64_t length = length_of(member);
    const std::int64_t roll = between(0, 19);
    if (roll < 2 && length > 0 && forks_left_ > 0) {
      --forks_left_;
      const Member child{engine_.fork(member.id, between(1, length)), member.prompt, member.target};
      ASSERT_NE(child.id, kNoSequence);
      members_.push_back(child);
    } else if (roll < 6 && length > 4) {
      ASSERT_OK(engine_.truncate(member.id, length - between(1, 4)));
    } else if (roll < 7) {
      remove(chosen);
    }
  }

  void remove(std::size_t index) {
    ASSERT_OK(engine_.destroy(members_[index].id));
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  /// A chunk for the prompts in turn, a token for the rest.
  std::vector<AppendDemand> demands() {
    std::vector<AppendDemand> list;
    std::int64_t budget = kStepTokens - std::ssize(members_);
    for (const Member& member : members_) {
      const std::int64_t prompt = member.prompt - length_of(member);
      const std::int64_t chunk =
          std::clamp<std::int64_t>(prompt, 1, 1 + std::min<std::int64_t>(budget, 128));
      budget -= chunk - 1;
      list.push_back({member.id, static_cast<std::int32_t>(chunk)});
    }
    return list;
  }

  void play_step() {
    const double before = elapsed();
    Status status = engine_.step(demands());
    while (status.code == StatusCode::exhausted && members_.size() > 1) {
      remove(members_.size() - 1);
      ++num_preemptions_;
      status = engine_.step(demands());
    }
    ASSERT_OK(status);
    ASSERT_OK(engine_.cache().check_invariants());
    const PoolSnapshot now = engine_.cache().snapshot();
    ASSERT_TRUE(now.blocks.balanced());
    const bool decodes = now.tables.tokens - last_tokens_ <= std::ssize(members_);
    last_tokens_ = now.tables.tokens;
    const double step = elapsed() - before;
    samples_.push_back({.seconds = elapsed(),
                        .step_ms = 1e3 * step,
                        .decode_ns = decodes ? 1e9 * step / static_cast<double>(last_tokens_) : 0,
                        .device_bytes = device_.tracker().breakdown().total.bytes,
                        .resident_bytes = test::resident_bytes()});
  }

  Device& device_;
  test::ShadowEngine& engine_;
  std::mt19937_64 random_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Member> members_;
  std::vector<Sample> samples_;
  std::int64_t last_tokens_ = 0;
  std::int64_t forks_left_ = 0;  // in this batch
  std::int64_t num_batches_ = 0;
  std::int64_t num_preemptions_ = 0;
};

/// Median of a figure over the samples between two fractions of the run that have it; 0: none has.
double median(const std::vector<Sample>& samples, double Sample::*figure, double from, double to) {
  std::vector<double> values;
  for (const Sample& sample : samples) {
    const double part = sample.seconds / samples.back().seconds;
    if (part >= from && part <= to && sample.*figure > 0) values.push_back(sample.*figure);
  }
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

class CacheStress : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, CacheStress, ::testing::ValuesIn(test::device_kinds()),
                         test::kind_name);

TEST_P(CacheStress, ALongRunStaysAsItWas) {
  const double seconds = static_cast<double>(
      number_from_environment("KVARENA_STRESS_SECONDS", test::kSanitized ? 8 : 20));
  const auto device = test::make_device(GetParam());
  ASSERT_NE(device, nullptr);
  const std::uint64_t bytes_before = device->tracker().breakdown().total.bytes;
  {
    const test::EngineOptions options = stress_options();
    test::ShadowEngine engine(*device, options);
    ASSERT_OK(engine.created()) << device->describe(engine.created());
    ASSERT_OK(engine.finish());  // the pool is filled, so its pages are there from the first sample
    StressRun run(*device, engine, options.seed);
    run.run_for(seconds);
    if (HasFatalFailure()) return;
    const std::vector<Sample>& all = run.samples();
    ASSERT_FALSE(all.empty());
    const auto tenth = std::find_if(all.begin(), all.end(), [&](const Sample& sample) {
      return sample.seconds >= 0.1 * all.back().seconds;
    });
    std::int64_t growth = 0;
    for (auto sample = tenth; sample != all.end(); ++sample) {
      ASSERT_EQ(sample->device_bytes, tenth->device_bytes);
      growth = std::max(growth, sample->resident_bytes - tenth->resident_bytes);
    }
    std::printf(
        "%zu steps, %lld batches, %lld preemptions, %lld numbers compared\n"
        "from 10 %% to the end: %llu device bytes, resident %+lld bytes at most\n"
        "median step: %.2f ms in the first tenth, %.2f ms in the last; decode for each cached "
        "token: "
        "%.0f ns and %.0f ns (0: none)\n",
        all.size(), static_cast<long long>(run.num_batches()),
        static_cast<long long>(run.num_preemptions()),
        static_cast<long long>(engine.mismatches().compared),
        static_cast<unsigned long long>(tenth->device_bytes), static_cast<long long>(growth),
        median(all, &Sample::step_ms, 0, 0.1), median(all, &Sample::step_ms, 0.9, 1),
        median(all, &Sample::decode_ns, 0, 0.1), median(all, &Sample::decode_ns, 0.9, 1));
    EXPECT_GT(engine.mismatches().compared, 0);
    if (!test::kSanitized) {
      EXPECT_LE(growth, kMaxGrowthBytes);
    }
  }
  EXPECT_EQ(device->tracker().breakdown().total.bytes, bytes_before);
}

TEST_P(CacheStress, AHundredLivesGiveEveryByteBack) {
  const auto device = test::make_device(GetParam());
  ASSERT_NE(device, nullptr);
  std::int64_t resident = 0;
  for (std::uint64_t life = 0; life < 100; ++life) {
    if (life == 10) resident = test::resident_bytes();  // allocator and threads have warmed up
    test::EngineOptions options;
    options.cache = {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64},
                     .size = {.num_blocks = 64},
                     .num_q_heads = 8,
                     .max_sequences = 8,
                     .max_step_tokens = 64,
                     .num_threads = 2};
    options.checked_outputs = 4;
    options.seed = life;
    test::ShadowEngine engine(*device, options);
    ASSERT_OK(engine.created());
    const std::vector<AppendDemand> prompts{{engine.create_sequence(), 40},
                                            {engine.create_sequence(), 9}};
    ASSERT_OK(engine.step(prompts));
    ASSERT_NE(engine.fork(prompts[0].sequence, 33), kNoSequence);
    ASSERT_OK(
        engine.step(std::vector<AppendDemand>{{prompts[0].sequence, 1}, {prompts[1].sequence, 1}}));
    if (life % 2 == 0) {
      ASSERT_OK(engine.finish());  // the others end with work under way and sequences alive
    }
    ASSERT_EQ(engine.mismatches().wrong, 0) << engine.mismatches().first;
    const MemoryBreakdown used = device->tracker().breakdown();
    ASSERT_EQ(used.by_purpose[static_cast<std::size_t>(MemoryPurpose::kv_cache)].count, 1U);
  }
  EXPECT_EQ(device->tracker().breakdown().total.bytes, 0U);
  EXPECT_EQ(device->tracker().breakdown().total.count, 0U);
  if (!test::kSanitized) {
    EXPECT_LE(test::resident_bytes() - resident, kMaxGrowthBytes);
  }
}

}  // namespace
}  // namespace kvarena
