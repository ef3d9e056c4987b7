#include "tools/configuration/nearest_name.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace kvarena::tools {
namespace {

constexpr std::size_t kLongestName = 128;  // nobody meant anything by a longer one

/// Levenshtein's distance, one row of the matrix at a time.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) {
  if (wanted.size() > kLongestName) return {};
  std::string nearest;
  std::size_t fewest = std::max<std::size_t>(2, wanted.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t letters = distance(wanted, name);
    if (letters >= fewest) continue;
    fewest = letters;
    nearest = name;
  }
  return nearest;
}

}  // namespace kvarena::tools
