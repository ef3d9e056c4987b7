#pragma once

/// @file
/// What tokens look like in a cache's arena. A token is a word, a number used for one token only;
/// each element of its K and V is a function of the word and of where the element belongs.

#include "effects/simulated_memory.hpp"

#include "kvarena/allocator/arena.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena::test {

inline constexpr std::int32_t kCacheHeads = 2;
inline constexpr std::int32_t kCacheHeadDim = 2;

/// K or V of new tokens of one layer, [tokens, kCacheHeads, kCacheHeadDim], for write_kv.
std::vector<float> input_of(std::span<const Word> words, std::int32_t layer, PlaneKind kind);
/// Writes K and V of every layer of the token in `slot`.
void write_word(const Arena& arena, std::int64_t slot, Word word);
/// What is wrong with the token in `slot` when it was promised to be `word`: the first element of
/// any layer that differs. Nothing is promised of word 0.
std::optional<std::string> difference(const Arena& arena, std::int64_t slot, Word word);
/// The word of which `slot` holds an element in any plane, other than those that `allows` allows
/// and than 0 (nothing); none when there is no such word.
template <class Allows>
std::optional<Word> intruder(const Arena& arena, std::int64_t slot, const Allows& allows);
/// The word whose element this is.
Word word_of(float element) noexcept;
/// The element of a plane.
float element_at(const PlaneView& plane, std::int32_t block_size, std::int64_t slot,
                 std::int32_t head, std::int32_t dim) noexcept;

template <class Allows>
std::optional<Word> intruder(const Arena& arena, std::int64_t slot, const Allows& allows) {
  for (std::int32_t layer = 0; layer < arena.layout().num_layers(); ++layer) {
    const KvLayerView view = arena.layer_view(layer).value();
    for (const PlaneView* plane : {&view.key, &view.value}) {
      for (std::int32_t i = 0; i < kCacheHeads * kCacheHeadDim; ++i) {
        const Word word = word_of(
            element_at(*plane, view.block_size, slot, i / kCacheHeadDim, i % kCacheHeadDim));
        if (word != 0 && !allows(word)) return word;
      }
    }
  }
  return std::nullopt;
}

}  // namespace kvarena::test
