#pragma once

/// @file
/// An engine that plays random steps through a cache with groups on a device, and compares
/// attention of every layer with plain loops in double precision. Every free byte of the pool is
/// poisoned with NaN in front of each step, in the order of the cache's stream. Steps may stay in
/// flight. A second cache on the host may get the same calls, and must give the same answers and
/// ids.

#include "kvarena/cache/kv_cache.hpp"
#include "step/group_rows.hpp"
#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/group_model.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace kvarena::test {

/// One model and one pool.
struct GroupEngineOptions {
  std::vector<EngineGroup> groups;
  std::int32_t num_q_heads = 4;
  std::int64_t num_pages = 40;
  DeviceKind device = DeviceKind::host;
  HostStreams streams = HostStreams::manual;
  std::int32_t steps_in_flight = 2;
  std::int32_t num_threads = 1;
  DType io = DType::f32;      ///< of K, V, queries and outputs
  double tolerance = 2e-4;    ///< of an output
  bool one_head = false;      ///< compare one query head of each token
  int lag = 1;                ///< steps between comparisons
  bool mirrors_host = false;  ///< the same calls go to a cache on the host
  std::int32_t max_decode_tokens = 1;
  std::int64_t batch_invariant_tokens = 0;
  void* stream = nullptr;  ///< CUDA: the home stream
  EvictionPolicy eviction = EvictionPolicy::tail_first;
  bool prefix_cache = false;  ///< sequences begin with tokens that were there before
  float kv_scale = 0;         ///< CUDA: of fp8 K and V; 0: none
  Scrub scrub = Scrub::never;
};

/// The engine.
class GroupEngine {
 public:
  static constexpr std::int64_t kLongest = 400;
  static constexpr std::int64_t kStepTokens = 200;
  static constexpr std::int32_t kSequences = 6;
  static constexpr std::size_t kMostEnded = 12;  ///< sequences that are remembered

  GroupEngine(const GroupEngineOptions& options, std::uint64_t seed)
      : options_(options), random_(seed) {
    device_ = make_device(options.device, {.streams = options.streams, .max_queued = 1 << 14});
    std::vector<LayerGroup> groups;
    for (EngineGroup& its : options_.groups) {
      its.group.layers = its.layers;
      groups.push_back(its.group);
      for (const GroupLayer& layer : its.layers) layers_[layer.layer] = {&its.group, layer};
    }
    KvCacheOptions asked{.size = {.num_blocks = options.num_pages},
                         .scrub = options.scrub,
                         .num_q_heads = options.num_q_heads,
                         .max_sequences = kSequences,
                         .max_sequence_tokens = kLongest,
                         .max_step_tokens = kStepTokens,
                         .steps_in_flight = options.steps_in_flight,
                         .num_threads = options.num_threads,
                         .max_decode_tokens = options.max_decode_tokens,
                         .batch_invariant_tokens = options.batch_invariant_tokens,
                         .groups = groups,
                         .prefix_cache = {.is_on = options.prefix_cache},
                         .eviction = options.eviction};
    if (options.mirrors_host) {
      host_device_ = HostDevice::create({.streams = HostStreams::inline_calls}).value();
      host_ = std::make_unique<KvCache>(KvCache::create(*host_device_, asked).value());
    }
    asked.home_stream = options.stream;
    Result<KvCache> created = KvCache::create(*device_, asked);
    EXPECT_OK(created.status());
    if (!created) return;
    cache_ = std::make_unique<KvCache>(std::move(*created));
    create_buffers();
  }
  bool is_created() const { return cache_ != nullptr; }
  KvCache& cache() { return *cache_; }

  /// Plays random steps; every failed comparison is a failure of the test. With `launch`, steps
  /// whose sequences all get the tokens of `shape` are run by the graph that it launches.
  void play(int steps, const RecordedStep& shape = {}, const std::function<Status()>& launch = {}) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(num_steps_));
      change();
      if (lives_.empty()) continue;
      poison();
      ++num_steps_;
      if (launch && random_() % 4 != 0) {
        step(&shape, launch);
      } else {
        step(nullptr, {});
      }
      if (num_steps_ % 16 == 0) check_caches();
    }
    flush();
    check_caches();
  }
  /// Ends everything: the pool is empty then.
  void end() {
    for (const auto& [id, life] : lives_) EXPECT_OK(cache_->destroy(id));
    lives_.clear();
    if (options_.prefix_cache) {
      EXPECT_OK(cache_->forget_all());
    }
    EXPECT_EQ(cache_->manager().page_stats().free, options_.num_pages);
  }
  /// Queues the calls of a recorded step, while the stream is captured.
  Status record(const RecordedStep& shape) {
    const Result<StepBatch> batch = cache_->begin_recording(shape);
    if (!batch) return batch.status();
    for (const auto& [index, its] : layers_) {
      if (Status s = queue_layer(index, its, nullptr); !s) return s;
    }
    return cache_->end_recording();
  }

  int num_compared() const { return num_compared_; }
  int num_forks() const { return num_forks_; }
  int num_cuts() const { return num_cuts_; }
  int num_aborts() const { return num_aborts_; }
  int num_refused() const { return num_refused_; }
  int num_replays() const { return num_replays_; }
  int num_tables() const { return num_tables_; }
  int num_hits() const { return num_hits_; }

 private:
  struct Layer {
    const LayerGroup* group = nullptr;
    GroupLayer its;
  };
  /// Device memory of one layer's inputs and outputs.
  struct Buffers {
    DeviceBuffer key, value, query, out;
  };
  /// One step's numbers, which work on the stream reads and writes until it is compared.
  struct Record {
    bool is_compared = true;
    int step = 0;
    std::vector<AppendDemand> demands;
    std::map<SequenceId, Life> lives;             // with the step's tokens
    std::deque<std::vector<std::int32_t>> names;  // of these, by row
    std::map<std::int32_t, std::vector<float>> queries;
    std::map<std::int32_t, std::vector<std::byte>> outputs;
    std::deque<std::vector<std::byte>> inputs;
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
  std::uint64_t io_bytes(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements * bytes_of(options_.io));
  }

  /// The scales of K and V in memory of the device; V has twice that of K.
  QuantScales scales() const {
    if (options_.kv_scale == 0) return {};
    const auto* const first = static_cast<const float*>(scales_->data());
    return {.key = first, .value = first + 1};
  }
  void create_scales() {
    if (options_.kv_scale == 0) return;
    const float both[] = {options_.kv_scale, 2 * options_.kv_scale};
    scales_.emplace(DeviceBuffer::create(*device_, sizeof both).value());
    EXPECT_OK(device_->copy(scales_->data(), both, sizeof both, cache_->stream()));
    EXPECT_OK(device_->synchronize(cache_->stream()));
  }
  void create_buffers() {
    create_scales();
    for (const auto& [index, layer] : layers_) {
      const LayerGroup& g = *layer.group;
      const std::int64_t tokens =
          std::max<std::int64_t>(kStepTokens, g.kind == PagedKind::cross ? g.limit_tokens : 0);
      const std::int64_t heads = options_.num_q_heads;
      const auto make = [&](std::int64_t elements) {
        return DeviceBuffer::create(*device_, io_bytes(tokens * elements)).value();
      };
      buffers_[index] = {make(g.num_kv_heads * g.head_dim_k), make(g.num_kv_heads * value_dim(g)),
                         make(heads * g.head_dim_k), make(heads * value_dim(g))};
    }
  }

  /// Makes a call to the cache and to the one on the host, which must answer alike.
  template <class Call>
  auto both(Call call) {
    auto answer = call(*cache_);
    if (host_) {
      const auto expected = call(*host_);
      if constexpr (std::is_same_v<decltype(answer), Status>) {
        EXPECT_EQ(answer, expected);
      } else {
        EXPECT_EQ(answer.status(), expected.status());
        if (answer && expected) {
          EXPECT_EQ(*answer, *expected);
        }
      }
    }
    return answer;
  }

  /// Begins, forks, cuts or ends a sequence.
  void change() {
    if (lives_.empty() || (lives_.size() < kSequences && random_() % 4 == 0)) {
      Life life;
      for (const EngineGroup& its : options_.groups) {
        if (its.group.kind != PagedKind::cross) continue;
        life.cross_tokens = static_cast<std::int32_t>(
            random_() % static_cast<std::uint64_t>(its.group.limit_tokens + 1));
      }
      if (!ended_.empty() && random_() % 8 != 0) return begin_again();
      const auto id = both([&](KvCache& cache) {
        return cache.create_sequence({.cross_tokens = life.cross_tokens});
      });
      lives_[id.value()] = life;
      return;
    }
    const SequenceId id = any();
    Life& life = lives_[id];
    const std::int64_t wanted = life.length - static_cast<std::int64_t>(random_() % 12);
    const std::int64_t length = std::max<std::int64_t>(0, wanted);
    const bool can = cache_->tables().restorable_length(id, length).value() == length;
    switch (random_() % 6) {
      case 0: {
        if (lives_.size() == kSequences) return;
        const auto child = both([&](KvCache& cache) { return cache.fork(id, length); });
        ASSERT_EQ(child.is_ok(), can);
        if (!can) return;
        lives_[*child] = cut_copy(options_.groups, life, length);
        ++num_forks_;
        return;
      }
      case 1:
        ASSERT_EQ(both([&](KvCache& cache) { return cache.truncate(id, length); }).is_ok(), can);
        if (!can) return;
        life = cut_copy(options_.groups, life, length);
        ++num_cuts_;
        return;
      case 2: end_sequence(id); return;
      default: return;
    }
  }
  void end_sequence(SequenceId id) {
    ASSERT_OK(both([&](KvCache& cache) { return cache.destroy(id); }));
    if (options_.prefix_cache && lives_[id].length > 0) {
      if (ended_.size() == kMostEnded)
        ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(random_() % kMostEnded));
      ended_.push_back(std::make_shared<const Life>(lives_[id]));
    }
    lives_.erase(id);
  }

  void begin_again();
  void name_tokens(Record& record);
  static void repeat(const Life& life, std::int32_t index, std::int64_t count, float* key,
                     float* value);

  /// Fills every byte that no block of a sequence has with ones: NaN in each type, behind the work
  /// that is queued so far. A cache that scrubs clears pages ahead; nobody writes there but itself.
  void poison() {
    if (options_.scrub != Scrub::never && num_steps_ > 0) return;
    for (const auto& [first, bytes] : free_ranges(cache_->manager(), cache_->arena())) {
      ASSERT_OK(device_->fill(cache_->arena().base() + first, 0xFF,
                              static_cast<std::uint64_t>(bytes), cache_->stream()));
    }
  }

  std::vector<AppendDemand> choose(const RecordedStep* shape) {
    std::vector<AppendDemand> demands;
    for (const auto& [id, life] : lives_) {
      if (random_() % 3 == 0) continue;
      if (shape != nullptr) {
        // An encoder is written call by call.
        if (std::ssize(demands) == shape->num_rows || (life.cross_tokens > 0 && life.length == 0) ||
            life.length + shape->tokens_per_row > kLongest) {
          continue;
        }
        demands.push_back({id, shape->tokens_per_row});
        continue;
      }
      const auto most = static_cast<std::uint64_t>(random_() % 4 == 0 ? 30 : 2);
      const auto tokens = std::min<std::int64_t>(kLongest - life.length,
                                                 static_cast<std::int64_t>(random_() % (most + 1)));
      demands.push_back({id, static_cast<std::int32_t>(tokens)});
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
    EXPECT_EQ(std::vector<std::int64_t>(batch->slots.begin(), batch->slots.end()),
              std::vector<std::int64_t>(expected->slots.begin(), expected->slots.end()));
    EXPECT_EQ(batch->num_copies, expected->num_copies);
    EXPECT_EQ(batch->new_blocks, expected->new_blocks);
    return batch;
  }

  void step(const RecordedStep* shape, const std::function<Status()>& launch) {
    ASSERT_OK(both([](KvCache& cache) { return cache.begin_step(); }));
    if (records_.size() >= static_cast<std::size_t>(options_.lag)) flush();
    Record& record = records_.emplace_back();
    record.step = num_steps_;
    record.demands = choose(shape);
    record.lives = lives_;
    name_tokens(record);
    const Result<StepBatch> batch = append(shape, record.demands);
    if (!batch) {
      ASSERT_EQ(batch.status().resource, Resource::page) << describe(batch.status());
      ++num_refused_;
      records_.pop_back();
      ASSERT_OK(both([](KvCache& cache) { return cache.end_step(); }));
      end_sequence(any());
      return;
    }
    if (options_.scrub == Scrub::always) check_scrubbed(record.demands);
    for (const AppendDemand& demand : record.demands) {
      record.lives[demand.sequence].length += demand.num_tokens;
    }
    for (const auto& [index, layer] : layers_) fill_inputs(record, index, layer, batch->num_tokens);
    if (shape != nullptr) {
      ASSERT_OK(launch());
      ++num_replays_;
    } else {
      if (options_.device == DeviceKind::cuda && random_() % 4 == 0) check_device_tables(record);
      for (const auto& [index, layer] : layers_) ASSERT_OK(queue_layer(index, layer, &record));
    }
    for (const auto& [index, layer] : layers_) {
      std::vector<std::byte>& out = record.outputs[index];
      out.resize(io_bytes(batch->num_tokens * options_.num_q_heads * value_dim(*layer.group)));
      ASSERT_OK(
          device_->copy(out.data(), buffers_[index].out.data(), out.size(), cache_->stream()));
    }
    if (random_() % 8 == 0) {
      ASSERT_OK(both([](KvCache& cache) { return cache.abort_step(); }));
      record.is_compared = false;
      ++num_aborts_;
      return;
    }
    ASSERT_OK(both([](KvCache& cache) { return cache.end_step(); }));
    lives_ = record.lives;
  }

  void upload(Record& record, void* to, const std::vector<float>& from) {
    const std::vector<std::byte>& bytes = record.inputs.emplace_back(encoded(from, options_.io));
    ASSERT_OK(device_->copy(to, bytes.data(), bytes.size(), cache_->stream()));
  }

  static void put_in_value(const std::vector<float>& key, std::int64_t key_size,
                           std::vector<float>& value, std::int64_t value_size) {
    for (std::int64_t i = 0; i * value_size < std::ssize(value); ++i) {
      std::copy_n(key.begin() + i * key_size, value_size, value.begin() + i * value_size);
    }
  }

  static const void* value_in(const LayerGroup& group, const Buffers& at) {
    return group.value_in_key ? nullptr : at.value.data();
  }

  /// Makes K, V and queries of one layer, remembers K and V, and brings them to the device.
  void fill_inputs(Record& record, std::int32_t index, const Layer& layer, std::int64_t tokens) {
    const LayerGroup& group = *layer.group;
    const std::int64_t key_size = group.num_kv_heads * group.head_dim_k;
    const std::int64_t value_size = group.num_kv_heads * value_dim(group);
    record.queries[index] = numbers(tokens * options_.num_q_heads * group.head_dim_k);
    upload(record, buffers_[index].query.data(), record.queries[index]);
    if (layer.its.reads_layer != -1 || group.kind == PagedKind::cross) return;
    std::vector<float> key = numbers(tokens * key_size);
    std::vector<float> value = numbers(tokens * value_size);
    if (group.value_in_key) put_in_value(key, key_size, value, value_size);
    std::int64_t token = 0;
    for (const AppendDemand& demand : record.demands) {
      Life& life = record.lives[demand.sequence];
      repeat(life, index, demand.num_tokens, key.data() + token * key_size,
             value.data() + token * value_size);
      Remembered& its = life.layers[index];
      remember(its.key, key.data() + token * key_size, demand.num_tokens, key_size);
      remember(its.value, value.data() + token * value_size, demand.num_tokens, value_size);
      token += demand.num_tokens;
    }
    upload(record, buffers_[index].key.data(), key);
    upload(record, buffers_[index].value.data(), value);
  }

  /// Writes the encoders of sequences that begin.
  Status write_encoders(std::int32_t index, const Layer& layer, Record& record) {
    const LayerGroup& group = *layer.group;
    const std::int64_t key_size = group.num_kv_heads * group.head_dim_k;
    const std::int64_t value_size = group.num_kv_heads * value_dim(group);
    for (const AppendDemand& demand : record.demands) {
      Life& life = record.lives[demand.sequence];
      if (life.cross_tokens == 0) continue;
      Remembered& its = life.layers[index];
      if (!its.key.empty()) continue;
      const std::vector<float> key = numbers(life.cross_tokens * key_size);
      std::vector<float> value = numbers(life.cross_tokens * value_size);
      if (group.value_in_key) put_in_value(key, key_size, value, value_size);
      remember(its.key, key.data(), life.cross_tokens, key_size);
      remember(its.value, value.data(), life.cross_tokens, value_size);
      upload(record, buffers_[index].key.data(), key);
      upload(record, buffers_[index].value.data(), value);
      const Status status = cache_->write_cross({.layer = index,
                                                 .sequence = demand.sequence,
                                                 .key = buffers_[index].key.data(),
                                                 .value = value_in(group, buffers_[index]),
                                                 .dtype = options_.io,
                                                 .scales = scales()});
      if (!status) return status;
    }
    return {};
  }

  Status queue_layer(std::int32_t index, const Layer& layer, Record* record) {
    const LayerGroup& group = *layer.group;
    const Buffers& at = buffers_[index];
    if (group.kind == PagedKind::cross) {
      if (record != nullptr && layer.its.reads_layer == -1) {
        if (Status s = write_encoders(index, layer, *record); !s) return s;
      }
    } else if (layer.its.reads_layer == -1) {
      const Status s = cache_->write_kv({.layer = index,
                                         .key = at.key.data(),
                                         .value = value_in(group, at),
                                         .dtype = options_.io,
                                         .scales = scales()});
      if (!s) return s;
    }
    return cache_->attend({.layer = index,
                           .q = at.query.data(),
                           .q_dtype = options_.io,
                           .out = at.out.data(),
                           .out_dtype = options_.io,
                           .scale = 0.25F,
                           .scales = scales()});
  }

  /// Waits, and compares all steps since the last time.
  void flush() {
    ASSERT_OK(cache_->synchronize());
    for (const Record& record : records_) {
      for (const auto& [index, layer] : layers_) {
        if (record.is_compared && !::testing::Test::HasFailure()) compare(record, index, layer);
      }
    }
    records_.clear();
  }

  void compare(const Record& record, std::int32_t index, const Layer& layer) {
    const LayerGroup& group = *layer.group;
    const std::int32_t owner = layer.its.reads_layer == -1 ? index : layer.its.reads_layer;
    const std::int64_t heads = options_.num_q_heads;
    const std::int64_t dim_v = value_dim(group);
    std::int64_t token = 0;
    for (const AppendDemand& demand : record.demands) {
      const Life& life = record.lives.at(demand.sequence);
      for (std::int64_t i = 0; i < demand.num_tokens; ++i, ++token) {
        const std::int64_t position = life.length - demand.num_tokens + i;
        const auto chosen = static_cast<std::int64_t>(random_() % static_cast<unsigned>(heads));
        for (std::int64_t h = 0; h < heads; ++h) {
          if (options_.one_head && h != chosen) continue;
          const float* const q =
              record.queries.at(index).data() + (token * heads + h) * group.head_dim_k;
          const std::vector<double> expected =
              life.layers.contains(owner)
                  ? attend_exactly(group, life, owner, position, h / (heads / group.num_kv_heads),
                                   q, 0.25)
                  : std::vector<double>(static_cast<std::size_t>(dim_v));
          for (std::int64_t d = 0; d < dim_v; ++d, ++num_compared_) {
            const float found = load_f32(record.outputs.at(index).data(), options_.io,
                                         (token * heads + h) * dim_v + d);
            if (std::abs(static_cast<double>(found) - expected[static_cast<std::size_t>(d)]) <=
                options_.tolerance) {
              continue;
            }
            FAIL() << "step " << record.step << ", layer " << index << " ("
                   << name_of_kind(group.kind) << " " << group.limit_tokens << ", blocks of "
                   << group.block_size_tokens << "), sequence " << demand.sequence.value
                   << " of length " << life.length << ", " << demand.num_tokens << " new, position "
                   << position << ", head " << h << ", dim " << d << ": found " << found
                   << ", expected " << expected[static_cast<std::size_t>(d)] << "; rows "
                   << record.demands.size();
          }
        }
      }
    }
  }

  /// Compares the arrays of every part on the device with the tables of the host.
  void check_scrubbed(const std::vector<AppendDemand>& demands);
  void check_device_tables(const Record& record);
  /// Checks the accounts, and that both caches have the same tables.
  void check_caches();
  template <class T>
  std::vector<T> read(const T* from, std::int64_t count) {
    std::vector<T> to(static_cast<std::size_t>(count));
    EXPECT_OK(device_->copy(to.data(), from, to.size() * sizeof(T), cache_->stream()));
    EXPECT_OK(device_->synchronize(cache_->stream()));
    return to;
  }

  GroupEngineOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostDevice> host_device_;
  std::map<std::int32_t, Buffers> buffers_;
  std::optional<DeviceBuffer> scales_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvCache> host_;
  std::map<std::int32_t, Layer> layers_;
  std::map<SequenceId, Life> lives_;
  std::deque<Record> records_;
  int num_steps_ = 0;
  int num_compared_ = 0;
  int num_forks_ = 0;
  int num_cuts_ = 0;
  int num_aborts_ = 0;
  int num_refused_ = 0;
  int num_replays_ = 0;
  int num_tables_ = 0;
  int num_hits_ = 0;
  std::int32_t next_name_ = 1;
  std::vector<std::shared_ptr<const Life>> ended_;
};

}  // namespace kvarena::test

#include "unit/cache/group_engine_checks.hpp"
#include "unit/cache/group_engine_prefix.hpp"
