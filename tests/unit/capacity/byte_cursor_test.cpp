#include "capacity/files/byte_cursor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace kvarena::capacity {
namespace {

TEST(ByteCursor, TextTakesMemoryOnlyForWhatTheSourceHas) {
  const MemoryBytes source("m.bin", "abcd");
  ByteCursor in(source, 3);
  std::string text;
  ASSERT_TRUE(in.text(text, 2, "a text"));
  EXPECT_EQ(text, "ab");
  const std::size_t before = text.capacity();
  EXPECT_FALSE(in.text(text, std::uint64_t{1} << 62, "a text"));
  EXPECT_EQ(text.capacity(), before);
  EXPECT_EQ(to_string(in.failure()),
            "m.bin: byte 2: found a text of 4611686018427387904 bytes; expected a header of at "
            "most 3 bytes");
}

TEST(ByteCursor, TextLongerThanItsWindow) {
  const std::string bytes = std::string(100'000, 'a') + std::string(100'000, 'b');
  const MemoryBytes source("m.bin", bytes);
  ByteCursor in(source, source.size_bytes());
  std::string text;
  ASSERT_TRUE(in.text(text, bytes.size(), "a text"));
  EXPECT_EQ(text, bytes);
  EXPECT_EQ(in.offset(), source.size_bytes());
  EXPECT_FALSE(in.text(text, 1, "a text"));
}

}  // namespace
}  // namespace kvarena::capacity
