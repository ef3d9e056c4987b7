#include "capacity/files/gguf_keys.hpp"

#include "capacity/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvarena::capacity {

const GgufValue* GgufKeys::find(std::string_view key) const {
  return header_.find(fmt::format("{}.{}", architecture_, key));
}

std::int64_t GgufKeys::optional(std::string_view key, std::int64_t absent, std::int64_t smallest,
                                std::int64_t largest) {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent;
  const auto* number = std::get_if<std::int64_t>(value);
  if (number != nullptr && *number >= smallest && *number <= largest) return *number;
  refuse(key, name_of(*value), fmt::format("a whole number {} .. {}", smallest, largest));
  return absent;
}

std::int64_t GgufKeys::required(std::string_view key, std::int64_t smallest, std::int64_t largest) {
  if (find(key) == nullptr) {
    refuse(key, "no such key", fmt::format("a whole number {} .. {}", smallest, largest));
  }
  return optional(key, smallest, smallest, largest);
}

std::int32_t GgufKeys::dim(std::string_view key, std::int64_t absent) {
  return static_cast<std::int32_t>(optional(key, absent, 0, kMostDim));
}

std::vector<std::int64_t> GgufKeys::by_layer(std::string_view key,
                                             const std::vector<std::int64_t>& absent,
                                             std::int64_t largest) {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) return std::vector(absent.size(), optional(key, 0, 0, largest));
  const auto fits = [largest](std::int64_t n) { return n >= 0 && n <= largest; };
  if (array->numbers.size() >= absent.size() &&
      std::all_of(array->numbers.begin(), array->numbers.end(), fits)) {
    const auto end = array->numbers.begin() + static_cast<std::ptrdiff_t>(absent.size());
    return {array->numbers.begin(), end};
  }
  refuse(key, name_of(*value),
         fmt::format("a whole number 0 .. {} for each of {} layers", largest, absent.size()));
  return absent;
}

void GgufKeys::refuse(std::string_view key, std::string found, std::string expected) {
  if (failed_) return;
  failed_ = true;
  static_cast<void>(capacity::refuse(failure_, file_,
                                     {.subject = fmt::format("{}.{}", architecture_, key),
                                      .found = std::move(found),
                                      .expected = std::move(expected)}));
}

}  // namespace kvarena::capacity
