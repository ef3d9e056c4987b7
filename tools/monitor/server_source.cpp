#include "tools/monitor/server_source.hpp"

#include "base/excerpt.hpp"
#include "tools/monitor/stats_view.hpp"

#include <fmt/format.h>

namespace kvarena::tools {

using Json = nlohmann::ordered_json;

MonitorFrame ServerSource::look() {
  HealthAnswer answer = client_.stats();
  const std::int64_t now_ns = clock_.now_ns();
  const std::string title = printable(url_);
  if (answer.is_ok()) {
    try {
      Json document = parse_stats(answer.body);
      StatsDocument stats = read_stats(document);
      MonitorFrame frame = frame_of_stats(
          title, stats,
          {before_ ? &*before_ : nullptr, static_cast<double>(now_ns - before_ns_) * 1e-9});
      frame.document = std::move(document);
      before_ = std::move(stats);
      before_ns_ = now_ns;
      return frame;
    } catch (const NotStats& why) {
      answer.happened = fmt::format("the answer is not the JSON of /stats: {}", why.what());
      answer.advice = "is it a kvarena server, and of this version?";
    }
  }
  MonitorFrame frame;
  frame.happened = fmt::format("{}: {}", title, answer.happened);
  frame.advice = answer.advice;
  return frame;
}

}  // namespace kvarena::tools
