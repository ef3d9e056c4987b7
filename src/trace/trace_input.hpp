#pragma once

/// @file
/// `TraceInput`: a stream buffer over the bytes of a trace. The trace is a file, a pipe or standard
/// input. It is plain or compressed by gzip or zstd; its first bytes decide which. Memory is
/// bounded. Owns its descriptor. Not movable; one thread at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

namespace kvarena::trace {

class Decoder {
 public:
  enum class Outcome : std::uint8_t { decoded, damaged, large_window, no_memory };

  virtual ~Decoder() = default;
  /// Decodes a part of `in` into `out`, and moves both past the used bytes. Returns `damaged` for
  /// bytes that are not valid in the format, and `large_window` for data that needs more than
  /// kMaxWindowBytes to be decoded.
  virtual Outcome decode(const char*& in, const char* in_end, char*& out, char* out_end) = 0;
  /// Returns whether the compressed data may end here.
  virtual bool may_end() const noexcept = 0;
};

inline constexpr std::int64_t kMaxWindowBytes = std::int64_t{128} << 20;  ///< zstd

/// Reads the bytes once, from first to last.
class TraceInput final : public std::streambuf {
 public:
  enum class End : std::uint8_t { none, complete, read_failed, truncated, corrupt, large_window };

  /// Opens `path`; "-" is standard input. Waits for the writer of a pipe when the first byte is
  /// read. The input ends once `*stop` is true. `stop` may be null.
  TraceInput(const std::string& path, const std::atomic<bool>* stop);
  ~TraceInput() override;
  TraceInput(const TraceInput&) = delete;
  TraceInput& operator=(const TraceInput&) = delete;

  /// Returns the errno of opening or reading; 0: no error.
  int error() const noexcept { return error_; }
  End end() const noexcept { return end_; }
  /// Returns whether the input is a file, which can be read again.
  bool is_file() const noexcept { return is_file_; }

 private:
  int_type underflow() override;
  bool read_more();
  void choose_decoder();
  bool wait_readable() const;

  const std::atomic<bool>* stop_;
  int descriptor_ = -1;
  int error_ = 0;
  End end_ = End::none;
  bool is_file_ = false;
  bool started_ = false;
  std::unique_ptr<Decoder> decoder_;  // none: plain
  std::vector<char> read_;
  const char* in_ = nullptr;  // what of read_ has not been decoded
  const char* in_end_ = nullptr;
  std::vector<char> plain_;  // what was decoded
};

}  // namespace kvarena::trace
