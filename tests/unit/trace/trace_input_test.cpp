// Compressed traces and pipes: what is whole is read, and what is not is one clear error.

#include "support/process_memory.hpp"
#include "support/test_files.hpp"
#include "support/text_matchers.hpp"
#include "unit/trace/trace_reading.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kvarena::trace {
namespace {

using test::read_all;
using test::TempFile;

std::string many_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += R"({"timestamp": )" + std::to_string(i) +
            R"(, "input_length": 600, "output_length": 3, "hash_ids": [)" +
            std::to_string(i * 7919) + ", " + std::to_string(i) + "]}\n";
  }
  return text;
}

std::string gzipped(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstandard(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST(CompressedTrace, IsReadByItsContentInSeveralParts) {
  const std::string text = many_lines(5000);
  const auto middle = text.find('\n', text.size() / 2) + 1;
  for (const auto compress : {gzipped, zstandard}) {
    // A file whose name says nothing, and two compressed files behind one another.
    EXPECT_EQ(read_all(compress(text)).requests.size(), 5000U);
    const auto both = read_all(compress(text.substr(0, middle)) + compress(text.substr(middle)));
    ASSERT_EQ(both.requests.size(), 5000U) << to_string(both.failure);
    EXPECT_EQ(both.requests.back().prefix_blocks[1], 4999);
    EXPECT_TRUE(both.status.is_ok());
  }
}

TEST(CompressedTrace, OneThatIsCutOrDamagedIsOneClearError) {
  const std::string text = many_lines(5000);
  for (const auto compress : {gzipped, zstandard}) {
    const std::string whole = compress(text);
    for (const std::size_t left : {std::size_t{6}, whole.size() / 2, whole.size() - 1}) {
      const auto cut = read_all(std::string_view(whole).substr(0, left));
      EXPECT_EQ(cut.status.code, StatusCode::parse_error) << left;
      EXPECT_HAS(to_string(cut.failure), "ends in its middle");
    }
    std::string damaged = whole;
    for (std::size_t i = whole.size() / 2; i < whole.size() / 2 + 64; ++i) damaged[i] ^= 0x5a;
    const auto wrong = read_all(damaged);
    EXPECT_EQ(wrong.status.code, StatusCode::parse_error);
    EXPECT_LT(wrong.requests.size(), 5000U);
    const auto tail = read_all(whole + "{}");
    EXPECT_HAS(to_string(tail.failure), "damaged");
  }
}

TEST(CompressedTrace, ZerosBehindGzipArePadding) {
  const std::string whole = gzipped(many_lines(5));
  for (const std::size_t zeros : {std::size_t{1}, std::size_t{512}, std::size_t{200'000}}) {
    const auto padded = read_all(whole + std::string(zeros, '\0'));
    EXPECT_TRUE(padded.status.is_ok()) << to_string(padded.failure);
    EXPECT_EQ(padded.requests.size(), 5U);
    EXPECT_HAS(to_string(read_all(whole + std::string(zeros, '\0') + whole).failure), "damaged");
  }
}

/// A zstd frame that holds `text` and says that it needs a window of 2^`log` bytes.
std::string zstandard_with_window(int log, std::string_view text) {
  const auto block = static_cast<std::uint32_t>(text.size() << 3 | 1);  // the last one, raw
  std::string frame{"\x28\xb5\x2f\xfd\0", 5};
  frame += static_cast<char>((log - 10) << 3);
  for (int byte = 0; byte < 3; ++byte) frame += static_cast<char>(block >> 8 * byte);
  return frame.append(text);
}

TEST(CompressedTrace, AWindowAboveTheLimitIsNotCalledDamage) {
  const auto at_limit = read_all(zstandard_with_window(27, many_lines(5)));
  EXPECT_EQ(at_limit.requests.size(), 5U) << to_string(at_limit.failure);
  const auto above = read_all(zstandard_with_window(28, many_lines(5)));
  EXPECT_EQ(above.status.code, StatusCode::parse_error);
  EXPECT_HAS(to_string(above.failure), "window above 128 MiB");
  EXPECT_HAS(to_string(above.failure), "zstd -d");
}

TEST(CompressedTrace, NoMemoryForItsWindowIsNotCalledDamage) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer needs the address space";
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit low{pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (64 << 20),
                   before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &low), 0);
  const auto reading = read_all(zstandard_with_window(27, many_lines(5)));
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(reading.status.code, StatusCode::io_error);
  EXPECT_EQ(reading.status.native, ENOMEM);
  EXPECT_HAS(to_string(reading.failure), "more memory");
}

// A line behind them that is too long shows who reads on to it.
TEST(CompressedTrace, BlankLinesWithoutEndAreStopped) {
  const TempFile file(gzipped(std::string(5'000'000, '\n') + std::string(9'000'000, 'x')));
  for (const bool is_stopped : {true, false}) {
    const std::atomic<bool> stop{is_stopped};
    Finding failure;
    EXPECT_FALSE(TraceReader::open({.path = file.path(), .stop = &stop}, &failure).is_ok());
    EXPECT_EQ(failure.found.find("longer than") == std::string::npos, is_stopped) << failure.found;
  }
}

TEST(CompressedTrace, ABombIsAnErrorInBoundedMemory) {
  // A line of 200 MB in 200 kB.
  const auto bomb = read_all(gzipped(std::string(200'000'000, ' ')));
  EXPECT_HAS(bomb.failure.found, "longer than 8388608 bytes") << to_string(bomb.failure);
}

TEST(PipedTrace, IsReadOnceAndStopsWhenAsked) {
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  const std::string text = many_lines(2);
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  std::atomic<bool> stop{false};
  auto reader = TraceReader::open({.path = path, .stop = &stop}, nullptr);
  ASSERT_TRUE(reader.is_ok());
  EXPECT_FALSE(reader->is_rereadable());
  EXPECT_TRUE(reader->next().value().has_value());
  EXPECT_TRUE(reader->next().value().has_value());
  // Nobody writes any more, and nobody has closed the pipe.
  std::jthread asker([&stop] { stop = true; });
  EXPECT_FALSE(reader->next().value().has_value());
  ::close(ends[0]);
  ::close(ends[1]);
}

/// A named pipe without a writer.
struct NamedPipe {
  NamedPipe() {
    std::filesystem::remove(path);
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  }
  ~NamedPipe() { std::filesystem::remove(path); }
  const std::string path = testing::TempDir() + "kvarena_pipe_" + std::to_string(::getpid());
};

TEST(PipedTrace, IsStoppedWhileItHasNoWriter) {
  const NamedPipe pipe;
  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};
  std::thread reading([&] {
    EXPECT_FALSE(TraceReader::open({.path = pipe.path, .stop = &stop}, nullptr).is_ok());
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ended) << "a pipe without a writer is not an empty one";
  stop = true;
  for (int n = 0; n < 100 && !ended; ++n)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(ended);
  if (!ended) ::close(::open(pipe.path.c_str(), O_WRONLY));
  reading.join();
}

TEST(PipedTrace, WaitsForItsWriter) {
  const NamedPipe pipe;
  std::atomic<bool> stop{false};
  for (const std::atomic<bool>* flag : {static_cast<std::atomic<bool>*>(nullptr), &stop}) {
    std::jthread writer([&pipe] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::ofstream(pipe.path) << many_lines(3);
    });
    auto reader = TraceReader::open({.path = pipe.path, .stop = flag}, nullptr);
    ASSERT_TRUE(reader.is_ok());
    EXPECT_FALSE(reader->is_rereadable());
    for (int n = 0; n < 3; ++n) EXPECT_TRUE(reader->next().value().has_value());
    EXPECT_FALSE(reader->next().value().has_value());
  }
}

TEST(PipedTrace, AFailureToReadStandardInputNamesIt) {
  const int kept = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  Finding failure;
  const auto reader = TraceReader::open({.path = "-"}, &failure);
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
  EXPECT_EQ(reader.status().native, EBADF);
  EXPECT_HAS(to_string(failure), "standard input: ");
}

}  // namespace
}  // namespace kvarena::trace
