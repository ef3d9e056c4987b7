#include "tools/nearest_name.hpp"

#include "kvarena/capacity/gpu_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

namespace kvarena::tools {
namespace {

constexpr std::size_t kLeastLetters = 4;   // that tell what was meant
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

/// Letters and digits, in small letters.
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) letters += static_cast<char>(std::tolower(byte));
  }
  return letters;
}

/// Those of `names` that begin like `wanted`, the most alike first.
std::vector<std::string_view> alike_names(std::string_view wanted,
                                          const std::vector<std::string_view>& names) {
  constexpr std::size_t kMostNames = 6;
  const std::string letters = letters_of(wanted);
  const std::size_t least = std::min(letters.size(), kLeastLetters);
  std::vector<std::pair<std::size_t, std::string_view>> found;
  for (const std::string_view name : names) {
    const std::string other = letters_of(name);
    const auto [end, _] = std::ranges::mismatch(letters, other);
    const auto common = static_cast<std::size_t>(end - letters.begin());
    if (least > 0 && common >= least) found.emplace_back(common, name);
  }
  std::ranges::stable_sort(found, std::greater{}, &std::pair<std::size_t, std::string_view>::first);
  if (found.size() > kMostNames) found.resize(kMostNames);
  std::vector<std::string_view> alike;
  alike.reserve(found.size());
  for (const auto& [_, name] : found) alike.push_back(name);
  return alike;
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

std::string similar_names(std::string_view wanted, const std::vector<std::string_view>& names) {
  std::vector<std::string_view> similar = alike_names(wanted, names);
  const std::string letters = letters_of(wanted);
  if (similar.empty() && letters.size() >= kLeastLetters) {
    std::vector<std::string> all(names.size());
    std::ranges::transform(names, all.begin(), letters_of);
    const auto nearest = std::ranges::find(all, nearest_name(letters, all));
    if (nearest != all.end())
      similar.push_back(names[static_cast<std::size_t>(nearest - all.begin())]);
  }
  return similar.empty() ? "" : fmt::format("did you mean {}? ", fmt::join(similar, ", "));
}

std::string expected_gpus(std::string_view wanted) {
  const std::vector<std::string_view> names = capacity::gpu_preset_names();
  return fmt::format("{}one of {}", similar_names(wanted, names), fmt::join(names, ", "));
}

}  // namespace kvarena::tools
