// Any bytes at all as the answer of /stats: a look that a terminal can show, or one clear refusal.

#include "fuzz/fuzz_target.hpp"
#include "tools/monitor/stats_view.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_text(std::string_view text) {
  require(std::none_of(text.begin(), text.end(),
                       [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }));
  for (std::size_t at = text.find('\xc2'); at != text.npos; at = text.find('\xc2', at + 1)) {
    require(at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) >= 0xa0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvarena::tools;
  try {
    const auto json = parse_stats({reinterpret_cast<const char*>(data), size});
    const StatsDocument stats = read_stats(json);
    const MonitorFrame frame = frame_of_stats("http://x", stats, {&stats, 1.0});
    require(!frame.lines.empty());
    for (const std::string& line : frame.lines) {
      check_text(line);
      require(line.size() < 5000);
    }
    check_text(frame.line);
    for (const StatsPool& pool : stats.pools) require(block_bar(pool.blocks, 48).size() == 48);
  } catch (const NotStats& why) {
    check_text(why.what());
    require(std::string_view(why.what()).size() < 200);
  }
  return 0;
}
