#pragma once

/// @file
/// An engine that plays random lives of sequences of a model with attention and recurrent layers
/// through a cache on a GPU, and compares what its toy kernels give with runs without a cache, bit
/// for bit. Bytes that nobody has are NaN before every step, in the order of the cache's stream.
/// Steps stay in flight. A cache on the host gets the same calls, and gives the same answers and
/// slots.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "support/device_buffer.hpp"
#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/cuda_states_case.hpp"
#include "unit/cache/footprint.hpp"
#include "unit/cache/group_model.hpp"
#include "unit/cache/toy_kernels.h"
#include "unit/cache/toy_recurrence.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvarena::test {

/// The engine.
class CudaStatesEngine {
 public:
  static constexpr std::int32_t kLayers = 8;  ///< 3 and 7 have attention
  static constexpr std::int32_t kMaxLives = 5;
  static constexpr std::size_t kLongest = 120;
  static constexpr std::size_t kStepTokens = 200;

  CudaStatesEngine(const CudaStatesCase& its, std::uint64_t seed, cudaStream_t home)
      : its_(its), random_(seed), stream_(home) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      (layer % 4 == 3 ? full_ : recurrent_).push_back({.layer = layer});
    }
    planes_ = ToyShape::planes();
    device_ = make_cuda();
    const LayerGroup attention{.layers = full_,
                               .num_kv_heads = 1,
                               .head_dim_k = 8,
                               .dtype = DType::f32,
                               .block_size_tokens = 4};
    const LayerGroup states{.kind = PagedKind::state,
                            .layers = recurrent_,
                            .rollback_tokens = its.rollback,
                            .planes = planes_,
                            .mode = its.mode,
                            .keeps_for_undo = its.keeps};
    const LayerGroup groups[] = {its.states_first ? states : attention,
                                 its.states_first ? attention : states};
    KvCacheOptions options{.size = {.num_blocks = its.num_pages},
                           .num_q_heads = 1,
                           .max_sequences = kMaxLives,
                           .max_sequence_tokens = kLongest,
                           .max_step_tokens = kStepTokens,
                           .steps_in_flight = its.steps_in_flight,
                           .num_threads = 1,
                           .max_decode_tokens = its.max_decode_tokens,
                           .groups = groups,
                           .checkpoint_every_tokens = its.every,
                           .prefix_cache = {.is_on = its.prefix_cache}};
    host_device_ = HostDevice::create({.streams = HostStreams::inline_calls}).value();
    host_ = std::make_unique<KvCache>(KvCache::create(*host_device_, options).value());
    options.home_stream = home;
    const CacheFootprint predicted = cache_footprint(options, target_of(*device_).value()).value();
    Result<KvCache> created = KvCache::create(*device_, options);
    EXPECT_OK(created.status());
    if (!created) return;
    cache_ = std::make_unique<KvCache>(std::move(*created));
    expect_as_predicted(*device_, *cache_, predicted);
    tokens_ = DeviceBuffer::create(*device_, kStepTokens * sizeof(std::int32_t)).value();
    for (const GroupLayer& layer : recurrent_) {
      outputs_[layer.layer] = DeviceBuffer::create(*device_, kOutBytes).value();
    }
  }
  bool is_created() const { return cache_ != nullptr; }
  KvCache& cache() { return *cache_; }

  /// Plays random steps. With `launch`, most steps are run by the graph of `shape` that it
  /// launches.
  void play(int steps, const RecordedStep& shape = {}, const std::function<Status()>& launch = {}) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(num_steps_));
      change();
      if (lives_.empty()) continue;
      poison();
      ++num_steps_;
      const bool is_replayed = launch && random_() % 4 != 0;
      step(is_replayed ? &shape : nullptr, launch);
      if (num_steps_ % 16 != 0) continue;
      EXPECT_OK(cache_->check_invariants());
    }
    flush();
  }
  /// Ends everything: nobody has a page then.
  void end() {
    flush();
    for (const auto& [id, tokens] : lives_) EXPECT_OK(cache_->destroy(id));
    lives_.clear();
    EXPECT_EQ(cache_->manager().page_stats().available(), its_.num_pages);
  }
  /// Ends a recorded step, and others behind it, without its launch. What they were to write is
  /// lost: each sequence goes on where it can. The cache on the host is given up.
  void lose(const RecordedStep& shape) {
    flush();
    host_.reset();
    const std::map<SequenceId, Tokens> before = lives_;
    for (int i = 0; i < its_.steps_in_flight; ++i) {
      Record record;
      ASSERT_OK(cache_->begin_step());
      std::vector<AppendDemand> demands = choose(&shape, record);
      std::erase_if(demands, [&](const AppendDemand& demand) {  // the tokens are not in lives_
        return cache_->tables().info(demand.sequence)->length_tokens == kLongest;
      });
      const Status appended = cache_->append_recorded(shape, demands).status();
      if (!appended) {
        ASSERT_EQ(appended.resource, Resource::page) << describe(appended);
        ASSERT_OK(cache_->append_recorded(shape, {}));
      }
      ASSERT_OK(cache_->end_step());
    }
    const Status lost = cache_->begin_step();
    ASSERT_EQ(lost.code, StatusCode::device_error) << describe(lost);
    for (auto& [id, tokens] : lives_) {
      const std::int64_t length = cache_->tables().info(id)->length_tokens;
      const std::int64_t restored = restorable(id, length);
      ASSERT_LE(restored, std::ssize(before.at(id)));
      if (restored == length) continue;
      ++outcomes_["lost step"];
      const AppendDemand demand{id, 1};
      ASSERT_OK(cache_->begin_step());
      const Status refused = cache_->append(std::span(&demand, 1)).status();
      EXPECT_EQ(refused.resource, Resource::sequence_length) << describe(refused);
      ASSERT_OK(cache_->end_step());
      ASSERT_OK(cache_->truncate(id, restored));
      tokens.resize(static_cast<std::size_t>(restored));
    }
    EXPECT_OK(cache_->check_invariants());
  }
  /// Queues the layers of a recorded step, while the stream is captured.
  Status record(const RecordedStep& shape) {
    const Result<StepBatch> batch = cache_->begin_recording(shape);
    if (!batch) return batch.status();
    EXPECT_TRUE(batch->states.empty());
    queue_layers(*batch, shape.num_rows);
    return cache_->end_recording();
  }
  /// What the games played so far have not met.
  std::string missing(const std::vector<const char*>& expected) const {
    std::string names;
    for (const char* outcome : expected) {
      if (!outcomes_.contains(outcome)) names += std::string(outcome) + "; ";
    }
    return names;
  }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_slots() const { return num_slots_; }
  int num_replays() const { return num_replays_; }

  using Tokens = std::vector<std::int32_t>;

 private:
  static constexpr std::size_t kOutBytes = kStepTokens * ToyShape::kOut * sizeof(float);
  /// A step whose work may be under way.
  struct Record {
    bool is_compared = true;
    Tokens inputs;              // the new tokens of all rows
    std::vector<Tokens> lives;  // by row, with the new ones
    std::vector<std::size_t> num_new;
    std::vector<Tokens> news;  // by row, of demands that tell their tokens
    std::map<std::int32_t, std::vector<float>> outputs;  // by layer
  };

  SequenceId any() {
    auto it = lives_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % lives_.size()));
    return it->first;
  }
  /// Makes a call to both caches, which must answer alike.
  template <class Call>
  auto both(Call call) {
    auto answer = call(*cache_);
    if (!host_) return answer;
    const auto expected = call(*host_);
    if constexpr (std::is_same_v<decltype(answer), Status>) {
      EXPECT_EQ(answer, expected);
    } else {
      EXPECT_EQ(answer.status(), expected.status());
      if (answer && expected) {
        EXPECT_EQ(*answer, *expected);
      }
    }
    return answer;
  }
  std::int64_t restorable(SequenceId id, std::int64_t length) {
    return both([&](KvCache& c) { return c.tables().restorable_length(id, length); }).value();
  }
  void destroy(SequenceId id) {
    ASSERT_OK(both([&](KvCache& c) { return c.destroy(id); }));
    lives_.erase(id);
    prompts_.erase(id);
  }
  /// A sequence with some tokens still to come. What is cached of them it has at once.
  void begin(const Tokens& tokens) {
    SequenceOptions options;
    if (its_.prefix_cache) options.tokens = tokens;
    const auto id = both([&](KvCache& c) { return c.create_sequence(options); });
    if (!id) return;  // what it would begin with is promised to others
    const std::int64_t found = cache_->tables().info(*id)->length_tokens;
    lives_[*id] = Tokens(tokens.begin(), tokens.begin() + found);
    if (found < std::ssize(tokens)) prompts_[*id] = {tokens.begin() + found, tokens.end()};
    if (found > 0) ++outcomes_["begun with a state"];
  }

  void change() {
    if (lives_.empty() || (lives_.size() < kMaxLives && random_() % 4 == 0)) {
      begin({});
      return;
    }
    const SequenceId id = any();
    Tokens& tokens = lives_[id];
    const auto now = std::ssize(tokens);
    const std::int64_t asked = std::max<std::int64_t>(
        0, now - static_cast<std::int64_t>(random_() % (random_() % 2 == 0 ? 4 : 40)));
    const std::int64_t length = restorable(id, asked);
    const Tokens cut(tokens.begin(), tokens.begin() + length);
    switch (random_() % 8) {
      case 0: {
        if (lives_.size() == kMaxLives) return;
        const auto child = both([&](KvCache& c) { return c.fork(id, length); });
        if (child) lives_[*child] = cut;
        if (child && length > 0) ++outcomes_[length == now ? "forked" : "forked behind"];
        return;
      }
      case 1:
        if (!both([&](KvCache& c) { return c.truncate(id, length); })) return;
        if (length > 0 && length < now) {
          ++outcomes_[now - length <= its_.rollback ? "taken back" : "back at a checkpoint"];
        }
        tokens = cut;
        return;
      case 2:
        if (both([&](KvCache& c) { return c.checkpoint(id); })) ++outcomes_["checkpoint"];
        return;
      case 3: {  // preempted: it begins again, with all of its tokens in one step
        const Tokens again = tokens;
        destroy(id);
        begin(again);
        ++outcomes_["preempted"];
        return;
      }
      case 4: destroy(id); return;
      default: return;
    }
  }

  /// Behind the work that is queued so far.
  void poison() {
    for (const auto& [first, bytes] : free_ranges(cache_->manager(), cache_->arena())) {
      ASSERT_OK(device_->fill(cache_->arena().base() + first, 0xFF,
                              static_cast<std::uint64_t>(bytes), cache_->stream()));
    }
  }

  Tokens new_tokens(SequenceId id, const RecordedStep* shape) {
    const auto prompt = prompts_.find(id);
    if (shape == nullptr && prompt != prompts_.end()) {
      Tokens all = std::move(prompt->second);
      prompts_.erase(prompt);
      if (!all.empty()) return all;
    }
    const std::uint64_t most = random_() % 4 == 0 ? 40 : 3;
    const auto count = shape == nullptr ? random_() % (most + 1)
                                        : static_cast<std::uint64_t>(shape->tokens_per_row);
    Tokens tokens(count);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_() % 1000);
    return tokens;
  }

  /// The demands of a step, and a record of it.
  std::vector<AppendDemand> choose(const RecordedStep* shape, Record& record) {
    std::vector<AppendDemand> demands;
    for (const auto& [id, tokens] : lives_) {
      if (random_() % 4 == 0) continue;
      const bool is_begun = !prompts_.contains(id);
      if (shape != nullptr && (!is_begun || std::ssize(demands) == shape->num_rows)) continue;
      Tokens its = new_tokens(id, shape);
      const std::size_t room =
          std::min(kLongest - tokens.size(), kStepTokens - record.inputs.size());
      if (shape != nullptr && its.size() > room) continue;
      its.resize(std::min(its.size(), room));
      demands.push_back({id, static_cast<std::int32_t>(its.size())});
      record.inputs.insert(record.inputs.end(), its.begin(), its.end());
      record.lives.push_back(tokens);
      record.lives.back().insert(record.lives.back().end(), its.begin(), its.end());
      record.num_new.push_back(its.size());
      record.news.push_back(std::move(its));
      if (its_.prefix_cache && random_() % 16 != 0) demands.back().tokens = record.news.back();
    }
    return demands;
  }

  Result<StepBatch> append(const RecordedStep* shape, const std::vector<AppendDemand>& demands) {
    Result<StepBatch> batch =
        shape == nullptr ? cache_->append(demands) : cache_->append_recorded(*shape, demands);
    if (!host_) return batch;
    const Result<StepBatch> expected = host_->append(demands);
    EXPECT_EQ(batch.status(), expected.status());
    if (!batch || !expected) return batch;
    EXPECT_TRUE(std::ranges::equal(batch->slots, expected->slots));
    EXPECT_EQ(batch->num_copies, expected->num_copies);
    EXPECT_EQ(batch->new_blocks, expected->new_blocks);
    EXPECT_EQ(batch->states.size(), 1U);
    EXPECT_EQ(batch->device_states.size(), 1U);
    const StateSlots& found = batch->states[0];
    const StateSlots& wanted = expected->states[0];
    EXPECT_EQ(found.group, wanted.group);
    EXPECT_EQ(batch->device_states[0].group, wanted.group);
    EXPECT_TRUE(std::ranges::equal(found.read, wanted.read));
    EXPECT_TRUE(std::ranges::equal(found.write, wanted.write));
    EXPECT_TRUE(std::ranges::equal(found.extra_offsets, wanted.extra_offsets));
    EXPECT_TRUE(std::ranges::equal(found.extra_tokens, wanted.extra_tokens));
    EXPECT_TRUE(std::ranges::equal(found.extra_slots, wanted.extra_slots));
    return batch;
  }

  void step(const RecordedStep* shape, const std::function<Status()>& launch) {
    ASSERT_OK(both([](KvCache& c) { return c.begin_step(); }));
    if (records_.size() >= 3) flush();
    Record& record = records_.emplace_back();
    const std::vector<AppendDemand> demands = choose(shape, record);
    const Result<StepBatch> batch = append(shape, demands);
    if (!batch) {
      ASSERT_EQ(batch.status().resource, Resource::page) << describe(batch.status());
      ++outcomes_["refused"];
      records_.pop_back();
      ASSERT_OK(both([](KvCache& c) { return c.end_step(); }));
      destroy(any());
      return;
    }
    ASSERT_OK(device_->copy(tokens_.data(), record.inputs.data(),
                            record.inputs.size() * sizeof(std::int32_t), cache_->stream()));
    if (shape != nullptr) {
      ASSERT_OK(launch());
      ++num_replays_;
    } else {
      queue_layers(*batch, static_cast<std::int32_t>(demands.size()));
    }
    if (random_() % 4 == 0) check_arrays(*batch, shape);
    for (const GroupLayer& layer : recurrent_) {
      std::vector<float>& out = record.outputs[layer.layer];
      out.resize(record.inputs.size() * ToyShape::kOut);
      ASSERT_OK(device_->copy(out.data(), outputs_[layer.layer].data(), out.size() * sizeof(float),
                              cache_->stream()));
    }
    if (random_() % 6 == 0) {
      record.is_compared = false;
      return abort(demands, shape);
    }
    ASSERT_OK(both([](KvCache& c) { return c.end_step(); }));
    for (std::size_t row = 0; row < demands.size(); ++row) {
      lives_[demands[row].sequence] = record.lives[row];
    }
  }

  /// The step's kernels may have run. What was written over goes on at a checkpoint.
  void abort(const std::vector<AppendDemand>& demands, const RecordedStep* shape) {
    ASSERT_OK(both([](KvCache& c) { return c.abort_step(); }));
    ++outcomes_[shape == nullptr ? "aborted" : "aborted replay"];
    for (const AppendDemand& demand : demands) {
      Tokens& tokens = lives_[demand.sequence];
      const std::int64_t now = std::ssize(tokens);
      const std::int64_t length = restorable(demand.sequence, now);
      if (length == now) continue;
      ASSERT_FALSE(its_.keeps) << "an aborted step keeps the states before it";
      ++outcomes_["lost"];
      ASSERT_OK(both([&](KvCache& c) { return c.truncate(demand.sequence, length); }));
      tokens.resize(static_cast<std::size_t>(length));
    }
  }

  void queue_layers(const StepBatch& batch, std::int32_t num_rows) {
    const DeviceBatch device_batch = cache_->device_batch().value();
    for (const GroupLayer& layer : recurrent_) {
      const ToyLayer toy{.view = cache_->state_view(layer.layer).value(),
                         .slots = batch.device_states[0],
                         .q_offsets = device_batch.q_offsets,
                         .tokens = static_cast<const std::int32_t*>(tokens_.data()),
                         .out = static_cast<float*>(outputs_[layer.layer].data()),
                         .num_rows = num_rows,
                         .layer = layer.layer,
                         .kind = its_.kind,
                         .in_place = its_.mode == StateMode::in_place};
      ASSERT_EQ(launch_toy(toy, stream_), cudaSuccess);
    }
  }

  std::vector<std::int32_t> read(const std::int32_t* from, std::size_t count) {
    std::vector<std::int32_t> to(count);
    EXPECT_OK(device_->copy(to.data(), from, count * sizeof(std::int32_t), cache_->stream()));
    EXPECT_OK(device_->synchronize(cache_->stream()));
    return to;
  }
  /// The arrays on the device are those of the host, with empty rows behind the step's.
  void check_arrays(const StepBatch& batch, const RecordedStep* shape) {
    const StateSlots& host = batch.states[0];
    const DeviceStateSlots& device = batch.device_states[0];
    const std::size_t rows = host.extra_offsets.size() - 1;
    const std::size_t all = shape == nullptr ? rows : static_cast<std::size_t>(shape->num_rows);
    const auto parts = static_cast<std::size_t>(host.num_parts);
    const auto padded = [](std::span<const std::int32_t> from, std::size_t count,
                           std::int32_t behind) {
      std::vector<std::int32_t> to(from.begin(), from.end());
      to.resize(count, behind);
      return to;
    };
    const std::size_t extras = host.extra_tokens.size();
    EXPECT_EQ(read(device.read, all * parts), padded(host.read, all * parts, -1));
    EXPECT_EQ(read(device.write, all * parts), padded(host.write, all * parts, -1));
    EXPECT_EQ(read(device.extra_offsets, all + 1),
              padded(host.extra_offsets, all + 1, static_cast<std::int32_t>(extras)));
    EXPECT_EQ(read(device.extra_tokens, extras), padded(host.extra_tokens, extras, -1));
    EXPECT_EQ(read(device.extra_slots, extras * parts),
              padded(host.extra_slots, extras * parts, -1));
    num_slots_ += static_cast<std::int64_t>(rows);
  }

  /// Waits, and compares all steps since the last time.
  void flush() {
    ASSERT_OK(cache_->synchronize());
    for (const Record& record : records_) {
      if (record.is_compared && !::testing::Test::HasFailure()) compare(record);
    }
    records_.clear();
  }
  /// Runs all tokens of each sequence without a cache; the new ones give the same bits.
  void compare(const Record& record) {
    for (const GroupLayer& layer : recurrent_) {
      const float* found = record.outputs.at(layer.layer).data();
      for (std::size_t row = 0; row < record.lives.size(); ++row) {
        const Tokens& tokens = record.lives[row];
        const std::size_t first = tokens.size() - record.num_new[row];
        if (first == tokens.size()) continue;
        std::vector<float> state(ToyShape::kState);
        std::vector<float> conv(ToyShape::kConv);
        std::vector<float> out(ToyShape::kOut);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          toy_step(its_.kind, tokens[i], layer.layer, state.data(), conv.data(), out.data());
          if (i < first) continue;
          ASSERT_TRUE(std::equal(out.begin(), out.end(), found))
              << "layer " << layer.layer << ", row " << row << ", token " << i << " of "
              << tokens.size() << ", found " << found[0] << ", expected " << out[0];
          found += ToyShape::kOut;
          ++num_tokens_;
        }
      }
    }
  }

  CudaStatesCase its_;
  std::mt19937_64 random_;
  cudaStream_t stream_;
  std::vector<GroupLayer> full_;
  std::vector<GroupLayer> recurrent_;
  std::vector<StatePlane> planes_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<HostDevice> host_device_;
  DeviceBuffer tokens_;
  std::map<std::int32_t, DeviceBuffer> outputs_;  // by layer
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvCache> host_;
  std::map<SequenceId, Tokens> lives_;
  std::map<SequenceId, Tokens> prompts_;  // of sequences that were preempted
  std::deque<Record> records_;
  std::map<std::string, int> outcomes_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_slots_ = 0;
  int num_steps_ = 0;
  int num_replays_ = 0;
};

}  // namespace kvarena::test
