// Any bytes at all as kvarena.toml. libFuzzer calls this with bytes of its own (-DKVARENA_FUZZ=ON
// with clang); the test with the corpus and its mutations.

#include "fuzz/fuzz_target.hpp"
#include "tools/configuration/configuration.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using kvarena::tools::ConfigEntry;
using kvarena::tools::ConfigError;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<ConfigEntry> parse(const std::string& text) {
  std::istringstream in(text);
  return kvarena::tools::parse_config(in, "f");
}

/// One message of bounded length, on one line, that begins with a place.
void check(const ConfigError& error) {
  const std::string what = headline(error.finding);
  require(what.starts_with("f:") && what.size() < kvarena::tools::kMaxConfigBytes);
  require(std::none_of(what.begin(), what.end(), [](char c) { return c >= 0 && c < ' '; }));
  require(error.code == kvarena::tools::ExitCode::bad_input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<ConfigEntry> entries;
  try {
    entries = parse({reinterpret_cast<const char*>(data), size});
  } catch (const ConfigError& error) {
    check(error);
  }
  for (const ConfigEntry& entry : entries) {
    require(entry.line > 0 && (entry.key.empty() ? !entry.table.empty() : !entry.values.empty()));
    for (const std::string& value : entry.values) {  // written again, it is what it was
      const auto again = parse("a = " + kvarena::tools::toml_quoted(value));
      require(again.size() == 1 && again[0].values == std::vector{value});
    }
  }
  return 0;
}
