#include "scenarios/model_weights.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvarena::replay::pressure {
namespace {

constexpr std::uint64_t kPrime = 251;

std::uint8_t value_of(std::int64_t piece) noexcept {
  return static_cast<std::uint8_t>(1 + static_cast<std::uint64_t>(piece) % kPrime);
}

}  // namespace

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

}  // namespace kvarena::replay::pressure
