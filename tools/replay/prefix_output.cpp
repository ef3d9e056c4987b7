#include "tools/replay/replay_output.hpp"

#include "tools/option_values.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string_view>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using replay::ReplayOptions;
using replay::ReplayReport;

double share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

/// What each reason to stop says to a reader, in the order of PrefixStop.
constexpr std::array<std::string_view, kNumPrefixStops> kStopWords{
    "all but the last token was cached",
    "less than a block was left",
    "never seen",
    "evicted or removed",
    "known under another salt",
    "known with other extra keys",
    "being computed by another sequence",
    "gone in another group of layers",
};

}  // namespace

Json prefix_json(const ReplayReport& r) {
  if (!r.has_prefix_cache) return nullptr;
  const PrefixStats& p = r.prefix;
  Json json{{"queries", p.queries},
            {"query_tokens", p.query_tokens},
            {"hits", p.hits},
            {"hit_blocks", p.hit_blocks},
            {"hit_tokens", p.hit_tokens},
            {"token_hit_rate", share(p.hit_tokens, p.query_tokens)},
            {"cached_tokens", r.cached_tokens},
            {"registered_blocks", p.registrations},
            {"duplicate_blocks", p.duplicates}};
  if (r.salts > 0) json["salts"] = r.salts;
  for (std::size_t i = 0; i < kNumPrefixStops; ++i) {
    json["stops"][std::string(name_of(static_cast<PrefixStop>(i)))] = p.stops[i];
  }
  for (std::size_t i = 0; i < kNumPrefixRemovals; ++i) {
    json["removals"][std::string(name_of(static_cast<PrefixRemoval>(i)))] = p.removals_by[i];
  }
  return json;
}

std::string prefix_lines(const ReplayOptions& options, const ReplayReport& r) {
  if (!r.has_prefix_cache) return {};
  const PrefixStats& p = r.prefix;
  std::string text = fmt::format(
      "  prefix cache   {} of {} prompt tokens cached ({:.2f} %), {} blocks; {} of {} sequences "
      "hit\n"
      "                 {} blocks registered, {} computed twice, {} evicted ({})\n"
      "{}"
      "                 reasons why a match was no longer\n",
      grouped(static_cast<std::int64_t>(p.hit_tokens)),
      grouped(static_cast<std::int64_t>(p.query_tokens)),
      100.0 * share(p.hit_tokens, p.query_tokens), grouped(static_cast<std::int64_t>(p.hit_blocks)),
      grouped(static_cast<std::int64_t>(p.hits)), grouped(static_cast<std::int64_t>(p.queries)),
      grouped(static_cast<std::int64_t>(p.registrations)),
      grouped(static_cast<std::int64_t>(p.duplicates)),
      grouped(static_cast<std::int64_t>(
          p.removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)])),
      name_of(options.policy),
      r.salts > 0
          ? fmt::format("                 {} salts in \"{}\"; none finds another's blocks\n",
                        grouped(r.salts), printable(options.trace.salt_column))
          : "");
  for (std::size_t i = 0; i < kNumPrefixStops; ++i) {
    if (p.stops[i] == 0) continue;
    text += fmt::format("                   {:<36} {:>10}\n", kStopWords[i],
                        grouped(static_cast<std::int64_t>(p.stops[i])));
  }
  return text;
}

}  // namespace kvarena::tools
