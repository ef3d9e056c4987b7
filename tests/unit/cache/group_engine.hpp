#pragma once

/// @file
/// An engine that plays random steps through a cache with groups on a host device, and compares
/// attention of every layer with plain loops in double precision over K and V that it remembers
/// itself. Every free byte of the pool is poisoned with NaN before each step.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace kvarena::test {

/// A group of a test, which owns its layers.
struct EngineGroup {
  LayerGroup group;
  std::vector<GroupLayer> layers;
};

/// One model and one pool.
struct GroupEngineOptions {
  std::vector<EngineGroup> groups;
  std::int32_t num_q_heads = 4;
  std::int64_t num_pages = 40;
  HostStreams streams = HostStreams::manual;
  std::int32_t steps_in_flight = 2;
  std::int32_t num_threads = 1;
};

/// The engine.
class GroupEngine {
 public:
  GroupEngine(const GroupEngineOptions& options, std::uint64_t seed)
      : options_(options), random_(seed) {
    device_ = HostDevice::create({.streams = options.streams, .max_queued = 1 << 12}).value();
    std::vector<LayerGroup> groups;
    for (EngineGroup& its : options_.groups) {
      its.group.layers = its.layers;
      groups.push_back(its.group);
    }
    cache_ = std::make_unique<KvCache>(
        KvCache::create(*device_, {.size = {.num_blocks = options.num_pages},
                                   .num_q_heads = options.num_q_heads,
                                   .max_sequences = 6,
                                   .max_sequence_tokens = 400,
                                   .max_step_tokens = 200,
                                   .steps_in_flight = options.steps_in_flight,
                                   .num_threads = options.num_threads,
                                   .groups = groups})
            .value());
  }

  /// Plays random steps; every failed comparison is a failure of the test.
  void play(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      change();
      step();
    }
    EXPECT_OK(cache_->synchronize());
    EXPECT_OK(cache_->check_invariants());
    for (const auto& [id, life] : lives_) EXPECT_OK(cache_->destroy(id));
    EXPECT_EQ(cache_->manager().page_stats().free, options_.num_pages);
  }
  int num_compared() const { return num_compared_; }
  int num_forks() const { return num_forks_; }
  int num_cuts() const { return num_cuts_; }
  int num_aborts() const { return num_aborts_; }
  int num_refused() const { return num_refused_; }

 private:
  /// K and V of one layer: a vector for each token.
  struct Remembered {
    std::vector<std::vector<float>> key;
    std::vector<std::vector<float>> value;
  };
  struct Life {
    std::map<std::int32_t, Remembered> layers;  // by owning layer; of an encoder its tokens
    std::int64_t length = 0;
    std::int32_t cross_tokens = 0;
    bool has_encoder = false;
  };

  /// Small multiples of 1/8, which every element type holds exactly.
  float number() { return static_cast<float>(static_cast<int>(random_() % 33) - 16) / 8.0F; }
  std::vector<float> numbers(std::int64_t count) {
    std::vector<float> all(static_cast<std::size_t>(count));
    for (float& x : all) x = number();
    return all;
  }
  SequenceId any() {
    auto it = lives_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % lives_.size()));
    return it->first;
  }
  static std::int32_t value_dim(const LayerGroup& group) {
    return group.head_dim_v == 0 ? group.head_dim_k : group.head_dim_v;
  }

  /// Begins, forks, cuts or ends a sequence.
  void change() {
    if (lives_.empty() || (lives_.size() < 6 && random_() % 4 == 0)) {
      Life life;
      for (const EngineGroup& its : options_.groups) {
        if (its.group.kind != PagedKind::cross) continue;
        life.cross_tokens = static_cast<std::int32_t>(
            random_() % static_cast<std::uint64_t>(its.group.limit_tokens + 1));
      }
      lives_[cache_->create_sequence({.cross_tokens = life.cross_tokens}).value()] = life;
      return;
    }
    const SequenceId id = any();
    Life& life = lives_[id];
    const std::int64_t wanted = life.length - static_cast<std::int64_t>(random_() % 12);
    const std::int64_t length = std::max<std::int64_t>(0, wanted);
    const bool can = cache_->tables().restorable_length(id, length).value() == length;
    switch (random_() % 6) {
      case 0: {
        if (lives_.size() == 6) return;
        const auto child = cache_->fork(id, length);
        ASSERT_EQ(child.is_ok(), can);
        if (!can) return;
        lives_[*child] = cut_copy(life, length);
        ++num_forks_;
        return;
      }
      case 1:
        ASSERT_EQ(cache_->truncate(id, length).is_ok(), can);
        if (!can) return;
        life = cut_copy(life, length);
        ++num_cuts_;
        return;
      case 2:
        ASSERT_OK(cache_->destroy(id));
        lives_.erase(id);
        return;
      default: return;
    }
  }

  Life cut_copy(const Life& life, std::int64_t length) const {
    Life cut = life;
    cut.length = length;
    for (const EngineGroup& its : options_.groups) {
      if (its.group.kind == PagedKind::cross) continue;
      for (const GroupLayer& layer : its.layers) {
        if (layer.reads_layer != -1) continue;
        cut.layers[layer.layer].key.resize(static_cast<std::size_t>(length));
        cut.layers[layer.layer].value.resize(static_cast<std::size_t>(length));
      }
    }
    return cut;
  }

  /// Fills every byte that no block of a sequence has with ones: NaN in each type. No step may be
  /// under way.
  void poison() {
    ASSERT_OK(cache_->synchronize());
    const BlockManager& manager = cache_->manager();
    const GroupLayout& layout = *cache_->arena().groups();
    std::vector<bool> held(static_cast<std::size_t>(cache_->arena().bytes()));
    for (std::int32_t id = 0; id < manager.num_blocks(); ++id) {
      if (manager.state(BlockId(id)) != BlockState::referenced) continue;
      const BlockPlace place = manager.place_of(BlockId(id));
      const std::int64_t bytes =
          layout.parts()[static_cast<std::size_t>(place.group)].blocks.block_bytes;
      const std::int64_t first = place.page * layout.page_bytes() + place.slot * bytes;
      for (std::int64_t i = 0; i < bytes; ++i) held[static_cast<std::size_t>(first + i)] = true;
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!held[i]) cache_->arena().base()[i] = std::byte{0xFF};
    }
  }

  void step() {
    if (lives_.empty()) return;
    poison();
    std::vector<AppendDemand> demands;
    for (const auto& [id, life] : lives_) {
      if (random_() % 3 == 0) continue;
      const auto most = static_cast<std::uint64_t>(random_() % 4 == 0 ? 30 : 2);
      const auto tokens = std::min<std::int64_t>(400 - life.length,
                                                 static_cast<std::int64_t>(random_() % (most + 1)));
      demands.push_back({id, static_cast<std::int32_t>(tokens)});
    }
    ASSERT_OK(cache_->begin_step());
    const Result<StepBatch> batch = cache_->append(demands);
    if (!batch) {
      ASSERT_EQ(batch.status().resource, Resource::page) << describe(batch.status());
      ++num_refused_;
      ASSERT_OK(cache_->end_step());
      const SequenceId id = any();
      ASSERT_OK(cache_->destroy(id));
      lives_.erase(id);
      return;
    }
    const auto before = lives_;
    for (const AppendDemand& demand : demands) lives_[demand.sequence].length += demand.num_tokens;
    inputs_.clear();
    outputs_.clear();
    for (const EngineGroup& its : options_.groups) {
      for (const GroupLayer& layer : its.layers) {
        if (layer.reads_layer == -1) write(its.group, layer.layer, demands, batch->num_tokens);
      }
    }
    for (const EngineGroup& its : options_.groups) {
      for (const GroupLayer& layer : its.layers) {
        attend(its.group, layer, batch->num_tokens);
      }
    }
    if (random_() % 8 == 0) {
      ASSERT_OK(cache_->abort_step());
      lives_ = before;
      ++num_aborts_;
      return;
    }
    ASSERT_OK(cache_->end_step());
    ASSERT_OK(cache_->synchronize());
    std::size_t output = 0;
    for (const EngineGroup& its : options_.groups) {
      for (const GroupLayer& layer : its.layers) compare(its.group, layer, demands, output++);
    }
  }

  /// Queues the write of one layer and remembers what was written.
  void write(const LayerGroup& group, std::int32_t layer, const std::vector<AppendDemand>& demands,
             std::int64_t num_tokens) {
    const std::int64_t key_size = group.num_kv_heads * group.head_dim_k;
    const std::int64_t value_size = group.num_kv_heads * value_dim(group);
    if (group.kind == PagedKind::cross) {
      for (const AppendDemand& demand : demands) {
        Life& life = lives_[demand.sequence];
        if (demand.num_tokens == 0 || life.cross_tokens == 0) continue;
        const bool is_first = life.layers[layer].key.empty();
        if (!is_first) continue;
        const auto& key = inputs_.emplace_back(numbers(life.cross_tokens * key_size));
        const float* const k = key.data();
        remember(life.layers[layer].key, k, life.cross_tokens, key_size);
        const auto& value = inputs_.emplace_back(numbers(life.cross_tokens * value_size));
        remember(life.layers[layer].value, value.data(), life.cross_tokens, value_size);
        ASSERT_OK(cache_->write_cross({.layer = layer,
                                       .sequence = demand.sequence,
                                       .key = k,
                                       .value = value.data(),
                                       .dtype = DType::f32}));
      }
      return;
    }
    std::vector<float> key = numbers(num_tokens * key_size);
    std::vector<float> value = numbers(num_tokens * value_size);
    std::int64_t token = 0;
    for (const AppendDemand& demand : demands) {
      Remembered& its = lives_[demand.sequence].layers[layer];
      if (group.value_in_key) {
        for (std::int64_t i = 0; i < demand.num_tokens; ++i) {
          std::copy_n(key.begin() + (token + i) * key_size, value_size,
                      value.begin() + (token + i) * value_size);
        }
      }
      remember(its.key, key.data() + token * key_size, demand.num_tokens, key_size);
      remember(its.value, value.data() + token * value_size, demand.num_tokens, value_size);
      token += demand.num_tokens;
    }
    const float* const k = inputs_.emplace_back(std::move(key)).data();
    const float* const v = inputs_.emplace_back(std::move(value)).data();
    ASSERT_OK(cache_->write_kv({.layer = layer,
                                .key = k,
                                .value = group.value_in_key ? nullptr : v,
                                .dtype = DType::f32}));
  }
  static void remember(std::vector<std::vector<float>>& to, const float* from, std::int64_t count,
                       std::int64_t size) {
    for (std::int64_t i = 0; i < count; ++i) {
      to.emplace_back(from + i * size, from + (i + 1) * size);
    }
  }

  void attend(const LayerGroup& group, const GroupLayer& layer, std::int64_t num_tokens) {
    const std::int64_t heads = options_.num_q_heads;
    auto& q = inputs_.emplace_back(numbers(num_tokens * heads * group.head_dim_k));
    auto& out =
        outputs_.emplace_back(static_cast<std::size_t>(num_tokens * heads * value_dim(group)), NAN);
    queries_.resize(outputs_.size());
    queries_[outputs_.size() - 1] = q;
    ASSERT_OK(cache_->attend({.layer = layer.layer,
                              .q = q.data(),
                              .q_dtype = DType::f32,
                              .out = out.data(),
                              .out_dtype = DType::f32,
                              .scale = 0.25F}));
  }

  /// The tokens that a token at `position` sees.
  static std::pair<std::int64_t, std::int64_t> visible(const LayerGroup& group, const Life& life,
                                                       std::int64_t position) {
    switch (group.kind) {
      case PagedKind::window:
        return {std::max<std::int64_t>(0, position - group.limit_tokens + 1), position + 1};
      case PagedKind::chunk:
        return {position / group.limit_tokens * group.limit_tokens, position + 1};
      case PagedKind::cross: return {0, life.cross_tokens};
      default: return {0, position + 1};
    }
  }

  void compare(const LayerGroup& group, const GroupLayer& layer,
               const std::vector<AppendDemand>& demands, std::size_t output) {
    const std::int32_t owner = layer.reads_layer == -1 ? layer.layer : layer.reads_layer;
    const std::int64_t heads = options_.num_q_heads;
    const std::int64_t per_kv = heads / group.num_kv_heads;
    const std::int64_t dim = group.head_dim_k;
    const std::int64_t dim_v = value_dim(group);
    std::int64_t token = 0;
    for (const AppendDemand& demand : demands) {
      Life& life = lives_[demand.sequence];
      const Remembered& kv = life.layers[owner];
      for (std::int64_t i = 0; i < demand.num_tokens; ++i, ++token) {
        const auto [first, end] = visible(group, life, life.length - demand.num_tokens + i);
        for (std::int64_t h = 0; h < heads; ++h) {
          const float* const q = queries_[output].data() + (token * heads + h) * dim;
          std::vector<double> weights;
          double total = 0;
          for (std::int64_t t = first; t < end; ++t) {
            double logit = 0;
            for (std::int64_t d = 0; d < dim; ++d) {
              logit += static_cast<double>(q[d]) * at(kv.key, t, h / per_kv * dim + d);
            }
            weights.push_back(std::exp(0.25 * logit));
            total += weights.back();
          }
          for (std::int64_t d = 0; d < dim_v; ++d) {
            double sum = 0;
            for (std::int64_t t = first; t < end; ++t) {
              sum += weights[static_cast<std::size_t>(t - first)] *
                     at(kv.value, t, h / per_kv * dim_v + d);
            }
            const double expected = total == 0 ? 0 : sum / total;
            const float found =
                outputs_[output][static_cast<std::size_t>((token * heads + h) * dim_v + d)];
            ASSERT_NEAR(static_cast<double>(found), expected, 2e-4)
                << "layer " << layer.layer << ", token " << life.length - demand.num_tokens + i
                << ", head " << h;
            ++num_compared_;
          }
        }
      }
    }
  }
  static double at(const std::vector<std::vector<float>>& tokens, std::int64_t t, std::int64_t d) {
    return static_cast<double>(tokens[static_cast<std::size_t>(t)][static_cast<std::size_t>(d)]);
  }

  GroupEngineOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<KvCache> cache_;
  std::map<SequenceId, Life> lives_;
  std::vector<std::vector<float>> inputs_;   // moved vectors keep their memory
  std::vector<std::vector<float>> queries_;  // by output
  std::vector<std::vector<float>> outputs_;
  int num_compared_ = 0;
  int num_forks_ = 0;
  int num_cuts_ = 0;
  int num_aborts_ = 0;
  int num_refused_ = 0;
};

}  // namespace kvarena::test
