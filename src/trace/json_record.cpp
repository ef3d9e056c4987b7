#include "base/counting_iterator.hpp"
#include "base/excerpt.hpp"
#include "trace/records.hpp"
#include "trace/trace_request.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvarena::trace {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxId = std::int64_t{1} << 62;
constexpr std::int64_t kMaxMilliseconds = kMaxTraceMicroseconds / 1000;
constexpr std::string_view kObject = "one JSON object a line";

/// A field that some format knows, the numbers it takes and where they go.
struct Field {
  std::string_view name;
  std::string_view expected;
  std::int64_t smallest = 0;
  std::int64_t largest = 0;
  std::optional<std::int64_t> JsonRecord::*value = nullptr;  // of a whole number
};

enum : std::size_t { kTimestamp, kHashIds, kScheduled };
constexpr std::array<Field, 7> kFields{{
    {"timestamp", "milliseconds, a number", 0, kMaxMilliseconds},
    {"hash_ids", "block ids, an array of whole numbers", 0, kMaxId},
    {"scheduled_ms", ""},
    {"input_length", "tokens, a whole number", 1, kMaxInputTokens, &JsonRecord::input_tokens},
    {"output_length", "tokens, a whole number", 0, kMaxOutputTokens, &JsonRecord::output_tokens},
    {"session", "a whole number", 0, kMaxId, &JsonRecord::session},
    {"turn", "a whole number", 0, kMaxId, &JsonRecord::turn},
}};

/// Receives the parser's events for one line. Each returns false to stop at a defect.
class RecordHandler {
 public:
  RecordHandler(std::string_view line, const char* const* seen, std::string_view salt_field,
                JsonRecord& record)
      : line_(line), seen_(seen), salt_field_(salt_field), record_(record) {}

  std::optional<LineDefect> take_defect() { return std::move(defect_); }

  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool string(Json::string_t& text) { return take_salt(text) && scalar("a string"); }
  bool binary(Json::binary_t&) { return scalar("bytes"); }
  bool number_integer(Json::number_integer_t value) {
    return take_salt(std::to_string(value)) && scalar(std::to_string(value));
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (!take_salt(std::to_string(value))) return false;
    if (!is_wanted()) return scalar(std::to_string(value));
    const auto smallest = static_cast<Json::number_unsigned_t>(field_->smallest);
    const auto largest = static_cast<Json::number_unsigned_t>(field_->largest);
    if (value < smallest || value > largest) return refuse(std::to_string(value));
    const auto number = static_cast<std::int64_t>(value);
    if (is(kTimestamp)) {
      record_.timestamp_us = number * 1000;
    } else if (is(kHashIds)) {
      record_.hash_ids.push_back(number);
    } else {
      record_.*field_->value = number;
    }
    return true;
  }
  bool number_float(Json::number_float_t value, const Json::string_t& text) {
    const bool fits = value >= 0.0 && value <= static_cast<double>(kMaxMilliseconds);
    if (!is(kTimestamp) || depth_ != 1 || !fits) return scalar(printable(text.substr(0, 60)));
    record_.timestamp_us = std::llround(value * 1000.0);
    return true;
  }

  bool start_object(std::size_t) { return (depth_ == 0 || scalar("an object")) && ++depth_ > 0; }
  bool start_array(std::size_t) {
    const bool is_ids = depth_ == 1 && is(kHashIds);
    record_.has_hash_ids |= is_ids;
    return (is_ids || scalar("an array")) && ++depth_ > 0;
  }
  bool end_object() { return --depth_ >= 0; }
  bool end_array() { return --depth_ >= 0; }

  bool key(Json::string_t& name) {
    if (depth_ != 1) return true;
    const auto known = std::ranges::find(kFields, std::string_view(name), &Field::name);
    field_ = known != kFields.end() ? &*known : nullptr;
    column_ = *seen_ - line_.data() - std::ssize(name) - 1;
    is_salt_ = !salt_field_.empty() && name == salt_field_;
    if (is_salt_ && record_.salt) {
      return defect(fmt::format("the field {} again", excerpt_of(name)), "it once");
    }
    if (field_ == nullptr) return true;
    bool& given = given_[static_cast<std::size_t>(field_ - kFields.data())];
    if (given) return defect(fmt::format("the field {} again", excerpt_of(name)), "it once");
    given = true;
    record_.has_scheduled_ms |= is(kScheduled);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    std::string_view why = error.what();
    if (const auto at = why.find("] "); at != why.npos) why.remove_prefix(at + 2);
    if (const auto at = why.find(": "); at != why.npos) why.remove_prefix(at + 2);
    std::string_view wanted = kObject;
    if (error.id == kOutOfRange) wanted = "a number that fits its field";
    if (const auto at = why.rfind("; expected "); at != why.npos) {
      wanted = why.substr(at + 11);
      why = why.substr(0, at);
    }
    if (const auto at = why.rfind(" - "); at != why.npos) why.remove_prefix(at + 3);
    const bool cut = position > line_.size();
    column_ = static_cast<std::int64_t>(std::min(position, line_.size() + 1));
    return defect(cut ? "the end of the line inside the object" : printable(why.substr(0, 120)),
                  cut ? "a complete JSON object" : std::string(wanted));
  }

 private:
  static constexpr int kOutOfRange = 406;

  bool is(std::size_t field) const { return field_ == &kFields[field]; }
  /// Whether a number here goes into the record.
  bool is_wanted() const {
    if (field_ == nullptr || is(kScheduled)) return false;
    return depth_ == (is(kHashIds) ? 2 : 1);
  }
  bool defect(std::string found, std::string expected) {
    defect_ = LineDefect{column_, std::move(found), std::move(expected)};
    return false;
  }
  bool refuse(const std::string& found) {
    return defect(fmt::format("{} in \"{}\"", found, field_->name),
                  fmt::format("{} {} .. {}", field_->expected, field_->smallest, field_->largest));
  }
  /// Keeps the text when it is the value of the salt's field.
  bool take_salt(const std::string& text) {
    if (!is_salt_ || depth_ != 1) return true;
    if (text.empty() || text.size() > kMaxSaltBytes) {
      return defect(fmt::format("a text of {} bytes in \"{}\"", text.size(), salt_field_),
                    fmt::format("a salt of 1 .. {} bytes", kMaxSaltBytes));
    }
    record_.salt = text;
    return true;
  }
  /// What is no number in its range: fine where nobody reads it.
  bool scalar(const std::string& what) {
    if (depth_ == 0) return defect(what, std::string(kObject));
    if (is_salt_ && depth_ == 1 && !record_.salt) {
      return defect(fmt::format("{} in \"{}\"", what, salt_field_),
                    "a salt: a whole number or a string");
    }
    return field_ == nullptr || is(kScheduled) ? true : refuse(what);
  }

  std::string_view line_;
  const char* const* seen_;
  std::string_view salt_field_;
  JsonRecord& record_;
  std::optional<LineDefect> defect_;
  const Field* field_ = nullptr;  // of the object; none: nobody reads it
  bool is_salt_ = false;          // whether the field is the salt's
  std::int64_t column_ = 1;       // of the field
  std::array<bool, kFields.size()> given_{};
  int depth_ = 0;
};

}  // namespace

std::optional<LineDefect> parse_json_record(std::string_view line, JsonRecord& record,
                                            std::string_view salt_field) {
  record = JsonRecord{};
  const char* seen = line.data();
  RecordHandler handler(line, &seen, salt_field, record);
  const CountingIterator first{line.data(), &seen};
  const CountingIterator last{line.data() + line.size(), &seen};
  if (Json::sax_parse(first, last, &handler)) return std::nullopt;
  auto defect = handler.take_defect();
  if (!defect) defect = LineDefect{1, "something unreadable", std::string(kObject)};
  return defect;
}

}  // namespace kvarena::trace
