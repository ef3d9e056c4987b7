// Any bytes at all as kvarena.toml, held against a few options of each form. libFuzzer calls this
// with bytes of its own (-DKVARENA_FUZZ=ON with clang); the test with the corpus and its mutations.

#include "fuzz/fuzz_target.hpp"
#include "tools/configuration/config_error.hpp"
#include "tools/configuration/setting_reader.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using kvarena::tools::ConfigEntry;
using kvarena::tools::ConfigError;
using kvarena::tools::ConfigKind;
using kvarena::tools::ConfigOrigin;
using kvarena::tools::OptionSchema;

struct Commands {
  CLI::App app{"", "kvarena"};
  std::string text;
  std::vector<std::string> many;
  bool flag = false;
  std::int64_t number = 0;
  double real = 0.0;

  Commands() {
    app.add_flag("--quiet", flag);
    CLI::App* replay = app.add_subcommand("replay");
    replay->add_option("TRACE", text);
    replay->add_option("--block-size", number)->type_name("N");
    replay->add_option("--pool-bytes", text)->type_name("SIZE");
    replay->add_option("--clock", text)->type_name("step|linear");
    replay->add_option("--interval", real);
    replay->add_option("--json", text)->configurable(false);
    replay->add_flag("--linger", flag);
    CLI::App* attention = app.add_subcommand("bench")->add_subcommand("attention");
    attention->add_option("--batch", text)->type_name("N[,N...]");
    attention->add_option("--scenario", many)->type_name("NAME");
  }
};

void require(bool holds) {
  if (!holds) std::abort();
}

/// One message of bounded length, on one line, that begins with a place.
void check(const ConfigError& error) {
  const std::string_view what = error.what();
  require(what.starts_with("f:") && what.size() < 2 * kvarena::tools::kMaxConfigText);
  require(std::none_of(what.begin(), what.end(), [](char c) { return c >= 0 && c < ' '; }));
  require(error.code() == kvarena::tools::ExitCode::bad_input);
}

/// Written again, on one line, a string is what it was.
void check_quoted(const std::string& text) {
  const auto dots = static_cast<std::size_t>(std::count(text.begin(), text.end(), '.'));
  if (dots > kvarena::tools::kMaxConfigDots) return;  // they were on several lines
  const auto again = kvarena::tools::parse_config("a = " + kvarena::tools::toml_quoted(text), "f");
  require(again.size() == 1 && again[0].value.text == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Commands commands;
  static const OptionSchema schema = OptionSchema::of(commands.app);
  std::vector<ConfigEntry> entries;
  try {
    entries = kvarena::tools::parse_config({reinterpret_cast<const char*>(data), size}, "f");
  } catch (const ConfigError& error) {
    check(error);
  }
  for (const ConfigEntry& entry : entries) {
    require(!entry.path.empty() && entry.place.line > 0 && entry.value.place.column > 0);
    if (entry.value.kind == ConfigKind::text) check_quoted(entry.value.text);
    try {
      const auto setting = read_entry(schema, entry, ConfigOrigin::Source::file, "f");
      require(!setting || (setting->option != nullptr && !setting->values.empty()));
    } catch (const ConfigError& error) {
      check(error);
    }
  }
  return 0;
}
