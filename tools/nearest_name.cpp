#include "tools/nearest_name.hpp"

#include "kvarena/capacity/gpu_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <functional>
#include <numeric>
#include <sstream>
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

/// A model's name in small letters without its organisation and the words for how it was tuned.
std::string model_words(std::string_view name) {
  constexpr std::array<std::string_view, 6> kTunings{"meta", "instruct", "chat",
                                                     "hf",   "it",       "base"};
  std::istringstream parts(std::string(name.substr(name.rfind('/') + 1)));
  std::string words;
  for (std::string part; std::getline(parts, part, '-');) {
    std::ranges::transform(part, part.begin(), [](unsigned char c) { return std::tolower(c); });
    if (std::ranges::find(kTunings, part) == kTunings.end()) words += "-" + part;
  }
  words.erase(0, 1);
  return words;
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

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const ModelShape& shape : model_shapes()) names.push_back(shape.name);
  return names;
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

Finding gpu_finding(std::string_view wanted) {
  if (capacity::find_gpu(gpu_name_of(wanted)) != nullptr) return {};
  const std::string letters = letters_of(wanted);
  std::vector<std::string_view> variants;
  for (const std::string_view name : capacity::gpu_preset_names()) {
    if (!letters.empty() && letters_of(name).starts_with(letters)) variants.push_back(name);
  }
  if (variants.size() < 2) {
    return {.found = fmt::format("\"{}\" is no built-in GPU", printable(wanted)),
            .expected = expected_gpus(wanted)};
  }
  return {.found = fmt::format("\"{}\" is not one GPU", printable(wanted)),
          .expected = fmt::format("one of {}", fmt::join(variants, ", "))};
}

std::string gpu_name_of(std::string_view name) {
  using Name = std::pair<std::string_view, std::string_view>;  // a driver's, in letters_of; ours
  constexpr std::array<Name, 4> kOfDrivers{{{"h10080gbhbm3", "H100-SXM"},
                                            {"h200", "H200-SXM"},
                                            {"a100sxm440gb", "A100-40GB-SXM"},
                                            {"a100sxm480gb", "A100-80GB-SXM"}}};
  std::string letters = letters_of(name);
  for (const std::string_view maker : {"nvidia", "amd", "geforce", "instinct"}) {
    if (letters.starts_with(maker)) letters.erase(0, maker.size());
  }
  for (const auto& [driver, ours] : kOfDrivers) {
    if (letters == driver) return std::string(ours);
  }
  for (const std::string_view ours : capacity::gpu_preset_names()) {
    if (letters == letters_of(ours)) return std::string(ours);
  }
  return std::string(name);
}

std::string model_name_of(std::string_view repository, const std::vector<std::string_view>& names) {
  const std::string wanted = model_words(repository);
  const auto same = std::ranges::find(names, wanted, model_words);
  return same == names.end() ? wanted : std::string(*same);
}

const ModelShape* find_shape(std::string_view name) {
  const ModelShape* exact = find_model_shape(name);
  return exact != nullptr ? exact : find_model_shape(model_name_of(name, shape_names()));
}

Finding shape_finding(std::string_view wanted) {
  if (find_shape(wanted) != nullptr) return {};
  const auto names = shape_names();
  return {.found = fmt::format("no built-in model shape is called \"{}\"", printable(wanted)),
          .expected = similar_names(model_name_of(wanted, names), names) +
                      "a name from 'kvarena shapes', or numbers (--layers, --kv-heads, "
                      "--head-dim, --dtype)"};
}

}  // namespace kvarena::tools
