#include "effects/cache_bytes.hpp"

#include <cstring>

namespace kvarena::test {
namespace {

constexpr std::int64_t kPerPlane = kCacheHeads * kCacheHeadDim;
constexpr std::int64_t kPerWord = 32;  // elements of all planes of a token, at most

// Below 2^24, so that an f32 holds it exactly.
float element_of(Word word, std::int32_t layer, PlaneKind kind, std::int64_t index) noexcept {
  const std::int64_t plane = 2 * layer + (kind == PlaneKind::value ? 1 : 0);
  return static_cast<float>(static_cast<std::int64_t>(word) * kPerWord + plane * kPerPlane + index);
}

}  // namespace

std::vector<float> input_of(std::span<const Word> words, std::int32_t layer, PlaneKind kind) {
  std::vector<float> input;
  input.reserve(words.size() * kPerPlane);
  for (const Word word : words) {
    for (std::int64_t i = 0; i < kPerPlane; ++i) input.push_back(element_of(word, layer, kind, i));
  }
  return input;
}

Word word_of(float element) noexcept {
  return element >= 0 && element < 0x1p24F ? static_cast<Word>(element) / kPerWord : ~Word{0};
}

float element_at(const PlaneView& plane, std::int32_t block_size, std::int64_t slot,
                 std::int32_t head, std::int32_t dim) noexcept {
  float element = 0;
  std::memcpy(&element,
              plane.base + slot / block_size * plane.block_stride + head * plane.head_stride +
                  slot % block_size * plane.token_stride + dim * std::int64_t{sizeof(float)},
              sizeof(float));
  return element;
}

void write_word(const Arena& arena, std::int64_t slot, Word word) {
  for (std::int32_t layer = 0; layer < arena.layout().num_layers(); ++layer) {
    const KvLayerView view = arena.layer_view(layer).value();
    for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
      const PlaneView& plane = kind == PlaneKind::key ? view.key : view.value;
      for (std::int32_t i = 0; i < kPerPlane; ++i) {
        const float element = element_of(word, layer, kind, i);
        std::memcpy(plane.base + slot / view.block_size * plane.block_stride +
                        i / kCacheHeadDim * plane.head_stride +
                        slot % view.block_size * plane.token_stride +
                        i % kCacheHeadDim * std::int64_t{sizeof(float)},
                    &element, sizeof element);
      }
    }
  }
}

std::optional<std::string> difference(const Arena& arena, std::int64_t slot, Word word) {
  if (word == 0) return std::nullopt;
  for (std::int32_t layer = 0; layer < arena.layout().num_layers(); ++layer) {
    const KvLayerView view = arena.layer_view(layer).value();
    for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
      const PlaneView& plane = kind == PlaneKind::key ? view.key : view.value;
      for (std::int32_t i = 0; i < kPerPlane; ++i) {
        const float found =
            element_at(plane, view.block_size, slot, i / kCacheHeadDim, i % kCacheHeadDim);
        if (found == element_of(word, layer, kind, i)) continue;
        std::ostringstream text;
        text << (kind == PlaneKind::key ? "K" : "V") << " of layer " << layer << " in slot " << slot
             << " was promised to be of word " << word << " and is of word " << word_of(found);
        return text.str();
      }
    }
  }
  return std::nullopt;
}

}  // namespace kvarena::test
