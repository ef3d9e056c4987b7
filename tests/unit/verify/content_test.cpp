// The content of tokens: what decides it, and what its elements are.

#include "verify/content_pattern.hpp"
#include "verify/sequence.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

namespace kvarena::verify {
namespace {

std::shared_ptr<SequenceContent> content_with(std::vector<std::int64_t> ids, std::int64_t owner) {
  return std::make_shared<SequenceContent>(SequenceContent{
      .owner = owner, .prompt_tokens = 40, .block_tokens = 16, .blocks = std::move(ids)});
}

std::vector<std::uint64_t> hashes_of(TokenStream stream, int count) {
  std::vector<std::uint64_t> hashes;
  for (int i = 0; i < count; ++i) hashes.push_back(stream.next());
  return hashes;
}

TEST(TokenContent, PrefixDecidesAndNothingElse) {
  const auto a = hashes_of({content_with({7, 8}, 0), 0}, 48);
  const auto same = hashes_of({content_with({7, 8}, 0), 0}, 48);
  const auto other = hashes_of({content_with({7, 9}, 1), 0}, 48);
  EXPECT_EQ(a, same);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == other[t], t < 16) << t;
  const auto tail = hashes_of({content_with({7, 8}, 1), 0}, 48);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == tail[t], t < 32) << t;
  const auto sample = hashes_of({content_with({7, 8}, 0), 1}, 48);
  for (std::size_t t = 0; t < 48; ++t) EXPECT_EQ(a[t] == sample[t], t < 40) << t;
}

TEST(TokenContent, AForkContinuesAsItsOwnSample) {
  const auto content = content_with({7, 8}, 3);
  TokenStream parent(content, 0);
  for (int t = 0; t < 40; ++t) static_cast<void>(parent.next());
  TokenStream child = parent.as_sample(2);
  const auto alone = hashes_of({content, 2}, 48);
  for (std::size_t t = 40; t < 48; ++t) EXPECT_EQ(child.next(), alone[t]);
}

TEST(TokenContent, RowsDifferByLayerKindHeadAndPrefix) {
  std::set<std::vector<std::byte>> rows;
  int made = 0;
  for (const std::uint64_t hash : {1ULL, 2ULL, 1ULL << 40}) {
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (const RowKind kind : {RowKind::key, RowKind::value}) {
        for (std::int32_t head = 0; head < 5; ++head, ++made) {
          std::vector<std::byte> row(32);
          fill_row(DType::bf16, hash, layer, kind, head, 16, row.data());
          rows.insert(row);
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), static_cast<std::size_t>(made));
}

template <class Element, class ToFloat>
void expect_in_range(DType dtype, ToFloat to_float) {
  for (const int count : {1, 3, 64, 127}) {
    for (const RowKind kind : {RowKind::key, RowKind::value, RowKind::query}) {
      std::vector<std::byte> row(sizeof(Element) * static_cast<std::size_t>(count) + 4,
                                 std::byte{0xee});
      fill_row(dtype, 99, 1, kind, 2, count, row.data());
      for (int i = 0; i < count; ++i) {
        Element bits{};
        std::memcpy(&bits, row.data() + sizeof(Element) * static_cast<std::size_t>(i), sizeof bits);
        const float magnitude = std::abs(to_float(bits));
        EXPECT_GE(magnitude, kind == RowKind::query ? 2.0F : 0.125F);
        EXPECT_LT(magnitude, kind == RowKind::query ? 8.0F : 0.5F);
      }
      for (std::size_t i = sizeof(Element) * static_cast<std::size_t>(count); i < row.size(); ++i) {
        EXPECT_EQ(row[i], std::byte{0xee}) << "written past the row";
      }
    }
  }
}

TEST(TokenContent, ElementsAreFiniteAndBounded) {
  expect_in_range<float>(DType::f32, [](float x) { return x; });
  expect_in_range<std::uint16_t>(DType::bf16, [](std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value = 0.0F;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  });
  expect_in_range<_Float16>(DType::f16, [](_Float16 x) { return static_cast<float>(x); });
}

}  // namespace
}  // namespace kvarena::verify
