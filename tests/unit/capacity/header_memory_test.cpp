// What a hostile header makes its reader hold: little beside the file, whatever it claims.

#include "capacity/files/gguf.hpp"
#include "capacity/files/safetensors.hpp"
#include "support/gguf_writer.hpp"
#include "support/heap_counter.hpp"
#include "support/safetensors_writer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::capacity {
namespace {

using test::GgufWriter;
using test::little_endian;
using test::SafetensorsWriter;

constexpr auto kU64Max = std::numeric_limits<std::uint64_t>::max();

/// The most bytes held while `bytes` are read, which is refused where they are `hostile`.
std::int64_t peak_of_gguf(const std::string& bytes, bool hostile) {
  const MemoryBytes source("m.gguf", bytes);
  const test::HeapPeak peak;
  GgufHeader header;
  ReadFailure failure;
  EXPECT_EQ(parse_gguf(source, header, failure).code == StatusCode::ok, !hostile);
  return peak.bytes();
}

std::int64_t peak_of_safetensors(const std::string& bytes, bool hostile) {
  const MemoryBytes source("m.st", bytes);
  const test::HeapPeak peak;
  TensorIndex index;
  ReadFailure failure;
  EXPECT_EQ(parse_safetensors(source, index, failure).code == StatusCode::ok, !hostile)
      << to_string(failure);
  return peak.bytes();
}

TEST(HeaderMemory, CountsOfAGgufFileReserveNothing) {
  constexpr std::int64_t kMost = 64 << 10;
  std::vector<GgufWriter> writers(4);
  writers[0].more_tensors = std::uint64_t{256} << 10;
  writers[1].more_keys = std::uint64_t{64} << 10;
  writers[2].raw("k", GgufWriter::kText, little_endian(kU64Max));
  writers[3].raw("k", GgufWriter::kText, little_endian(std::uint64_t{1} << 30));
  for (const std::uint32_t type :
       {GgufWriter::kU8, GgufWriter::kU64, GgufWriter::kText, GgufWriter::kArray}) {
    for (const std::uint64_t count : {std::uint64_t{1} << 28, std::uint64_t{1} << 61, kU64Max}) {
      writers.emplace_back().raw("k", GgufWriter::kArray,
                                 little_endian(type) + little_endian(count));
    }
  }
  for (std::size_t i = 0; i < writers.size(); ++i) {
    EXPECT_LT(peak_of_gguf(writers[i].file(), true), kMost) << i;
  }
}

TEST(HeaderMemory, AGgufTokenizerIsPassedOver) {
  GgufWriter writer;
  writer.string("general.architecture", "llama");
  writer.texts("tokenizer.ggml.tokens", 100'000, "a token of some length");
  EXPECT_LT(peak_of_gguf(writer.file(), false), 64 << 10);
}

TEST(HeaderMemory, ASafetensorsHeaderTakesAFewTimesItsBytes) {
  constexpr std::int64_t kMost = 12;  // times the header
  std::string tensors;
  for (int i = 0; i < 40'000; ++i) {
    tensors +=
        fmt::format(R"(,"{}":{{"dtype":"U8","shape":[],"data_offsets":[{},{}]}})", i, i, i + 1);
  }
  tensors.erase(0, 1);
  std::string zeros = R"("a":{"dtype":"U8","shape":[0)";
  for (int i = 0; i < 1'000'000; ++i) zeros += ",0";
  std::string keys = R"("__metadata__":{"":"")";
  for (int i = 0; i < 200'000; ++i) keys += fmt::format(R"(,"\u0061{}":"")", i);
  const struct {
    std::string members;
    std::int64_t data_bytes;
    bool hostile;
  } headers[] = {
      {tensors, 40'000, false},
      {tensors + R"(,"0":{"dtype":"U8","shape":[],"data_offsets":[0,1]})", 40'000, true},
      {zeros + R"(],"data_offsets":[0,0]})", 0, false},
      {zeros, 0, true},
      {keys + "}", 0, false},
  };
  for (const auto& [members, data_bytes, hostile] : headers) {
    const std::string bytes = test::safetensors_bytes("{" + members + "}", data_bytes);
    const auto size = static_cast<std::int64_t>(members.size());
    EXPECT_LT(peak_of_safetensors(bytes, hostile), kMost * size) << members.substr(0, 40);
  }
}

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
