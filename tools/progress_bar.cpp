#include "tools/progress_bar.hpp"

#include "tools/quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvarena::tools {
namespace {

constexpr std::int64_t kRedrawNs = 200'000'000;
constexpr int kBarCells = 24;

std::string seconds(double s) {
  const std::int64_t whole = std::llround(s);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.1f}M tokens/s", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f}k tokens/s", per_second / 1e3);
  return fmt::format("{:.0f} tokens/s", per_second);
}

}  // namespace

std::string progress_line(const replay::ReplayProgress& progress, double elapsed_s) {
  const double rate = elapsed_s > 0.0 ? static_cast<double>(progress.tokens_done) / elapsed_s : 0.0;
  if (progress.tokens_total == 0) {
    return fmt::format("{} requests  {}", grouped(progress.requests_done), rate_text(rate));
  }
  // Recomputed tokens are done but not in the total: the share stays below 1 until the end.
  const double share = std::min(
      1.0, static_cast<double>(progress.tokens_done) / static_cast<double>(progress.tokens_total));
  const auto filled = static_cast<std::size_t>(share * kBarCells);
  const double left_s =
      rate > 0.0 ? (1.0 - share) * static_cast<double>(progress.tokens_total) / rate : 0.0;
  return fmt::format("[{}{}] {:5.1f} %  {}/{} requests  {}  {} left", std::string(filled, '#'),
                     std::string(kBarCells - filled, '.'), share * 100.0,
                     grouped(progress.requests_done), grouped(progress.requests_total),
                     rate_text(rate), seconds(left_s));
}

ProgressBar::ProgressBar(const Console& console, const Clock& clock)
    : console_(console),
      clock_(clock),
      enabled_(console.err_is_terminal && !console.quiet),
      start_ns_(clock.now_ns()),
      next_ns_(start_ns_ + kRedrawNs) {}

ProgressBar::~ProgressBar() { erase(); }

void ProgressBar::on_progress(const replay::ReplayProgress& progress) {
  if (!enabled_) return;
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + kRedrawNs;
  drawn_ = true;
  console_.err << "\r\x1b[K"
               << progress_line(progress, static_cast<double>(now_ns - start_ns_) / 1e9)
               << std::flush;
}

void ProgressBar::erase() {
  if (drawn_) console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace kvarena::tools
