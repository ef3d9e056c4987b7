#include "trace/trace_input.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string_view>

namespace kvarena::trace {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr int kPollMs = 100;
constexpr int kMaxWindowLog = std::bit_width(std::uint64_t{kMaxWindowBytes}) - 1;
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder() { is_open_ = inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK; }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  // Members follow one another; zeros behind the last are padding.
  Outcome decode(const char*& in, const char* in_end, char*& out, char* out_end) override {
    if (!is_open_) return Outcome::no_memory;
    if (may_end_) {
      const char* const first = in;
      in = std::find_if(in, in_end, [](char c) { return c != '\0'; });
      is_padded_ = is_padded_ || in != first;
      if (in == in_end) return Outcome::decoded;
      if (is_padded_ || inflateReset(&stream_) != Z_OK) return Outcome::damaged;
      may_end_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in));
    stream_.avail_in = static_cast<uInt>(in_end - in);
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(out_end - out);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    in = in_end - stream_.avail_in;
    out = out_end - stream_.avail_out;
    may_end_ = status == Z_STREAM_END;
    if (status == Z_MEM_ERROR) return Outcome::no_memory;
    return status == Z_OK || may_end_ || status == Z_BUF_ERROR ? Outcome::decoded
                                                               : Outcome::damaged;
  }
  bool may_end() const noexcept override { return may_end_; }

 private:
  z_stream stream_{};
  bool is_open_ = false;
  bool may_end_ = false;
  bool is_padded_ = false;
};

class ZstdDecoder final : public Decoder {
 public:
  Outcome decode(const char*& in, const char* in_end, char*& out, char* out_end) override {
    if (stream_ == nullptr) return Outcome::no_memory;
    ZSTD_inBuffer from{in, static_cast<std::size_t>(in_end - in), 0};
    ZSTD_outBuffer to{out, static_cast<std::size_t>(out_end - out), 0};
    const std::size_t left = ZSTD_decompressStream(stream_.get(), &to, &from);
    in += from.pos;
    out += to.pos;
    may_end_ = left == 0;
    switch (ZSTD_getErrorCode(left)) {
      case ZSTD_error_no_error: return Outcome::decoded;
      case ZSTD_error_frameParameter_windowTooLarge: return Outcome::large_window;
      case ZSTD_error_memory_allocation: return Outcome::no_memory;
      default: return Outcome::damaged;
    }
  }
  bool may_end() const noexcept override { return may_end_; }

 private:
  static ZSTD_DStream* create() {
    ZSTD_DStream* stream = ZSTD_createDStream();
    if (stream != nullptr) ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, kMaxWindowLog);
    return stream;
  }
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_{create()};
  bool may_end_ = false;
};

}  // namespace

TraceInput::TraceInput(const std::string& path, const std::atomic<bool>* stop) : stop_(stop) {
  // The open of a pipe would wait for its writer, whatever signals come. wait_readable does so.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  descriptor_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), kFlags);
  struct stat info {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &info) != 0) {
    error_ = errno;
  } else if (S_ISDIR(info.st_mode)) {
    error_ = EISDIR;
  }
  is_file_ = S_ISREG(info.st_mode) && path != "-";
  if (error_ == 0) read_.resize(kBufferBytes);
}

TraceInput::~TraceInput() {
  if (descriptor_ > STDIN_FILENO) ::close(descriptor_);
}

// Whether there is something to read, or the end; false when it is to stop.
bool TraceInput::wait_readable() const {
  pollfd readable{descriptor_, POLLIN, 0};
  while (stop_ == nullptr || !*stop_) {
    const int ready = is_file_ ? 1 : ::poll(&readable, 1, stop_ == nullptr ? -1 : kPollMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
  }
  return false;
}

// Appends to what has not been decoded. False at the end and on an error.
bool TraceInput::read_more() {
  const auto kept = static_cast<std::size_t>(in_end_ - in_);
  std::copy(in_, in_end_, read_.data());
  in_ = read_.data();
  ssize_t got = 0;
  do {
    if (!wait_readable()) {
      end_ = End::complete;
      return false;
    }
    got = ::read(descriptor_, read_.data() + kept, read_.size() - kept);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  if (got < 0) {
    error_ = errno;
    end_ = End::read_failed;
  }
  in_end_ = in_ + kept + (got > 0 ? static_cast<std::size_t>(got) : 0);
  return got > 0;
}

void TraceInput::choose_decoder() {
  started_ = true;
  while (in_end_ - in_ < static_cast<std::ptrdiff_t>(kZstdMagic.size()) && read_more()) {
  }
  const std::string_view first(in_, static_cast<std::size_t>(in_end_ - in_));
  if (first.starts_with(kGzipMagic)) decoder_ = std::make_unique<GzipDecoder>();
  if (first.starts_with(kZstdMagic)) decoder_ = std::make_unique<ZstdDecoder>();
  if (decoder_) plain_.resize(kBufferBytes);
}

TraceInput::int_type TraceInput::underflow() {
  if (end_ != End::none || error_ != 0) return traits_type::eof();
  if (!started_) choose_decoder();
  if (!decoder_) {
    if (in_ == in_end_ && !read_more()) {
      if (end_ == End::none) end_ = End::complete;
      return traits_type::eof();
    }
    setg(read_.data(), read_.data() + (in_ - read_.data()),
         read_.data() + (in_end_ - read_.data()));
    in_ = in_end_ = read_.data();
    return traits_type::to_int_type(*gptr());
  }
  char* out = plain_.data();
  while (out == plain_.data()) {
    if (in_ == in_end_ && !read_more()) {
      if (end_ == End::none) end_ = decoder_->may_end() ? End::complete : End::truncated;
      return traits_type::eof();
    }
    const auto outcome = decoder_->decode(in_, in_end_, out, plain_.data() + plain_.size());
    if (outcome == Decoder::Outcome::decoded) continue;
    end_ = outcome == Decoder::Outcome::damaged        ? End::corrupt
           : outcome == Decoder::Outcome::large_window ? End::large_window
                                                       : End::read_failed;
    if (end_ == End::read_failed) error_ = ENOMEM;
    if (out == plain_.data()) return traits_type::eof();
    break;
  }
  setg(plain_.data(), plain_.data(), out);
  return traits_type::to_int_type(*gptr());
}

}  // namespace kvarena::trace
