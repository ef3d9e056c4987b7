#include "tools/replay/replay_output.hpp"

#include "tools/option_values.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string_view>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using replay::GroupUse;
using replay::ReplayReport;

/// The words of `kvarena plan`.
std::string_view kind_of(const GroupUse& group) {
  switch (group.kind) {
    case PagedKind::full: return group.is_latent ? "latent (MLA)" : "full attention";
    case PagedKind::window: return "sliding window";
    case PagedKind::chunk: return "chunked attention";
    case PagedKind::state: return "recurrent state";
    case PagedKind::cross: return "cross attention";
  }
  return "unknown";
}

/// The bytes of pages in use at the peak.
std::int64_t peak_bytes(const ReplayReport& r) { return r.pages.peak_pages * r.pages.page_bytes; }

double peak_waste(const ReplayReport& r) {
  return r.pages.peak_pages == 0
             ? 0.0
             : static_cast<double>(r.pages.peak_waste_bytes) / static_cast<double>(peak_bytes(r));
}

}  // namespace

Json groups_json(const ReplayReport& r) {
  if (r.groups.empty()) return nullptr;
  Json groups = Json::array();
  for (const GroupUse& group : r.groups) {
    groups.push_back({{"kind", kind_of(group)},
                      {"layers", group.num_layers},
                      {"limit_tokens", group.limit_tokens > 0 ? Json(group.limit_tokens) : Json()},
                      {"parts", group.num_parts},
                      {"block_bytes", group.block_bytes},
                      {"blocks_per_page", group.blocks_per_page},
                      {"blocks_at_peak", group.blocks}});
  }
  return groups;
}

Json pages_json(const ReplayReport& r) {
  if (r.groups.empty()) return nullptr;
  return {{"total", r.pages.num_pages},        {"page_bytes", r.pages.page_bytes},
          {"peak", r.pages.peak_pages},        {"peak_waste_bytes", r.pages.peak_waste_bytes},
          {"peak_waste", peak_waste(r)},       {"mean_waste", r.pages.waste},
          {"free", r.pages.account.free},      {"of_groups", r.pages.account.of_groups},
          {"offline", r.pages.account.offline}};
}

std::string group_lines(const ReplayReport& r) {
  std::string text;
  std::string_view title = "groups";
  for (const GroupUse& group : r.groups) {
    std::string kind(kind_of(group));
    if (group.limit_tokens > 0) kind += " " + grouped(group.limit_tokens);
    std::string blocks = fmt::format("{} blocks at the peak", grouped(group.blocks));
    if (group.num_parts > 1) blocks += fmt::format(", {} a state", group.num_parts);
    text +=
        fmt::format("  {:<14} {:<24}{:>3} layers {:>13} B a block {:>3} a page  {}\n", title, kind,
                    group.num_layers, grouped(group.block_bytes), group.blocks_per_page, blocks);
    title = "";
  }
  if (r.groups.empty()) return text;
  text += fmt::format(
      "  waste          {:.4f} % of the bytes of pages in use, mean over time; {} B ({:.4f} %) at "
      "the peak\n",
      100.0 * r.pages.waste, grouped(r.pages.peak_waste_bytes), 100.0 * peak_waste(r));
  return text;
}

std::string page_account_line(const ReplayReport& r) {
  if (r.groups.empty()) return {};
  const PageStats& pages = r.pages.account;
  return fmt::format("                 pages: {} free + {} of groups + {} offline = {}\n",
                     grouped(pages.free), grouped(pages.of_groups), grouped(pages.offline),
                     grouped(pages.num_pages));
}

}  // namespace kvarena::tools
