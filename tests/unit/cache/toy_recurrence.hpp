#pragma once

/// @file
/// Two recurrent layers as small as they can be: a gated delta rule (arXiv 2412.06464) and Mamba-2
/// (arXiv 2405.21060), each behind a causal convolution. The inputs of a layer are a pure function
/// of the token and the layer, so that any run can be repeated without a cache, bit for bit.

#include "kvarena/base/export.hpp"
#include "kvarena/base/state_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarena::test {

/// The recurrence of a layer.
enum class Recurrence { gated_delta, mamba2 };

/// Shapes of the toy layers.
struct ToyShape {
  static constexpr std::size_t kHeads = 2;
  static constexpr std::size_t kKey = 4;
  static constexpr std::size_t kValue = 6;
  static constexpr std::size_t kKernel = 4;  ///< inputs that the convolution reads
  static constexpr std::size_t kChannels = kHeads * (2 * kKey + kValue);
  static constexpr std::size_t kState = kHeads * kKey * kValue;
  static constexpr std::size_t kConv = kChannels * (kKernel - 1);
  static constexpr std::size_t kOut = kHeads * kValue;

  /// The planes of a layer.
  static std::vector<StatePlane> planes() {
    return {{.dtype = DType::f32, .num_dims = 3, .shape = {kHeads, kKey, kValue}},
            {.dtype = DType::f32, .num_dims = 2, .shape = {kChannels, kKernel - 1}}};
  }
};

/// A number in -1 .. 1 that depends on all arguments.
KVARENA_HOST_DEVICE inline float toy_number(std::int32_t token, std::int32_t layer,
                                            std::size_t index) {
  std::uint64_t x = static_cast<std::uint64_t>(token) * 0x9E3779B97F4A7C15 +
                    static_cast<std::uint64_t>(layer) * 0xBF58476D1CE4E5B9 + index * 2654435761;
  x ^= x >> 29;
  x *= 0x94D049BB133111EB;
  x ^= x >> 32;
  return static_cast<float>(static_cast<double>(x % 200'001) / 100'000.0 - 1.0);
}

/// Adds one token: changes `state` [kState] and `conv` [kConv], writes `out` [kOut].
KVARENA_HOST_DEVICE inline void toy_step(Recurrence kind, std::int32_t token, std::int32_t layer,
                                         float* state, float* conv, float* out) {
  using Shape = ToyShape;
  constexpr std::size_t kPast = Shape::kKernel - 1;
  float mixed[Shape::kChannels];
  for (std::size_t c = 0; c < Shape::kChannels; ++c) {
    float* const past = conv + c * kPast;
    const float input = toy_number(token, layer, c);
    float sum = input * 0.5F;
    for (std::size_t i = 0; i < kPast; ++i) sum += past[i] * (0.1F + 0.05F * static_cast<float>(i));
    for (std::size_t i = 0; i + 1 < kPast; ++i) past[i] = past[i + 1];
    past[kPast - 1] = input;
    mixed[c] = sum;
  }
  for (std::size_t head = 0; head < Shape::kHeads; ++head) {
    const float* const key = mixed + head * (2 * Shape::kKey + Shape::kValue);
    const float* const query = key + Shape::kKey;
    const float* const value = query + Shape::kKey;
    float* const s = state + head * Shape::kKey * Shape::kValue;
    const float gate = 0.9F + 0.05F * toy_number(token, layer, 1000 + head);
    const float step = 0.5F + 0.3F * toy_number(token, layer, 2000 + head);
    for (std::size_t v = 0; v < Shape::kValue; ++v) {
      float seen = 0;  // what the state says for the key
      for (std::size_t k = 0; k < Shape::kKey; ++k) seen += s[k * Shape::kValue + v] * key[k];
      const float added =
          kind == Recurrence::gated_delta ? step * (value[v] - gate * seen) : step * value[v];
      float sum = 0;
      for (std::size_t k = 0; k < Shape::kKey; ++k) {
        float& element = s[k * Shape::kValue + v];
        element = gate * element + key[k] * added;
        sum += element * query[k];
      }
      out[head * Shape::kValue + v] = sum;
    }
  }
}

}  // namespace kvarena::test
