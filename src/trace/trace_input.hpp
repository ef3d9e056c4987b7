#pragma once

/// @file
/// `TraceInput`: the bytes of a trace, as a stream buffer: a file, a pipe or standard input, as it
/// is or compressed by gzip or zstd, which its first bytes tell. Bounded memory. Owns its
/// descriptor. Not movable; one thread at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

namespace kvarena::trace {

/// Turns compressed bytes into plain ones.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Decodes some of `in` into `out`; both move past what was used. Returns false for bytes that
  /// cannot be what they should.
  virtual bool decode(const char*& in, const char* in_end, char*& out, char* out_end) = 0;
  /// Whether the compressed data may end here.
  virtual bool may_end() const noexcept = 0;
};

/// Reads forward, once.
class TraceInput final : public std::streambuf {
 public:
  /// Where the bytes came to their end.
  enum class End : std::uint8_t { none, complete, read_failed, truncated, corrupt };

  /// Opens `path`, "-" being standard input. While a pipe has nothing to say and `*stop` (may be
  /// null) is true, it ends.
  TraceInput(const std::string& path, const std::atomic<bool>* stop);
  ~TraceInput() override;
  TraceInput(const TraceInput&) = delete;
  TraceInput& operator=(const TraceInput&) = delete;

  /// errno of opening or reading; 0: none.
  int error() const noexcept { return error_; }
  End end() const noexcept { return end_; }
  /// Whether it is a file, which can be read again.
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
