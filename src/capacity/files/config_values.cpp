#include "capacity/files/config_parts.hpp"

#include "base/excerpt.hpp"
#include "capacity/files/bounded_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace kvarena::capacity {
namespace {

using Json = nlohmann::json;

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return fmt::format("an array of {}", value.size());
    case Json::value_t::boolean: return name_of(JsonScalar(value.get<bool>()));
    case Json::value_t::number_integer: return name_of(JsonScalar(value.get<std::int64_t>()));
    case Json::value_t::number_unsigned: return name_of(JsonScalar(value.get<std::uint64_t>()));
    case Json::value_t::number_float: return name_of(JsonScalar(value.get<double>()));
    case Json::value_t::string:
      return name_of(JsonScalar(std::string_view(value.get_ref<const std::string&>())));
    default: return "null";
  }
}

std::string describe(IntegerRange range) {
  return fmt::format("a whole number of {} to {}", range.smallest, range.largest);
}

/// A whole number within the range, also one that is written as 8.0.
std::optional<std::int64_t> whole_number(const Json& value, IntegerRange range) {
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(range.largest)) return std::nullopt;
    number = static_cast<std::int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::floor(real) || std::abs(real) > 0x1p53) return std::nullopt;
    number = static_cast<std::int64_t>(real);
  } else {
    return std::nullopt;
  }
  if (number < range.smallest || number > range.largest) return std::nullopt;
  return number;
}

}  // namespace

const Json* ConfigValues::find(std::string_view key) const {
  const auto found = object_->find(std::string(key));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool ConfigValues::has(std::string_view key) const { return find(key) != nullptr; }

bool ConfigValues::is_null(std::string_view key) const {
  const auto found = object_->find(std::string(key));
  return found != object_->end() && found->is_null();
}

bool ConfigValues::is_array(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_array();
}

std::int64_t ConfigValues::integer(Keys keys, IntegerRange range) {
  for (const std::string_view key : keys) {
    if (has(key)) return integer({key}, range, range.smallest);
  }
  std::string expected;
  for (const std::string_view key : keys) {
    expected += expected.empty() ? std::string(key) : " or " + std::string(key);
  }
  refuse_object("no " + std::string(*keys.begin()), expected + ", " + describe(range));
  return range.smallest;
}

std::int64_t ConfigValues::integer(Keys keys, IntegerRange range, std::int64_t otherwise) {
  for (const std::string_view key : keys) {
    const Json* value = find(key);
    if (value == nullptr) continue;
    if (const auto number = whole_number(*value, range)) return *number;
    refuse(key, "", describe(range));
    break;
  }
  return otherwise;
}

bool ConfigValues::flag(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  refuse(key, "", "true or false");
  return otherwise;
}

std::string ConfigValues::word(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  refuse(key, "", "a string");
  return {};
}

std::vector<std::string> ConfigValues::words(std::string_view key) {
  const Json* value = find(key);
  std::vector<std::string> words;
  if (value == nullptr) return words;
  if (!value->is_array()) refuse(key, "", "an array of strings");
  for (const Json& item : *value) {
    if (!ok()) return {};
    if (!item.is_string()) {
      refuse(fmt::format("{}[{}]", key, words.size()), describe(item), "a string");
      return {};
    }
    words.push_back(item.get<std::string>());
  }
  return words;
}

std::vector<std::int64_t> ConfigValues::integers(std::string_view key, IntegerRange range) {
  const Json* value = find(key);
  std::vector<std::int64_t> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array()) refuse(key, "", "an array of numbers");
  for (const Json& item : *value) {
    if (!ok()) return {};
    const auto number = whole_number(item, range);
    if (!number) {
      refuse(fmt::format("{}[{}]", key, numbers.size()), describe(item), describe(range));
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<ConfigValues> ConfigValues::object(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return ConfigValues(*value, path_of(key), *failure_);
  refuse(key, "", "an object");
  return std::nullopt;
}

std::optional<ConfigValues> ConfigValues::only_object() const {
  std::optional<ConfigValues> only;
  for (const auto& [key, value] : object_->items()) {
    if (!value.is_object()) continue;
    if (only) return std::nullopt;
    only = ConfigValues(value, path_ + "[" + excerpt_of(key) + "]", *failure_);
  }
  return only;
}

void ConfigValues::refuse(std::string_view key, std::string found, std::string expected,
                          std::string advice) {
  if (found.empty()) {
    const Json* value = find(key);
    found = value == nullptr ? "nothing" : describe(*value);
  }
  fill(path_of(key), std::move(found), std::move(expected), std::move(advice));
}

void ConfigValues::refuse_object(std::string found, std::string expected) {
  fill(path_, std::move(found), std::move(expected), {});
}

void ConfigValues::fill(std::string place, std::string found, std::string expected,
                        std::string advice) {
  if (!ok()) return;
  static_cast<void>(capacity::refuse(*failure_, failure_->what.subject,
                                     {.subject = std::move(place),
                                      .found = std::move(found),
                                      .expected = std::move(expected),
                                      .advice = std::move(advice)}));
}

}  // namespace kvarena::capacity
