#pragma once

/// @file
/// `kvarena replay --pure-cache`: the hit rate of a prefix cache alone. Its options and its work.

#include "tools/console.hpp"

#include "replay/pure_cache.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The options --pure-cache, --policy and --salt-column of `replay`, and the run that the first
/// asks for. An engine with a prefix cache takes the other two as well.
class PureCacheCommand {
 public:
  /// Declares them on `command`. The salt's column goes to `salt_column`.
  void declare(CLI::App& command, std::string& salt_column);
  /// After all options of `command` are declared: those of engine, clock, pool and bytes exclude
  /// --pure-cache.
  void exclude_engine(CLI::App& command);
  bool is_given() const noexcept { return capacity_.has_value(); }
  EvictionPolicy policy() const { return *eviction_policy_of(policy_); }
  /// Returns an option that was given and needs a prefix cache, or "".
  std::string cache_option_given() const;
  /// Replays the trace. Prints the table, and writes the JSON object to `json`.
  ExitCode run(const Console& console, replay::PureCacheOptions options,
               const std::string& json) const;

 private:
  std::optional<std::int64_t> capacity_;
  std::string policy_{name_of(EvictionPolicy::tail_first)};
  CLI::Option* option_ = nullptr;
  CLI::Option* policy_option_ = nullptr;
  CLI::Option* salt_option_ = nullptr;
};

/// One object; docs/reference/command.md describes every field.
nlohmann::ordered_json json_of(const replay::PureCacheOptions& options,
                               const replay::PureCacheOutcome& outcome);

/// The table for people, with colours as `stream` (one of the console's) allows.
std::string table_of(const Console& console, const std::ostream& stream,
                     const replay::PureCacheOptions& options,
                     const replay::PureCacheOutcome& outcome);

}  // namespace kvarena::tools
