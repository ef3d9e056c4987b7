#include "capacity/files/safetensors.hpp"

#include "support/gguf_writer.hpp"
#include "support/safetensors_writer.hpp"
#include "support/text_matchers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace kvarena::capacity {
namespace {

using test::safetensors_bytes;
using test::SafetensorsWriter;

SafetensorsWriter small() {
  SafetensorsWriter writer;
  writer.raw("\"__metadata__\":{\"format\":\"pt\"}");
  writer.tensor("model.embed_tokens.weight", "BF16", {10, 8}, 160);
  writer.tensor("norm", "F32", {8}, 32);
  return writer;
}

std::string failure_of(const std::string& bytes, TensorIndex* index = nullptr) {
  TensorIndex own;
  ReadFailure failure;
  const Status status =
      parse_safetensors(MemoryBytes("m.st", bytes), index != nullptr ? *index : own, failure);
  if (status) return "";
  EXPECT_EQ(status, status_of(failure));
  return to_string(failure);
}

std::string failure_of_header(std::string_view header, std::int64_t data_bytes = 0) {
  return failure_of(safetensors_bytes(header, data_bytes));
}

TEST(Safetensors, SumsWeightsUpByType) {
  TensorIndex index;
  ASSERT_EQ(failure_of(small().tensor("packed", "I32", {4, 2}, 32).file(), &index), "");
  EXPECT_EQ(index.elements, 80 + 8 + 8);
  EXPECT_EQ(index.bytes, 160 + 32 + 32);
  ASSERT_EQ(index.types.size(), 3u);
  EXPECT_EQ(index.types[0].type, "BF16");
  EXPECT_EQ(index.types[0].bytes, 160);
  EXPECT_EQ(index.types[1].type, "F32");
  EXPECT_EQ(index.types[2].type, "I32");
  EXPECT_EQ(find_tensor(index, "packed")->shape, (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(find_tensor(index, "lm_head.weight"), nullptr);
}

TEST(Safetensors, EveryTypeHasItsBytes) {
  const std::pair<std::string_view, std::int64_t> bits_of_types[] = {
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},
      {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
      {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},        {"BF16", 16},
      {"I32", 32},    {"U32", 32},    {"F32", 32},    {"C64", 64},        {"F64", 64},
      {"I64", 64},    {"U64", 64}};
  for (const auto& [type, bits] : bits_of_types) {
    SafetensorsWriter writer;
    writer.tensor("t", type, {8, 3}, bits * 3);
    TensorIndex index;
    EXPECT_EQ(failure_of(writer.file(), &index), "") << type;
    EXPECT_EQ(index.types.at(0).type, type);
    EXPECT_EQ(index.bytes, bits * 3);
  }
}

TEST(Safetensors, ScalarsEmptyTensorsAndPadding) {
  SafetensorsWriter writer;
  writer.tensor("scalar", "F32", {}, 4).tensor("none", "F16", {0, 5}, 0);
  EXPECT_EQ(failure_of(writer.file()), "");
  EXPECT_EQ(failure_of(safetensors_bytes(writer.header() + "    ", 4)), "");
  EXPECT_EQ(failure_of_header("{}"), "");
}

TEST(Safetensors, ReadsTheHeaderOnly) {
  SafetensorsWriter writer;
  writer.tensor("big", "BF16", {1 << 20, 1 << 16}, std::int64_t{1} << 37);
  const test::HollowBytes source(safetensors_bytes(writer.header(), 0), writer.data_bytes());
  TensorIndex index;
  ReadFailure failure;
  ASSERT_TRUE(parse_safetensors(source, index, failure)) << to_string(failure);
  EXPECT_EQ(index.bytes, std::int64_t{1} << 37);
  EXPECT_LT(source.bytes_read(), 64 << 10);
}

TEST(SafetensorsHostile, NoSafetensorsFile) {
  EXPECT_EQ(failure_of(""),
            "m.st: byte 0: found 0 bytes; expected 8 bytes of the header's length; the file is cut "
            "off or damaged");
  EXPECT_HAS(failure_of("1234567"), "found 7 bytes");
  EXPECT_HAS(failure_of("GGUF1234"), "bytes; expected at most 100000000; this is no safetens");
  EXPECT_HAS(failure_of(std::string("\x40\0\0\0\0\0\0\0{}", 10)),
             "found 2 bytes up to the end of the file; expected a header of 64 bytes");
  EXPECT_HAS(failure_of(std::string(8, '\0')), "byte 8: found nothing; expected '{'");
  EXPECT_HAS(failure_of_header(" {}"), "byte 8: found \" {}\"; expected '{'");
  EXPECT_HAS(failure_of_header("[]"), "expected '{'");
  EXPECT_HAS(failure_of_header("{}x"), "byte 10");
  EXPECT_HAS(failure_of_header(std::string_view("{}\0", 3)), "byte 10: found a NUL byte");
  EXPECT_HAS(failure_of_header("{\"\xff\":1}"), "expected text in UTF-8");
}

TEST(SafetensorsHostile, Json) {
  const std::string tensor = R"({"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  const auto with = [&](std::string_view members) {
    return failure_of_header(fmt::format("{{{}}}", members), 1);
  };
  EXPECT_EQ(with(fmt::format(R"("a":{})", tensor)), "");
  EXPECT_HAS(with(fmt::format(R"("a":{0},"a":{0})", tensor)), "the key \"a\" again");
  EXPECT_HAS(with(fmt::format(R"("a":{0},"\u0061":{0})", tensor)), "the key \"a\" again");
  EXPECT_HAS(with(R"("a":{"dtype":"U8","dtype":"U8"})"), "the key \"dtype\" again");
  EXPECT_HAS(with(R"("a":1)"), "$.a: found the number 1; expected a tensor's object");
  EXPECT_HAS(with(R"("a":[])"), "found an array; expected a tensor's object");
  EXPECT_HAS(with(R"("a":{})"), "found no dtype; expected \"dtype\", \"shape\" and");
  EXPECT_HAS(with(R"("a":{"dtype":"U8","shape":[]})"), "found no data_offsets");
  EXPECT_HAS(with(R"("a":{"dtype":"U7"})"), "found the string \"U7\"; expected a dtype");
  EXPECT_HAS(with(R"("a":{"dtype":8})"), "found the number 8; expected a dtype");
  EXPECT_HAS(with(R"("a":{"dtype":[]})"), "found an array; expected a text");
  EXPECT_HAS(with(R"("a":{"shape":3})"), "expected an array of whole numbers");
  EXPECT_HAS(with(R"("a":{"shape":[-1]})"), "$.a.shape[0]: found the number -1; expected a whole");
  EXPECT_HAS(with(R"("a":{"shape":[1.5]})"), "found the number 1.5");
  EXPECT_HAS(with(R"("a":{"shape":[9223372036854775808]})"), "found the number 92233720368547758");
  EXPECT_HAS(with(R"("a":{"shape":[18446744073709551616]})"), "expected a whole number");
  EXPECT_HAS(with(R"("a":{"shape":[[1]]})"), "levels of nesting");
  EXPECT_HAS(with(R"("a":{"data_offsets":[0]})"), "found 1 offsets; expected a begin and an end");
  EXPECT_HAS(with(R"("a":{"data_offsets":[0,1,2]})"), "found 3 offsets");
  EXPECT_HAS(with(R"("a":{"more":1})"), "found \"more\"; expected \"dtype\"");
  EXPECT_HAS(with(R"("__metadata__":{"a":1})"), "found the number 1; expected a text");
  EXPECT_HAS(with(R"("__metadata__":"a")"), "expected an object of texts");
  EXPECT_HAS(with(R"("__metadata__":{"a":{}})"), "found an object; expected a text");
  EXPECT_HAS(with(fmt::format(R"("a":{})", std::string(100'000, '['))), "found an array");
  EXPECT_HAS(failure_of_header(fmt::format("{{{}", std::string(1'000'000, '"'))), "byte");
}

TEST(SafetensorsHostile, ShapesAndOffsets) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets,
                      std::int64_t bytes) {
    return failure_of_header(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}}}})", dtype, shape,
                    offsets),
        bytes);
  };
  EXPECT_EQ(one("F16", "2,3", "0,12", 12), "");
  EXPECT_HAS(one("F16", "2,3", "0,11", 11), "the offsets 0 and 11 of \"a\"; expected 12 bytes");
  EXPECT_HAS(one("F16", "2,3", "12,0", 12), "the offsets 12 and 0 of \"a\"");
  EXPECT_HAS(one("F16", "2,3", "1,13", 13), "found \"a\" at offset 1; expected a tensor at off");
  EXPECT_HAS(one("F16", "2,3", "0,12", 11), "found 11 bytes of tensors' data; expected 12");
  EXPECT_HAS(one("F16", "2,3", "0,12", 13), "found 13 bytes of tensors' data; expected 12");
  EXPECT_HAS(one("F4", "3", "0,1", 1), "the shape of \"a\"; expected whole bytes");
  EXPECT_HAS(one("F4", "4", "0,1", 1), "expected 2 bytes");
  EXPECT_HAS(one("U8", "4294967296,4294967296", "0,0", 0), "expected fewer than 2^63 bits");
  EXPECT_HAS(one("U8", "9223372036854775807,2,0", "0,0", 0), "fewer than 2^63 bits");
  EXPECT_HAS(one("F64", "576460752303423488", "0,0", 0), "fewer than 2^63 bits");
  EXPECT_HAS(one("U8", "1", "9223372036854775806,9223372036854775807", 1), "no holes");
  const auto two = [](std::string_view second) {
    return failure_of_header(
        fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"b":{}}})", second),
        8);
  };
  EXPECT_EQ(two(R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})"), "");
  EXPECT_HAS(two(R"({"dtype":"U8","shape":[4],"data_offsets":[3,7]})"),
             "found \"b\" at offset 3; expected a tensor at offset 4: no holes, no overlaps");
  EXPECT_HAS(two(R"({"dtype":"U8","shape":[3],"data_offsets":[5,8]})"), "at offset 5");
}

TEST(SafetensorsHostile, TruncatedAtEveryByteAndEveryByteChanged) {
  const std::string whole = small().file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(failure_of(whole.substr(0, size)), "") << size;
  }
  int refused = 0;
  const std::size_t header_end = whole.size() - 192;
  for (std::size_t at = 0; at < header_end; ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      refused += failure_of(bytes).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 2);
}

class SafetensorsFolder : public testing::Test {
 protected:
  SafetensorsFolder() {
    folder_ =
        std::filesystem::temp_directory_path() / fmt::format("kvarena-safetensors-{}", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  ~SafetensorsFolder() override { std::filesystem::remove_all(folder_); }

  void write(std::string_view name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void write_shards() const {
    write("a.safetensors", SafetensorsWriter().tensor("x", "BF16", {4}, 8).file());
    write("b.safetensors", SafetensorsWriter().tensor("y", "BF16", {5}, 10).file());
  }
  void write_index(std::string_view map) const {
    write("model.safetensors.index.json",
          fmt::format(R"({{"metadata":{{"total_size":[1,{{"a":2}}]}},"weight_map":{}}})", map));
  }
  std::string outcome(std::string_view name = "") {
    ReadFailure failure;
    const std::string path = (folder_ / name).string();
    status_ = read_safetensors(path, index_, failure);
    return status_ ? "" : to_string(failure);
  }

  std::filesystem::path folder_;
  TensorIndex index_;
  Status status_;
};

TEST_F(SafetensorsFolder, AnIndexAndItsFiles) {
  write_shards();
  write_index(R"({"x":"a.safetensors","y":"b.safetensors"})");
  ASSERT_EQ(outcome(), "");
  EXPECT_EQ(index_.bytes, 18);
  EXPECT_EQ(index_.elements, 9);
  EXPECT_EQ(index_.tensors.size(), 2u);
  EXPECT_EQ(outcome("model.safetensors.index.json"), "");
  EXPECT_EQ(outcome("b.safetensors"), "");
  EXPECT_EQ(index_.bytes, 10);
}

TEST_F(SafetensorsFolder, IndexesThatAreWrong) {
  write_shards();
  const auto with = [&](std::string_view map) {
    write_index(map);
    return outcome();
  };
  EXPECT_HAS(with(R"({"x":"a.safetensors","z":"a.safetensors"})"),
             "a.safetensors: found no tensor \"z\"; expected all that model.safetensors.index");
  EXPECT_HAS(with(R"({"x":"c.safetensors"})"), "c.safetensors: found No such file");
  EXPECT_HAS(with(R"({"x":"../a.safetensors"})"), "expected the name of a file beside the index");
  EXPECT_HAS(with(R"({"x":"/etc/passwd"})"), "expected the name of a file beside the index");
  EXPECT_HAS(with(R"({"x":"sub/a.safetensors"})"), "expected the name of a file beside the");
  EXPECT_HAS(with(R"({"x":"a\u0000"})"), "expected the name of a file beside the index");
  for (const std::string_view control : {"\\n", "\\u001b", "\\u007f", "\\u009b"}) {
    EXPECT_HAS(with(fmt::format(R"({{"x":"a{}[2J.safetensors"}})", control)),
               "expected the name of a file beside the index");
  }
  EXPECT_HAS(with(R"({"x":"a.safetensors","x":"b.safetensors"})"), "the key \"x\" again");
  EXPECT_HAS(with(R"({"x":1})"), "found the number 1; expected a file's name");
  EXPECT_HAS(with(R"({"x":{"y":"z"}})"), "found an object; expected a file's name");
  EXPECT_HAS(with("[]"), "found an array; expected an object");
  EXPECT_HAS(with("3"), "found the number 3; expected a file's name");
  EXPECT_HAS(with("{}"), "found an empty weight_map");
  write("model.safetensors.index.json", "{\"metadata\":{\"weight_map\":{\"x\":\"a\"}}}");
  EXPECT_HAS(outcome(), "found no weight_map");
  write("model.safetensors.index.json", "3");
  EXPECT_HAS(outcome(), "found the number 3; expected an object");
  write("b.safetensors", SafetensorsWriter().tensor("x", "BF16", {4}, 8).file());
  EXPECT_HAS(with(R"({"x":"a.safetensors","y":"b.safetensors"})"), "found no tensor \"y\"");
  write("b.safetensors",
        SafetensorsWriter().tensor("x", "BF16", {4}, 8).tensor("y", "F32", {}, 4).file());
  EXPECT_HAS(with(R"({"x":"a.safetensors","y":"b.safetensors"})"),
             "found two files with \"x\"; expected each tensor in one file");
}

TEST_F(SafetensorsFolder, AllFilesTogetherAreBounded) {
  write_shards();
  write_index(R"({"x":"a.safetensors","y":"b.safetensors"})");
  const auto both =
      static_cast<std::int64_t>(std::filesystem::file_size(folder_ / "a.safetensors") +
                                std::filesystem::file_size(folder_ / "b.safetensors"));
  ReadFailure reason;
  EXPECT_TRUE(read_safetensors(folder_.string(), index_, reason, both)) << to_string(reason);
  EXPECT_EQ(read_safetensors(folder_.string(), index_, reason, both - 1).code,
            StatusCode::parse_error);
  EXPECT_HAS(to_string(reason), "b.safetensors: found ");
  EXPECT_HAS(to_string(reason), "more in all files of a model");
}

TEST_F(SafetensorsFolder, AFileNamedForATerminal) {
  write("\x1b]0;x\a\n.safetensors", "");
  const std::string failure = outcome();
  EXPECT_TRUE(
      failure.ends_with("/?]0;x??.safetensors: byte 0: found 0 bytes; expected 8 bytes of "
                        "the header's length; the file is cut off or damaged"))
      << failure;
}

TEST_F(SafetensorsFolder, OneFile) {
  EXPECT_HAS(outcome(), "found 0 files of tensors, and no index");
  EXPECT_EQ(status_.code, StatusCode::not_found);
  write("weights.safetensors", small().file());
  EXPECT_EQ(outcome(), "");
  EXPECT_EQ(index_.bytes, 192);
  write("other.safetensors", small().file());
  EXPECT_HAS(outcome(), "found 2 files of tensors, and no index; expected model.safetensors");
  write("model.safetensors", SafetensorsWriter().tensor("x", "U8", {}, 1).file());
  EXPECT_EQ(outcome(), "");
  EXPECT_EQ(index_.bytes, 1);
  EXPECT_HAS(outcome("absent"), "found No such file");
  EXPECT_EQ(status_.code, StatusCode::not_found);
}

TEST_F(SafetensorsFolder, AFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_HAS(outcome(), "model.safetensors: found a FIFO; expected a regular file");
}

}  // namespace
}  // namespace kvarena::capacity
