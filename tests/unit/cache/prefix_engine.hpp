#pragma once

/// @file
/// `PrefixEngine`: an engine that serves prompts on a cache with a prefix cache. K, V and Q of a
/// token follow from the tenant, the adapter, the token and its position, so what a wrong block
/// would give is another result. Memory that nobody was promised holds NaN.

#include "support/device_buffer.hpp"
#include "support/devices.hpp"
#include "support/status_matchers.hpp"

#include "base/half.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace kvarena::test {

using Tokens = std::vector<std::int32_t>;

/// Who asks for what: everything that K and V depend on.
struct Prompt {
  Tokens tokens{};
  std::uint64_t salt = 0;
  std::uint64_t adapter = 0;  ///< 0: none; as an extra key from the first token on

  std::vector<ExtraKey> keys() const {
    return adapter == 0 ? std::vector<ExtraKey>{} : std::vector<ExtraKey>{{adapter, 0}};
  }
};

/// One cache, and the outputs of its steps.
class PrefixEngine {
 public:
  static constexpr std::int32_t kLayers = 2;
  static constexpr std::int32_t kHeads = 2;
  static constexpr std::int32_t kDim = 16;
  static constexpr std::int32_t kBlockSize = 16;
  static constexpr std::size_t kMostTokens = 512;

  static KvCacheOptions options_of(DeviceKind kind, std::int64_t num_blocks) {
    const bool is_host = kind == DeviceKind::host;
    return {.layout = {.num_layers = kLayers,
                       .num_kv_heads = kHeads,
                       .head_dim_k = kDim,
                       .dtype = is_host ? DType::f32 : DType::f16,
                       .block_size_tokens = kBlockSize},
            .size = {.num_blocks = num_blocks},
            .num_q_heads = kHeads,
            .max_sequences = 16,
            .max_step_tokens = kMostTokens,
            .num_threads = 1,
            .prefix_cache = {.is_on = true, .hash_key = {3, 5}, .max_extra_keys = 2}};
  }
  explicit PrefixEngine(DeviceKind kind, std::int64_t num_blocks = 64)
      : PrefixEngine(kind, options_of(kind, num_blocks)) {}
  PrefixEngine(DeviceKind kind, const KvCacheOptions& options)
      : device_(make_device(kind)),
        buffers_{buffer(), buffer(), buffer(), buffer()},
        cache_(KvCache::create(*device_, options).value()) {
    const Arena& arena = cache_.arena();
    for (std::int64_t i = 0; i < arena.num_blocks(); ++i) {
      poison(BlockId(static_cast<std::int32_t>(i)));
    }
  }

  KvCache& cache() noexcept { return cache_; }
  Device& device() noexcept { return *device_; }
  PrefixMatch found(SequenceId id) { return cache_.tables().prefix_of(id).value(); }

  /// A sequence of this prompt, with what is cached of it.
  SequenceId begin(const Prompt& prompt) {
    const std::vector<ExtraKey> keys = prompt.keys();
    const Result<SequenceId> id =
        cache_.create_sequence({.tokens = prompt.tokens, .salt = prompt.salt, .extra_keys = keys});
    if (!id) return kNoSequence;
    Prompt known = prompt;
    known.tokens.resize(static_cast<std::size_t>(cache_.tables().info(*id)->length_tokens));
    known_[*id] = known;
    return *id;
  }
  /// Computes the rest of a prompt in chunks of at most `chunk` tokens.
  Status compute(SequenceId id, const Prompt& prompt, std::size_t chunk = kMostTokens) {
    std::span<const std::int32_t> rest(prompt.tokens);
    rest = rest.subspan(known_.at(id).tokens.size());
    while (!rest.empty()) {
      const std::size_t count = std::min(chunk, rest.size());
      if (Status s = step({{id, rest.first(count)}}); !s) return s;
      rest = rest.subspan(count);
    }
    return {};
  }
  /// Begins a sequence and computes it; kNoSequence when that was refused.
  SequenceId serve(const Prompt& prompt, std::size_t chunk = kMostTokens) {
    const SequenceId id = begin(prompt);
    if (id == kNoSequence || compute(id, prompt, chunk)) return id;
    return kNoSequence;
  }

  using Row = std::pair<SequenceId, std::span<const std::int32_t>>;
  /// A whole step, with its outputs.
  Status step(const std::vector<Row>& rows) {
    if (Status s = cache_.begin_step(); !s) return s;
    if (Status s = append(rows); !s) {
      if (Status aborted = cache_.abort_step(); !aborted) return aborted;
      return s;
    }
    if (Status s = run_layers(); !s) return s;
    if (Status s = cache_.end_step(); !s) return s;
    take_outputs(rows);
    return {};
  }
  /// The parts of a step.
  Status append(const std::vector<Row>& rows) {
    std::vector<AppendDemand> demands;
    for (const auto& [id, tokens] : rows) {
      demands.push_back({id, static_cast<std::int32_t>(tokens.size()), {}, tokens});
    }
    const Result<StepBatch> batch = cache_.append(demands);
    if (!batch) return batch.status();
    for (const std::int64_t slot : batch->slots) {  // blocks that were cached until now, too
      if (slot % kBlockSize == 0) poison(BlockId(static_cast<std::int32_t>(slot / kBlockSize)));
    }
    step_.clear();
    for (const auto& [id, tokens] : rows) {
      Prompt& known = known_.at(id);
      for (const std::int32_t token : tokens) {
        step_.push_back({token, std::ssize(known.tokens), &known});
        known.tokens.push_back(token);
      }
    }
    return {};
  }
  Status run_layers() {
    outputs_.assign(kLayers, {});
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      if (Status s = write(layer); !s) return s;
      if (Status s = attend(layer); !s) return s;
    }
    return {};
  }
  Status write(std::int32_t layer) {
    upload(0, layer, 1);
    upload(1, layer, 2);
    return cache_.write_kv({.layer = layer,
                            .key = buffers_[0].data(),
                            .value = buffers_[1].data(),
                            .dtype = DType::f32});
  }
  Status attend(std::int32_t layer) {
    upload(2, layer, 3);
    if (Status s = cache_.attend({.layer = layer,
                                  .q = buffers_[2].data(),
                                  .q_dtype = DType::f32,
                                  .out = buffers_[3].data(),
                                  .out_dtype = DType::f32});
        !s) {
      return s;
    }
    std::vector<float>& out = outputs_.at(static_cast<std::size_t>(layer));
    out.resize(step_.size() * kWidth);
    if (Status s = device_->copy(out.data(), buffers_[3].data(), out.size() * sizeof(float),
                                 cache_.stream());
        !s) {
      return s;
    }
    return cache_.synchronize();
  }

  void* device_input() { return buffers_[0].data(); }
  void* device_output() { return buffers_[3].data(); }

  /// Ends a sequence; memory that became free holds NaN.
  void destroy(SequenceId id) {
    ASSERT_OK(cache_.destroy(id));
    known_.erase(id);
    poison_free();
  }
  void truncate(SequenceId id, std::int64_t length) {
    ASSERT_OK(cache_.truncate(id, length));
    known_.at(id).tokens.resize(static_cast<std::size_t>(length));
    poison_free();
  }
  SequenceId fork(SequenceId parent, std::int64_t length) {
    const SequenceId child = cache_.fork(parent, length).value();
    known_[child] = known_.at(parent);
    known_[child].tokens.resize(static_cast<std::size_t>(length));
    return child;
  }
  /// A step was aborted: the sequence has its first tokens alone.
  void forget_behind(SequenceId id, std::size_t length) { known_.at(id).tokens.resize(length); }

  const Prompt& known(SequenceId id) const { return known_.at(id); }
  /// The outputs of a token of all layers, by the last step that computed it.
  using Outputs = std::map<std::pair<SequenceId, std::int64_t>, std::vector<float>>;
  const Outputs& outputs() const noexcept { return by_token_; }

 private:
  static constexpr std::size_t kWidth = std::size_t{kHeads} * kDim;
  struct Token {
    std::int32_t token;
    std::int64_t position;
    const Prompt* prompt;
  };

  DeviceBuffer buffer() {
    return DeviceBuffer::create(*device_, kMostTokens * kWidth * sizeof(float)).value();
  }
  void poison(BlockId block) {
    const Arena& arena = cache_.arena();
    EXPECT_OK(device_->fill(arena.address(block, 0, PlaneKind::key), 0xff,
                            static_cast<std::uint64_t>(arena.layout().block_bytes()),
                            cache_.stream()));
  }
  void poison_free() {
    for (std::int64_t i = 0; i < cache_.arena().num_blocks(); ++i) {
      const BlockId block(static_cast<std::int32_t>(i));
      if (cache_.manager().state(block) == BlockState::free) poison(block);
    }
  }
  /// Multiples of 1/64 in [-1, 1], which every dtype has exactly.
  static float element(const Token& t, std::int32_t layer, std::uint64_t what, std::size_t i) {
    std::uint64_t x = static_cast<std::uint64_t>(t.token) * 0x9e3779b97f4a7c15U;
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(t.position), t.prompt->salt, t.prompt->adapter,
          static_cast<std::uint64_t>(layer) * 4 + what, static_cast<std::uint64_t>(i)}) {
      x = (x ^ part ^ (x >> 29)) * 0xbf58476d1ce4e5b9U;
    }
    return static_cast<float>(static_cast<std::int64_t>((x >> 32) % 129) - 64) / 64.0F;
  }
  void upload(std::size_t buffer, std::int32_t layer, std::uint64_t what) {
    std::vector<float>& values = inputs_[buffer];
    values.clear();
    for (const Token& token : step_) {
      for (std::size_t i = 0; i < kWidth; ++i) values.push_back(element(token, layer, what, i));
    }
    if (values.empty()) return;
    EXPECT_OK(device_->copy(buffers_[buffer].data(), values.data(), values.size() * sizeof(float),
                            cache_.stream()));
  }
  void take_outputs(const std::vector<Row>& rows) {
    std::size_t at = 0;
    for (const auto& [id, tokens] : rows) {
      const std::int64_t first = std::ssize(known_.at(id).tokens) - std::ssize(tokens);
      for (std::size_t i = 0; i < tokens.size(); ++i, ++at) {
        std::vector<float>& out = by_token_[{id, first + static_cast<std::int64_t>(i)}];
        out.clear();
        for (const std::vector<float>& layer : outputs_) {
          out.insert(out.end(), layer.begin() + static_cast<std::ptrdiff_t>(at * kWidth),
                     layer.begin() + static_cast<std::ptrdiff_t>((at + 1) * kWidth));
        }
      }
    }
  }

  std::unique_ptr<Device> device_;
  std::vector<float> inputs_[3];
  DeviceBuffer buffers_[4];
  KvCache cache_;
  std::map<SequenceId, Prompt> known_;
  std::vector<Token> step_;
  std::vector<std::vector<float>> outputs_;  // by layer, of the step
  Outputs by_token_;
};

/// What the outputs of prompts are, computed without a prefix cache, each prompt alone.
class PrefixReference {
 public:
  explicit PrefixReference(DeviceKind kind) : kind_(kind) {}

  /// Returns the outputs of the last token of a prompt.
  const std::vector<float>& of(const Prompt& prompt) {
    std::vector<float>& known = known_[{prompt.tokens, prompt.salt, prompt.adapter}];
    if (!known.empty()) return known;
    KvCacheOptions options = PrefixEngine::options_of(kind_, 32);
    options.prefix_cache.is_on = false;
    PrefixEngine engine(kind_, options);
    const SequenceId id = engine.serve(prompt);
    for (std::int64_t i = 0; i < std::ssize(prompt.tokens); ++i) {
      Prompt part = prompt;
      part.tokens.resize(static_cast<std::size_t>(i) + 1);
      known_[{part.tokens, part.salt, part.adapter}] = engine.outputs().at({id, i});
    }
    return known;
  }
  /// Compares what an engine has computed of a sequence: bit for bit on the host.
  void compare(const PrefixEngine& engine, SequenceId id) {
    Prompt prompt = engine.known(id);
    const Tokens all = prompt.tokens;
    static_cast<void>(of(prompt));
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      const auto got = engine.outputs().find({id, i});
      if (got == engine.outputs().end()) continue;  // it was cached
      prompt.tokens.assign(all.begin(), all.begin() + i + 1);
      ASSERT_TRUE(is_equal(got->second, of(prompt))) << "token " << i << " of " << all.size();
      ++compared_;
    }
  }
  std::int64_t compared() const noexcept { return compared_; }

 private:
  bool is_equal(const std::vector<float>& got, const std::vector<float>& expected) const {
    if (got.size() != expected.size()) return false;
    if (kind_ == DeviceKind::host) {
      return std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!(std::fabs(got[i] - expected[i]) <= 2e-3F)) return false;
    }
    return true;
  }

  using Key = std::tuple<Tokens, std::uint64_t, std::uint64_t>;
  DeviceKind kind_;
  std::map<Key, std::vector<float>> known_;
  std::int64_t compared_ = 0;
};

}  // namespace kvarena::test
