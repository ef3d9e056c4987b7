// Recurrent layers in a cache on the host: toy recurrences give the bits of runs without a cache,
// after forks, cuts, checkpoints, aborted steps, and sequences that were preempted and begun again.
// Bytes that nobody has are NaN before every step.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"

#include "support/environment.hpp"
#include "support/process_memory.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/toy_recurrence.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

using test::Recurrence;
using test::ToyShape;

struct StatesCase {
  const char* name;
  Recurrence kind = Recurrence::gated_delta;
  StateMode mode = StateMode::in_place;
  bool keeps = true;
  std::int32_t rollback = 0;
  std::int64_t every = 16;
  HostStreams streams = HostStreams::manual;
  std::int64_t num_pages = 60;
  bool prefix_cache = false;
};

void PrintTo(const StatesCase& its, std::ostream* out) { *out << its.name; }

constexpr std::int32_t kLayers = 8;  // 3 and 7 have attention
constexpr std::size_t kMaxLives = 5;

/// Random lives of sequences of a model with attention and recurrent layers.
class StatesEngine {
 public:
  StatesEngine(const StatesCase& its, std::uint64_t seed) : its_(its), random_(seed) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      (layer % 4 == 3 ? full_ : recurrent_).push_back({.layer = layer});
    }
    planes_ = ToyShape::planes();
    device_ = HostDevice::create({.streams = its.streams, .max_queued = 1 << 12}).value();
    const std::vector<LayerGroup> groups{{.layers = full_,
                                          .num_kv_heads = 1,
                                          .head_dim_k = 8,
                                          .dtype = DType::f32,
                                          .block_size_tokens = 4},
                                         {.kind = PagedKind::state,
                                          .layers = recurrent_,
                                          .rollback_tokens = its.rollback,
                                          .planes = planes_,
                                          .mode = its.mode,
                                          .keeps_for_undo = its.keeps}};
    const KvCacheOptions options{.size = {.num_blocks = its.num_pages},
                                 .num_q_heads = 1,
                                 .max_sequences = kMaxLives,
                                 .max_sequence_tokens = 120,
                                 .max_step_tokens = 200,
                                 .num_threads = 1,
                                 .groups = groups,
                                 .checkpoint_every_tokens = its.every,
                                 .prefix_cache = {.is_on = its.prefix_cache}};
    const auto predicted = cache_footprint(options, target_of(*device_).value());
    cache_ = std::make_unique<KvCache>(KvCache::create(*device_, options).value());
    test::expect_as_predicted(*device_, *cache_, *predicted);
  }

  void play(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      change();
      poison();
      step();
      if (i % 16 != 0) continue;
      EXPECT_OK(cache_->check_invariants());
    }
    EXPECT_OK(cache_->synchronize());
    for (const auto& [id, tokens] : lives_) EXPECT_OK(cache_->destroy(id));
    lives_.clear();
    prompts_.clear();
    EXPECT_EQ(cache_->manager().page_stats().available(), its_.num_pages);
  }
  /// What the games played so far have not met.
  std::string missing(const std::vector<const char*>& expected) const {
    std::string names;
    for (const char* outcome : expected) {
      if (!outcomes_.contains(outcome)) names += std::string(outcome) + "; ";
    }
    return names;
  }

 private:
  using Tokens = std::vector<std::int32_t>;
  /// A recurrent layer of one row of a step, queued on the stream.
  struct Kernel {
    StatesEngine* engine;
    std::int32_t layer;
    StateView view;
    StateSlots slots;
    std::size_t row;
    Tokens tokens;  // new ones
    std::vector<float> out;
  };

  SequenceId any() {
    auto it = lives_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % lives_.size()));
    return it->first;
  }

  void change() {
    if (lives_.empty() || (lives_.size() < kMaxLives && random_() % 4 == 0)) {
      lives_[cache_->create_sequence().value()] = {};
      return;
    }
    const SequenceId id = any();
    Tokens& tokens = lives_[id];
    const auto now = std::ssize(tokens);
    const std::int64_t asked = std::max<std::int64_t>(
        0, now - static_cast<std::int64_t>(random_() % (random_() % 2 == 0 ? 4 : 40)));
    const std::int64_t length = cache_->tables().restorable_length(id, asked).value();
    const Tokens cut(tokens.begin(), tokens.begin() + length);
    switch (random_() % 8) {
      case 0: {
        if (lives_.size() == kMaxLives) return;
        const auto child = cache_->fork(id, length);
        if (child) lives_[*child] = cut;
        if (child && length > 0) ++outcomes_[length == now ? "forked" : "forked behind"];
        return;
      }
      case 1:
        if (!cache_->truncate(id, length)) return;
        if (length > 0 && length < now) {
          ++outcomes_[now - length <= its_.rollback ? "taken back" : "back at a checkpoint"];
        }
        tokens = cut;
        return;
      case 2:
        if (cache_->checkpoint(id)) ++outcomes_["checkpoint"];
        return;
      case 3: {  // preempted: it begins again, with all of its tokens in one step
        const Tokens again = tokens;
        ASSERT_OK(cache_->destroy(id));
        lives_.erase(id);
        const Result<SequenceId> fresh =
            cache_->create_sequence({.tokens = its_.prefix_cache ? again : Tokens{}});
        ++outcomes_["preempted"];
        if (!fresh) return;  // what it would begin with is promised to others
        const auto found = cache_->tables().info(*fresh)->length_tokens;
        lives_[*fresh] = Tokens(again.begin(), again.begin() + found);
        prompts_[*fresh] = Tokens(again.begin() + found, again.end());
        if (found > 0) ++outcomes_["begun with a state"];
        return;
      }
      case 4:
        ASSERT_OK(cache_->destroy(id));
        lives_.erase(id);
        prompts_.erase(id);
        return;
      default: return;
    }
  }

  /// Every byte that is in no block that is held or cached becomes NaN. No work is under way.
  void poison() {
    ASSERT_OK(cache_->synchronize());
    const BlockManager& manager = cache_->manager();
    const GroupLayout& layout = *cache_->arena().groups();
    std::vector<std::pair<std::int64_t, std::int64_t>> held;  // first byte, bytes
    for (std::int32_t id = 0; id < manager.num_blocks(); ++id) {
      const BlockState state = manager.state(BlockId(id));
      if (state != BlockState::referenced && state != BlockState::evictable) continue;
      const BlockPlace place = manager.place_of(BlockId(id));
      const auto group = static_cast<std::size_t>(place.group);
      const std::size_t parts = layout.parts().size();
      const PagedBlocks& blocks =
          group < parts ? layout.parts()[group].blocks : layout.states()[group - parts].blocks;
      const std::int64_t first = place.page * layout.page_bytes() + place.slot * blocks.block_bytes;
      held.emplace_back(first, blocks.block_bytes);
    }
    std::ranges::sort(held);
    held.emplace_back(cache_->arena().bytes(), 0);
    std::int64_t begin = 0;
    for (const auto& [first, bytes] : held) {
      ASSERT_GE(first, begin);
      std::memset(cache_->arena().base() + begin, 0xFF, static_cast<std::size_t>(first - begin));
      begin = first + bytes;
    }
  }

  Tokens new_tokens(SequenceId id) {
    if (const auto found = prompts_.find(id); found != prompts_.end()) {
      Tokens all = found->second;
      prompts_.erase(found);
      if (!all.empty()) return all;
    }
    const std::uint64_t most = random_() % 4 == 0 ? 40 : 3;
    Tokens tokens(random_() % (most + 1));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_() % 1000);
    return tokens;
  }

  void step() {
    if (lives_.empty()) return;
    std::vector<AppendDemand> demands;
    std::vector<Tokens> news;
    std::size_t total = 0;
    news.reserve(lives_.size());
    for (const auto& [id, tokens] : lives_) {
      if (random_() % 4 == 0) continue;
      Tokens its = new_tokens(id);
      its.resize(std::min({its.size(), 120 - tokens.size(), 200 - total}));
      total += its.size();
      demands.push_back({id, static_cast<std::int32_t>(its.size())});
      news.push_back(std::move(its));
      if (its_.prefix_cache && random_() % 16 != 0) demands.back().tokens = news.back();
    }
    ASSERT_OK(cache_->begin_step());
    const Result<StepBatch> batch = cache_->append(demands);
    if (!batch) {
      ASSERT_EQ(batch.status().resource, Resource::page) << describe(batch.status());
      ++outcomes_["refused"];
      ASSERT_OK(cache_->end_step());
      const SequenceId id = any();
      ASSERT_OK(cache_->destroy(id));
      lives_.erase(id);
      return;
    }
    ASSERT_EQ(batch->states.size(), 1u);
    kernels_.clear();
    for (const GroupLayer& layer : recurrent_) {
      for (std::size_t row = 0; row < demands.size(); ++row) {
        kernels_.push_back({this,
                            layer.layer,
                            cache_->state_view(layer.layer).value(),
                            batch->states[0],
                            row,
                            news[row],
                            {}});
        ASSERT_OK(device_->launch_host(run, &kernels_.back(), cache_->stream()));
      }
    }
    if (random_() % 6 == 0) return abort(demands);
    ASSERT_OK(cache_->end_step());
    ASSERT_OK(cache_->synchronize());
    for (std::size_t row = 0; row < demands.size(); ++row) {
      Tokens& tokens = lives_[demands[row].sequence];
      tokens.insert(tokens.end(), news[row].begin(), news[row].end());
    }
    for (const Kernel& kernel : kernels_) compare(kernel, lives_[demands[kernel.row].sequence]);
  }

  /// The step's kernels may have run. What was written over goes on at a checkpoint.
  void abort(const std::vector<AppendDemand>& demands) {
    ASSERT_OK(cache_->abort_step());
    ++outcomes_["aborted"];
    for (const AppendDemand& demand : demands) {
      Tokens& tokens = lives_[demand.sequence];
      const std::int64_t now = std::ssize(tokens);
      const std::int64_t length = cache_->tables().restorable_length(demand.sequence, now).value();
      if (length == now) continue;
      ASSERT_FALSE(its_.keeps) << "an aborted step keeps the states before it";
      ++outcomes_["lost"];
      ASSERT_OK(cache_->truncate(demand.sequence, length));
      tokens.resize(static_cast<std::size_t>(length));
    }
  }

  float* plane(const Kernel& kernel, std::int32_t slot, std::size_t number) {
    return reinterpret_cast<float*>(kernel.view.base + slot * kernel.view.slot_stride +
                                    kernel.view.planes[number].offset);
  }

  /// A kernel in place has no memory for a state; the other one has no slot for its work.
  static Status run(void* pointer) {
    Kernel& k = *static_cast<Kernel*>(pointer);
    StatesEngine& e = *k.engine;
    const auto parts = static_cast<std::size_t>(k.slots.num_parts);
    const std::size_t at = k.row * parts + static_cast<std::size_t>(k.view.part);
    const std::int32_t read = k.slots.read[at];
    const std::int32_t write = k.slots.write[at];
    if (k.tokens.empty()) return {};
    std::vector<float> own_state(ToyShape::kState);
    std::vector<float> own_conv(ToyShape::kConv);
    const bool in_place = e.its_.mode == StateMode::in_place;
    float* const state = in_place ? e.plane(k, write, 0) : own_state.data();
    float* const conv = in_place ? e.plane(k, write, 1) : own_conv.data();
    if (!in_place && read != -1) {
      std::copy_n(e.plane(k, read, 0), ToyShape::kState, state);
      std::copy_n(e.plane(k, read, 1), ToyShape::kConv, conv);
    }
    const auto store = [&](std::int32_t slot) {
      std::copy_n(state, ToyShape::kState, e.plane(k, slot, 0));
      std::copy_n(conv, ToyShape::kConv, e.plane(k, slot, 1));
    };
    k.out.resize(k.tokens.size() * ToyShape::kOut);
    auto extra = static_cast<std::size_t>(k.slots.extra_offsets[k.row]);
    const auto end = static_cast<std::size_t>(k.slots.extra_offsets[k.row + 1]);
    for (std::size_t i = 0; i < k.tokens.size(); ++i) {
      test::toy_step(e.its_.kind, k.tokens[i], k.layer, state, conv,
                     k.out.data() + i * ToyShape::kOut);
      if (extra == end || k.slots.extra_tokens[extra] != static_cast<std::int32_t>(i)) continue;
      store(k.slots.extra_slots[extra++ * parts + static_cast<std::size_t>(k.view.part)]);
    }
    if (!in_place) store(write);
    return {};
  }

  /// Runs all tokens of a sequence without a cache; the new ones give the same bits.
  void compare(const Kernel& kernel, const Tokens& tokens) {
    std::vector<float> state(ToyShape::kState);
    std::vector<float> conv(ToyShape::kConv);
    std::vector<float> out(ToyShape::kOut);
    const std::size_t first = tokens.size() - kernel.tokens.size();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      test::toy_step(its_.kind, tokens[i], kernel.layer, state.data(), conv.data(), out.data());
      if (i < first) continue;
      const auto* const found = kernel.out.data() + (i - first) * ToyShape::kOut;
      ASSERT_TRUE(std::equal(out.begin(), out.end(), found))
          << "layer " << kernel.layer << ", token " << i << " of " << tokens.size();
    }
  }

  StatesCase its_;
  std::mt19937_64 random_;
  std::vector<GroupLayer> full_;
  std::vector<GroupLayer> recurrent_;
  std::vector<StatePlane> planes_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<KvCache> cache_;
  std::map<SequenceId, Tokens> lives_;
  std::map<SequenceId, Tokens> prompts_;  // of sequences that were preempted
  std::deque<Kernel> kernels_;
  std::map<std::string, int> outcomes_;
};

constexpr auto kDelta = Recurrence::gated_delta;
constexpr auto kMamba = Recurrence::mamba2;
constexpr auto kInPlace = StateMode::in_place;
constexpr auto kReadWrite = StateMode::read_write;

const StatesCase kCases[] = {
    {"DeltaInPlace", kDelta, kInPlace},
    {"DeltaReadWrite", kDelta, kReadWrite},
    {"DeltaOneState", kDelta, kInPlace, false},
    {"DeltaTakenBack", kDelta, kReadWrite, true, 3},
    {"DeltaTakenBackInPlace", kDelta, kInPlace, false, 2, 8},
    {"MambaInPlace", kMamba, kInPlace},
    {"MambaReadWrite", kMamba, kReadWrite, true, 0, 8, HostStreams::threads},
    {"MambaOneState", kMamba, kReadWrite, false, 0, 0},
    {"MambaTakenBack", kMamba, kReadWrite, false, 4},
    {"FewPages", kMamba, kReadWrite, true, 1, 8, HostStreams::manual, 26},
    {"DeltaCached", kDelta, kInPlace, true, 0, 16, HostStreams::manual, 90, true},
    {"DeltaOneStateCached", kDelta, kInPlace, false, 0, 8, HostStreams::threads, 60, true},
    {"MambaTakenBackCached", kMamba, kReadWrite, false, 3, 8, HostStreams::manual, 60, true},
};

class KvCacheStates : public ::testing::TestWithParam<StatesCase> {};

TEST_P(KvCacheStates, GiveTheBitsOfARunWithoutACache) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 7);
  StatesEngine engine(GetParam(), seed);
  std::vector<const char*> expected{"forked", "preempted", "aborted", "checkpoint"};
  if (GetParam().num_pages > 50) expected.push_back("back at a checkpoint");
  if (GetParam().rollback > 0) expected.push_back("taken back");
  if (GetParam().prefix_cache) expected.push_back("begun with a state");
  if (!GetParam().keeps && GetParam().rollback == 0) expected.push_back("lost");
  engine.play(test::kSanitized ? 100 : 1500);
  for (int more = 0; more < 15 && !engine.missing(expected).empty() && !HasFailure(); ++more) {
    engine.play(100);
  }
  EXPECT_FALSE(HasFailure()) << "KVARENA_SEED=" << seed;
  EXPECT_EQ(engine.missing(expected), "");
}

TEST(KvCacheStateCalls, KnowWhichLayersHaveStates) {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  const GroupLayer full[] = {{.layer = 1}};
  const GroupLayer recurrent[] = {{.layer = 0}, {.layer = 2}};
  const std::vector<StatePlane> planes = ToyShape::planes();
  const LayerGroup groups[] = {
      {.layers = full, .num_kv_heads = 1, .head_dim_k = 8, .dtype = DType::f32},
      {.kind = PagedKind::state, .layers = recurrent, .planes = planes}};
  KvCacheOptions options{.size = {.num_blocks = 20}, .num_q_heads = 1, .groups = groups};
  KvCache cache = KvCache::create(*device, options).value();
  EXPECT_FAILS(cache.state_view(1), invalid_argument, layer);
  EXPECT_FAILS(cache.layer_view(0), invalid_argument, layer);
  const SequenceId id = cache.create_sequence().value();
  const AppendDemand demand{id, 1};
  ASSERT_OK(cache.begin_step());
  ASSERT_OK(cache.append(std::span(&demand, 1)));
  float numbers[8] = {};
  EXPECT_FAILS(cache.attend({.layer = 0, .q = numbers, .out = numbers}), invalid_argument, layer);
  const Status refused = cache.write_kv({.layer = 2, .key = numbers, .value = numbers});
  EXPECT_FAILS(refused, invalid_argument, layer);
  EXPECT_NE(cache.describe(refused).find("layer 2 has no K and V"), std::string::npos);
  EXPECT_FAILS(cache.checkpoint(id), failed_precondition, sequence) << "inside a step";
  ASSERT_OK(cache.end_step());
  EXPECT_OK(cache.checkpoint(id));
}

INSTANTIATE_TEST_SUITE_P(, KvCacheStates, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace kvarena
