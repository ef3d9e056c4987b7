#include "scenarios/served_model.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int32_t kBlockTokens = 16;

/// A preset, what it is called here, and the type of its weights, of K and of V.
struct Known {
  std::string_view name;
  std::string_view preset;
  DType dtype;
};

constexpr std::array<Known, 2> kKnown = {{{"Phi-3-mini", "Phi-3-mini-4k-instruct", DType::f16},
                                          {"Qwen2.5-0.5B", "Qwen2.5-0.5B", DType::bf16}}};

constexpr std::uint64_t kPrime = 251;

std::uint8_t value_of(std::int64_t piece) noexcept {
  return static_cast<std::uint8_t>(1 + static_cast<std::uint64_t>(piece) % kPrime);
}

}  // namespace

std::vector<std::string> served_model_names() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    names.emplace_back(known.name);
    if (known.preset != known.name) names.emplace_back(known.preset);
  }
  return names;
}

std::optional<ServedModel> find_served_model(std::string_view name) {
  const auto* known = std::find_if(kKnown.begin(), kKnown.end(), [name](const Known& k) {
    return k.name == name || k.preset == name;
  });
  if (known == kKnown.end()) return std::nullopt;
  const auto preset = capacity::find_model_preset(known->preset);
  if (!preset || !preset->parameters) return std::nullopt;
  const capacity::CacheGroup& layers = preset->groups.front();  // alike in all layers
  return ServedModel{.name = std::string(known->name),
                     .shape = {.num_layers = layers.num_layers,
                               .num_kv_heads = layers.num_kv_heads,
                               .head_dim_k = layers.head_dim_k,
                               .head_dim_v = layers.head_dim_v,
                               .dtype = known->dtype,
                               .block_size_tokens = kBlockTokens,
                               .tile_order = std::nullopt},
                     .num_q_heads = preset->shape.num_q_heads,
                     .max_context_tokens = preset->shape.max_position,
                     .weights_bytes = *preset->parameters * bytes_of(known->dtype)};
}

Result<ModelWeights> ModelWeights::load(Device& device, const ModelWeightsOptions& options) {
  const Result<void*> memory = device.allocate({.bytes = static_cast<std::uint64_t>(options.bytes),
                                                .purpose = MemoryPurpose::model_weights,
                                                .description = "model weights"});
  if (!memory) return memory.status();
  ModelWeights weights(device, options, *memory);
  const Result<StreamId> stream = device.create_stream();
  if (!stream) return stream.status();
  weights.stream_ = *stream;
  if (Status status = weights.fill(); !status) return status;
  // What reading needs of the driver it must have before others fill the device.
  if (const Result<std::int64_t> wrong = weights.count_wrong_bytes(); !wrong) {
    return wrong.status();
  }
  return weights;
}

Status ModelWeights::fill() const {
  auto* const first = static_cast<std::byte*>(data_);
  for (std::int64_t at = 0; at < bytes(); at += options_.piece_bytes) {
    if (options_.stop != nullptr && *options_.stop) return failed_precondition(Resource::device);
    const auto count = static_cast<std::uint64_t>(std::min(options_.piece_bytes, bytes() - at));
    const std::uint8_t value = value_of(at / options_.piece_bytes);
    if (Status s = device_->fill(first + at, value, count, stream_); !s) return s;
  }
  return device_->synchronize(stream_);
}

Result<std::int64_t> ModelWeights::count_wrong_bytes() const {
  const std::int64_t pieces = (bytes() + options_.piece_bytes - 1) / options_.piece_bytes;
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(2 * pieces));
  const auto* const first = static_cast<const std::byte*>(data_);
  Status status;
  for (std::int64_t i = 0; i < pieces && status; ++i) {
    const std::int64_t begin = i * options_.piece_bytes;
    const std::int64_t last = std::min(begin + options_.piece_bytes, bytes()) - 1;
    std::uint8_t* const target = seen.data() + 2 * i;
    status = device_->copy(target, first + begin, 1, stream_);
    if (status) status = device_->copy(target + 1, first + last, 1, stream_);
  }
  const Status done = device_->synchronize(stream_);
  if (status) status = done;
  if (!status) return status;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < 2 * pieces; ++i) {
    wrong += seen[static_cast<std::size_t>(i)] == value_of(i / 2) ? 0 : 1;
  }
  return wrong;
}

ModelWeights::~ModelWeights() {
  if (data_ == nullptr) return;
  if (stream_ != StreamId{}) static_cast<void>(device_->destroy_stream(stream_));
  static_cast<void>(device_->free(data_));
}
ModelWeights::ModelWeights(ModelWeights&& other) noexcept
    : device_(other.device_),
      options_(other.options_),
      data_(std::exchange(other.data_, nullptr)),
      stream_(std::exchange(other.stream_, StreamId{})) {}
ModelWeights& ModelWeights::operator=(ModelWeights&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(options_, other.options_);
  std::swap(data_, other.data_);
  std::swap(stream_, other.stream_);
  return *this;
}

}  // namespace kvarena::scenarios
