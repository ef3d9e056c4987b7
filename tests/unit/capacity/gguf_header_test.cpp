#include "capacity/files/gguf.hpp"

#include "kvarena/capacity/storage_format.hpp"
#include "support/gguf_writer.hpp"
#include "support/test_files.hpp"
#include "support/text_matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace kvarena::capacity {
namespace {

using test::GgufWriter;
using test::HollowBytes;
using test::little_endian;

constexpr auto kU64Max = std::numeric_limits<std::uint64_t>::max();

GgufWriter small() {
  GgufWriter writer;
  writer.string("general.architecture", "llama").number("llama.block_count", 2);
  writer.tensor("token_embd.weight", "q8_0", {64, 10}).tensor("a", "f32", {5});
  writer.tensor("b", "q4_K", {256, 3});
  return writer;
}

GgufHeader read(const std::string& bytes) {
  GgufHeader header;
  ReadFailure failure;
  const Status status = parse_gguf(MemoryBytes("m.gguf", bytes), header, failure);
  EXPECT_TRUE(status) << to_string(failure);
  return header;
}

std::string failure_of(const std::string& bytes) {
  GgufHeader header;
  ReadFailure failure;
  const Status status = parse_gguf(MemoryBytes("m.gguf", bytes), header, failure);
  if (status) return "";
  EXPECT_EQ(status, status_of(failure));
  return to_string(failure);
}

#define EXPECT_FAILURE(writer, part) EXPECT_HAS(failure_of((writer).file()), part)

TEST(GgmlTypes, KnownSizes) {
  const auto size = [](std::string_view name) {
    for (const GgmlType& type : ggml_types()) {
      if (type.name == name) return std::pair(type.block_elements, type.block_bytes);
    }
    return std::pair(std::int64_t{0}, std::int64_t{0});
  };
  using P = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(size("q8_0"), P(32, 34));
  EXPECT_EQ(size("q4_0"), P(32, 18));
  EXPECT_EQ(size("q4_K"), P(256, 144));
  EXPECT_EQ(size("q6_K"), P(256, 210));
  EXPECT_EQ(size("mxfp4"), P(32, 17));
  EXPECT_EQ(find_ggml_type(4), nullptr);
  EXPECT_EQ(find_ggml_type(31), nullptr);
  EXPECT_EQ(find_ggml_type(2)->name, "q4_0");
  EXPECT_TRUE(std::is_sorted(ggml_types().begin(), ggml_types().end(),
                             [](const auto& a, const auto& b) { return a.number < b.number; }));
}

TEST(GgmlTypes, AgreeWithTheStorageFormats) {
  int compared = 0;
  for (const GgmlType& type : ggml_types()) {
    const StorageFormat* format = find_storage_format(type.name);
    if (format == nullptr) continue;
    ++compared;
    EXPECT_EQ(type.block_bytes * format->elements, format->bytes * type.block_elements)
        << type.name;
  }
  EXPECT_GE(compared, 8);
}

TEST(GgufHeader, SumsWeightsUpByType) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter writer = small();
    writer.version = version;
    const GgufHeader header = read(writer.file());
    EXPECT_EQ(header.version, version);
    EXPECT_EQ(header.header_bytes, static_cast<std::int64_t>(writer.header().size()));
    EXPECT_EQ(header.text("general.architecture"), "llama");
    EXPECT_EQ(header.number("llama.block_count"), 2);
    const TensorIndex& weights = header.weights;
    EXPECT_EQ(weights.elements, 640 + 5 + 768);
    EXPECT_EQ(weights.bytes, 20 * 34 + 5 * 4 + 3 * 144);
    ASSERT_EQ(weights.types.size(), 3u);
    EXPECT_EQ(weights.types[0].type, "q8_0");
    EXPECT_EQ(weights.types[0].bytes, 680);
    EXPECT_EQ(weights.types[1].type, "q4_K");
    EXPECT_EQ(weights.types[1].elements, 768);
    EXPECT_EQ(weights.types[2].tensors, 1);
    ASSERT_NE(find_tensor(weights, "b"), nullptr);
    EXPECT_EQ(find_tensor(weights, "b")->shape, (std::vector<std::int64_t>{256, 3}));
    EXPECT_EQ(find_tensor(weights, "output.weight"), nullptr);
  }
}

TEST(GgufHeader, EveryTypeOfValue) {
  GgufWriter writer;
  writer.raw("u8", GgufWriter::kU8, little_endian<std::uint8_t>(255));
  writer.raw("i8", GgufWriter::kI8, little_endian<std::int8_t>(-1));
  writer.raw("u16", GgufWriter::kU16, little_endian<std::uint16_t>(65535));
  writer.raw("i16", GgufWriter::kI16, little_endian<std::int16_t>(-2));
  writer.number("u32", 4'000'000'000u);
  writer.raw("i32", GgufWriter::kI32, little_endian<std::int32_t>(-3));
  writer.raw("f32", GgufWriter::kF32, little_endian(0.5f));
  writer.flag("yes", true);
  writer.string("text", "a\xc3\xa4");
  writer.raw("u64", GgufWriter::kU64, little_endian(kU64Max));
  writer.raw("i64", GgufWriter::kI64, little_endian<std::int64_t>(-4));
  writer.raw("f64", GgufWriter::kF64, little_endian(0.25));
  writer.array<std::int32_t>("heads", GgufWriter::kI32, {8, 4, -1});
  writer.array<std::uint8_t>("swa", GgufWriter::kBool, {1, 1, 0});
  writer.array<float>("scores", GgufWriter::kF32, {1.0f, 2.0f});
  writer.texts("tokens", 1000, "abc");
  writer.string("template", std::string(5000, 'x'));
  const GgufHeader header = read(writer.file());
  EXPECT_EQ(header.number("u8"), 255);
  EXPECT_EQ(header.number("i8"), -1);
  EXPECT_EQ(header.number("u16"), 65535);
  EXPECT_EQ(header.number("i16"), -2);
  EXPECT_EQ(header.number("u32"), 4'000'000'000);
  EXPECT_EQ(header.number("i32"), -3);
  EXPECT_EQ(std::get<double>(*header.find("f32")), 0.5);
  EXPECT_EQ(std::get<bool>(*header.find("yes")), true);
  EXPECT_EQ(header.text("text"), "a\xc3\xa4");
  EXPECT_EQ(header.number("u64"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(header.number("i64"), -4);
  EXPECT_EQ(std::get<double>(*header.find("f64")), 0.25);
  EXPECT_EQ(std::get<GgufArray>(*header.find("heads")).numbers,
            (std::vector<std::int64_t>{8, 4, -1}));
  EXPECT_EQ(std::get<GgufArray>(*header.find("swa")).numbers, (std::vector<std::int64_t>{1, 1, 0}));
  EXPECT_EQ(header.length("scores"), 2);
  EXPECT_EQ(header.length("tokens"), 1000);
  EXPECT_EQ(header.text("template"), "");
  EXPECT_EQ(header.number("text"), std::nullopt);
  EXPECT_EQ(header.text("absent"), std::nullopt);
}

TEST(GgufHeader, NestedArraysArePassedOver) {
  std::string inner = little_endian(GgufWriter::kU16) + little_endian<std::uint64_t>(3) + "abcdef";
  for (int depth = 2; depth <= 9; ++depth) {
    inner = little_endian(GgufWriter::kArray) + little_endian<std::uint64_t>(2) + inner + inner;
    GgufWriter writer;
    writer.raw("nested", GgufWriter::kArray, inner).number("after", 7);
    if (depth <= 8) {
      EXPECT_EQ(read(writer.file()).number("after"), 7);
    } else {
      EXPECT_FAILURE(writer, "found one array more inside; expected at most 8 levels of arrays");
    }
  }
}

// 200 GB of weights and 64 MB of a tokenizer's numbers: neither is read.
TEST(GgufHeader, ReadsTheHeaderOnlyAndPassesOverLargeArrays) {
  GgufWriter writer;
  writer.array<float>("scores", GgufWriter::kF32, std::vector<float>(std::size_t{16} << 20));
  for (int i = 0; i < 100; ++i) writer.tensor(fmt::format("t{}", i), "bf16", {1 << 20, 1000});
  const HollowBytes source(writer.header(), writer.data_bytes());
  GgufHeader header;
  ReadFailure failure;
  ASSERT_TRUE(parse_gguf(source, header, failure)) << to_string(failure);
  EXPECT_EQ(header.weights.bytes, 100LL * (1 << 20) * 1000 * 2);
  EXPECT_LT(source.bytes_read(), 64 << 10);
}

TEST(GgufHeader, AlignmentIsThatOfItsKey) {
  GgufWriter writer;
  writer.alignment = 4096;
  writer.number("general.alignment", 4096).tensor("a", "f32", {1}).tensor("b", "f32", {1});
  EXPECT_EQ(read(writer.file()).header_bytes, 4096);
  EXPECT_EQ(find_tensor(read(writer.file()).weights, "b")->offset, 4096);
  GgufWriter other = small();
  EXPECT_FAILURE(GgufWriter(other).number("general.alignment", 0),
                 "general.alignment: the number 0");
  EXPECT_FAILURE(GgufWriter(other).number("general.alignment", 24), "expected a power of two");
  EXPECT_FAILURE(GgufWriter(other).number("general.alignment", 1u << 31), "a power of two");
  EXPECT_FAILURE(GgufWriter(other).string("general.alignment", "x"), "the text \"x\"");
  EXPECT_FAILURE(GgufWriter(other).number("general.alignment", 4096),
                 "a multiple of the alignment");
}

TEST(GgufHeader, ScalarsAndEmptyTensors) {
  GgufWriter writer;
  writer.tensor("scalar", "f32", {}).tensor("none", "f16", {0, 7});
  const GgufHeader header = read(writer.file());
  EXPECT_EQ(header.weights.elements, 1);
  EXPECT_EQ(header.weights.bytes, 4);
}

TEST(GgufHostile, NoGgufFile) {
  EXPECT_EQ(failure_of(""), "m.gguf: byte 0: found an empty file; expected a GGUF file");
  EXPECT_EQ(failure_of("GGM"),
            "m.gguf: byte 0: found 3 bytes up to the end of the file; expected the magic number "
            "\"GGUF\" of 4 bytes; the file is cut off or damaged");
  EXPECT_EQ(failure_of("ggjt\1\0\0\0"),
            "m.gguf: byte 0: found \"ggjt\"; expected \"GGUF\"; this is no GGUF file");
}

TEST(GgufHostile, Versions) {
  for (const std::uint32_t version : {0u, 1u, 4u, 77u}) {
    GgufWriter writer = small();
    writer.version = version;
    EXPECT_FAILURE(writer,
                   fmt::format("byte 4: found version {}; expected version 2 or 3", version));
  }
  GgufWriter writer = small();
  writer.version = 0x03000000;
  EXPECT_FAILURE(writer, "found a big-endian version; expected a little-endian file");
}

TEST(GgufHostile, HugeCounts) {
  GgufWriter writer = small();
  writer.more_tensors = std::uint64_t{1} << 63;
  EXPECT_FAILURE(writer, "byte 8: found 9223372036854775811 tensors; expected at most 262144");
  writer.more_tensors = 0;
  writer.more_keys = kU64Max - 2;
  EXPECT_FAILURE(writer, "byte 16: found 18446744073709551615 keys; expected at most 65536");
  writer.more_keys = 1000;
  EXPECT_NE(failure_of(writer.file()), "");
  writer.more_keys = 0;
  writer.more_tensors = 1000;
  EXPECT_NE(failure_of(writer.file()), "");

  GgufWriter text;
  text.raw("k", GgufWriter::kText, little_endian(kU64Max));
  EXPECT_FAILURE(text, "a text of 18446744073709551615 bytes");
  const auto array_of = [](std::uint32_t type, std::uint64_t count) {
    GgufWriter array;
    array.raw("k", GgufWriter::kArray, little_endian(type) + little_endian(count));
    return array;
  };
  EXPECT_FAILURE(array_of(GgufWriter::kU64, kU64Max), "found an array of 18446744073709551615");
  EXPECT_FAILURE(array_of(GgufWriter::kU64, std::uint64_t{1} << 61), "found an array of 2305843");
  EXPECT_FAILURE(array_of(GgufWriter::kU64, std::uint64_t{1} << 32),
                 "an array of 34359738368 bytes");
  EXPECT_FAILURE(array_of(GgufWriter::kText, 1 << 30), "bytes up to the end of the file");
  EXPECT_FAILURE(array_of(GgufWriter::kArray, 1 << 30), "bytes up to the end of the file");
  EXPECT_FAILURE(array_of(99, 1), "found value type 99; expected 0 .. 12");
}

// 22 million arrays of nothing, which a file of 256 MiB could have.
TEST(GgufHostile, ManyArraysWithinOne) {
  GgufWriter writer;
  writer.raw("k", GgufWriter::kArray,
             little_endian(GgufWriter::kArray) + little_endian<std::uint64_t>(22'000'000));
  const HollowBytes source(writer.header(), std::int64_t{1} << 40);
  GgufHeader header;
  ReadFailure failure;
  EXPECT_EQ(parse_gguf(source, header, failure).code, StatusCode::parse_error);
  EXPECT_HAS(to_string(failure),
             "found 22000000 texts and arrays within arrays; expected at most "
             "4194304 in all");
}

TEST(GgufHostile, AHeaderWithoutEnd) {
  GgufWriter writer;
  writer.raw("k", GgufWriter::kText, little_endian(std::uint64_t{1} << 40));
  const HollowBytes source(writer.header(), std::int64_t{1} << 41);
  GgufHeader header;
  ReadFailure failure;
  EXPECT_EQ(parse_gguf(source, header, failure).code, StatusCode::parse_error);
  EXPECT_EQ(
      to_string(failure),
      "model.gguf: byte 45: found a text of 1099511627776 bytes; expected a header of at most "
      "268435456 bytes");
}

TEST(GgufHostile, Names) {
  GgufWriter keys = small();
  EXPECT_FAILURE(GgufWriter(keys).number("llama.block_count", 3),
                 "found the key \"llama.block_count\" again; expected each key once");
  EXPECT_FAILURE(GgufWriter(keys).number("", 3), "found a key of 0 bytes; expected 1 .. 65535");
  EXPECT_FAILURE(GgufWriter(keys).number(std::string(65536, 'a'), 3), "a key of 65536 bytes");
  EXPECT_FAILURE(GgufWriter(keys).number(std::string_view("a\0b", 3), 3), "\"\\x00\" in a key");
  EXPECT_FAILURE(GgufWriter(keys).number("a\xff", 3), "found \"\\xff\" in a key; expected UTF-8");
  EXPECT_FAILURE(GgufWriter(keys).string("k", "\xed\xa0\x80"), "found \"\\xed\" in a text");
  EXPECT_FAILURE(GgufWriter(keys).tensor("a", "f32", {1}), "found two tensors \"a\"");
  EXPECT_FAILURE(GgufWriter(keys).tensor(std::string(65, 'n'), "f32", {1}),
                 "a tensor's name of 65 bytes; expected 1 .. 64");
  EXPECT_FAILURE(GgufWriter(keys).tensor("x\n", "f32", {1}), "\"\\x0a\" in a tensor's name");
  EXPECT_FAILURE(GgufWriter(keys).raw("k", GgufWriter::kBool, "\x02"), "found the bool 2");
}

TEST(GgufHostile, Shapes) {
  const GgufWriter base = small();
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1, 1, 1, 1, 1}, 0, 0), "5 dimensions of \"x\"");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {std::uint64_t{1} << 63}, 0, 0),
                 "the dimension 9223372036854775808 of \"x\"; expected a product");
  const std::uint64_t big = std::uint64_t{1} << 32;
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {big, big}, 0, 0), "product of dimensions below");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {big, big / 4}, 0, 0), "fewer than 2^63 bytes");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {33}, 8, 0), "whole blocks of 32 elements");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {32}, 31, 0), "found ggml type 31 of \"x\"");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {32}, 1000, 0), "found ggml type 1000 of \"x\"");
}

TEST(GgufHostile, Offsets) {
  const GgufWriter base = small();
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1}, 0, 33), "the offset 33 of \"x\"");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1}, 0, 0), "inside \"x\"");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {8}, 0, 32), "found \"x\" inside");
  const auto end = static_cast<std::uint64_t>(base.data_bytes());
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1}, 0, end), "expected 4 of \"x\" at offset");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {0}, 0, end + 32),
                 "expected 0 of \"x\" at offset");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1}, 0, std::uint64_t{1} << 63),
                 "at offset 9223372036854775808");
  EXPECT_FAILURE(GgufWriter(base).raw_tensor("x", {1}, 0, kU64Max - 31), "18446744073709551584");
}

TEST(GgufHostile, TruncatedAtEveryByte) {
  const std::string whole = small().string("k", "v").texts("tokens", 3, "abc").file();
  ASSERT_EQ(failure_of(whole), "");
  const auto last = static_cast<std::size_t>(find_tensor(read(whole).weights, "b")->offset +
                                             read(whole).header_bytes + 3 * 144);
  for (std::size_t size = 0; size < last; ++size) {
    EXPECT_NE(failure_of(whole.substr(0, size)), "") << size;
  }
  EXPECT_EQ(failure_of(whole.substr(0, last)), "");  // the last tensor's padding may be missing
}

TEST(GgufHostile, EveryByteChanged) {
  const std::string whole =
      small().string("k", "v").texts("tokens", 3, "abc").header() + std::string(2048, '\0');
  int refused = 0;
  for (std::size_t at = 0; at < whole.size() - 2048; ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      refused += failure_of(bytes).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(GgufFile, RegularFilesOnly) {
  GgufHeader header;
  ReadFailure failure;
  EXPECT_EQ(read_gguf("/nonexistent.gguf", header, failure).code, StatusCode::not_found);
  EXPECT_EQ(read_gguf("/tmp", header, failure).code, StatusCode::parse_error);
  EXPECT_EQ(to_string(failure), "/tmp: found a folder; expected a regular file");
  const test::TempFile file(small().file(), ".gguf");
  EXPECT_TRUE(read_gguf(file.path(), header, failure)) << to_string(failure);
  EXPECT_EQ(header.weights.tensors.size(), 3u);
}

class GgufSplit : public testing::Test {
 protected:
  GgufSplit() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("kvarena-split-{}", ::getpid());
    std::filesystem::create_directory(folder_);
    for (std::uint16_t part = 0; part < 3; ++part) write(part, part, 3);
  }
  ~GgufSplit() override { std::filesystem::remove_all(folder_); }

  std::string path(int part) const {
    return (folder_ / fmt::format("m-{:05}-of-00003.gguf", part + 1)).string();
  }
  void write(int part, std::uint16_t number, std::uint16_t count, std::string_view name = "") {
    GgufWriter writer;
    writer.raw("split.no", GgufWriter::kU16, little_endian(number));
    writer.raw("split.count", GgufWriter::kU16, little_endian(count));
    writer.raw("split.tensors.count", GgufWriter::kI32, little_endian<std::int32_t>(3));
    if (part == 0) writer.string("general.architecture", "llama");
    writer.tensor(name.empty() ? fmt::format("t{}", part) : std::string(name), "q8_0", {32, 4});
    std::ofstream(path(part), std::ios::binary) << writer.file();
  }
  std::string outcome(int part) {
    ReadFailure failure;
    return read_gguf(path(part), header_, failure) ? "" : to_string(failure);
  }

  std::filesystem::path folder_;
  GgufHeader header_;
};

TEST_F(GgufSplit, AllPartsCount) {
  ASSERT_EQ(outcome(0), "");
  EXPECT_EQ(header_.weights.bytes, 3 * 4 * 34);
  EXPECT_EQ(header_.weights.tensors.size(), 3u);
  EXPECT_EQ(header_.text("general.architecture"), "llama");
}

TEST_F(GgufSplit, TheFirstPartIsToBeNamed) {
  EXPECT_HAS(outcome(1),
             "found part 2 of 3 of a model; expected the first part, named "
             "NAME-00001-of-00003.gguf");
}

TEST_F(GgufSplit, MissingWrongAndRepeatedParts) {
  write(2, 2, 3, "t0");
  EXPECT_HAS(outcome(0), "found two parts with \"t0\"");
  write(2, 1, 3);
  EXPECT_HAS(outcome(0), "expected part 3 of 3");
  std::filesystem::remove(path(2));
  EXPECT_HAS(outcome(0), "m-00003-of-00003.gguf: found No such file");
}

TEST_F(GgufSplit, AllPartsTogetherAreBounded) {
  std::int64_t all = 0;
  for (int part = 0; part < 3; ++part) {
    all += static_cast<std::int64_t>(std::filesystem::file_size(path(part)));
  }
  ReadFailure failure;
  EXPECT_TRUE(read_gguf(path(0), header_, failure, all)) << to_string(failure);
  EXPECT_EQ(read_gguf(path(0), header_, failure, all - 1).code, StatusCode::parse_error);
  EXPECT_HAS(to_string(failure), "m-00003-of-00003.gguf: found ");
  EXPECT_HAS(to_string(failure), "more in all files of a model");
}

TEST(GgufPart, IsToldByItsNumbersAlone) {
  for (const std::string_view later :
       {"m-00002-of-00003.gguf", "-00010-of-00010.gguf", "a-of-b-00003-of-00003.gguf"}) {
    EXPECT_TRUE(is_later_gguf_part(later)) << later;
  }
  for (const std::string_view whole :
       {"m-00001-of-00003.gguf", "best-of-breed.gguf", "m-00002-of-3.gguf", "m-0000a-of-00003.gguf",
        "m-00002-of-00003.gguf.gguf", "m-00002-of-00003", "00002-of-00003.gguf", ".gguf", ""}) {
    EXPECT_FALSE(is_later_gguf_part(whole)) << whole;
  }
}

}  // namespace
}  // namespace kvarena::capacity
