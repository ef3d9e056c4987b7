#pragma once

/// @file
/// `LineBudget`: at most `kLines` log lines in `kWindowNs`; what is left out is counted, and the
/// count is due when the window is over. Pure; time is given. One thread at a time.

#include <cstdint>
#include <utility>

namespace kvarena {

/// The log lines of one source of events.
class LineBudget {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;  ///< from the first line of a burst
  static constexpr std::int64_t kLines = 3;                  ///< written in a window

  /// An event: whether its line is to be written.
  bool admit(std::int64_t now_ns) noexcept {
    if (is_over(now_ns)) {
      begun_ns_ = now_ns;
      num_events_ = 0;
    }
    if (++num_events_ <= kLines) return true;
    ++num_left_out_;
    return false;
  }
  /// Lines left out in a window that is over and not reported yet; 0 then from the next call on.
  std::int64_t take_left_out(std::int64_t now_ns) noexcept {
    return is_over(now_ns) ? take_left_out() : 0;
  }
  /// The same of the window that is not over too.
  std::int64_t take_left_out() noexcept { return std::exchange(num_left_out_, 0); }

 private:
  bool is_over(std::int64_t now_ns) const noexcept {
    return num_events_ == 0 || now_ns - begun_ns_ >= kWindowNs;
  }

  std::int64_t begun_ns_ = 0;
  std::int64_t num_events_ = 0;    // in the window
  std::int64_t num_left_out_ = 0;  // not reported yet
};

}  // namespace kvarena
