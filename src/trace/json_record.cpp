#include "base/counting_iterator.hpp"
#include "trace/parse_failure.hpp"
#include "trace/record_parser.hpp"
#include "trace/trace_request.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace kvarena::trace {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxUnknownFields = 64;

enum class Field : std::uint8_t {
  timestamp,
  input_length,
  output_length,
  hash_ids,
  session,
  turn,
  scheduled_ms,
  unknown
};

constexpr std::array<std::pair<std::string_view, Field>, 7> kFields{{
    {"timestamp", Field::timestamp},
    {"input_length", Field::input_length},
    {"output_length", Field::output_length},
    {"hash_ids", Field::hash_ids},
    {"session", Field::session},
    {"turn", Field::turn},
    {"scheduled_ms", Field::scheduled_ms},
}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool in_number(char c) {
  return is_digit(c) || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

// Milliseconds as written to microseconds, rounded half up; nothing when it is not a plain decimal.
std::optional<std::int64_t> microseconds_of(std::string_view text) {
  std::int64_t us = 0;
  std::size_t i = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    us = us * 10 + (text[i] - '0');
    if (us > kMaxTraceMicroseconds / 1000) return std::nullopt;
  }
  if (i == 0) return std::nullopt;
  us *= 1000;
  if (i == text.size()) return us;
  if (text[i++] != '.') return std::nullopt;
  std::int64_t unit = 100;
  bool round_up = false;
  for (std::size_t place = 0; i < text.size(); ++i, ++place) {
    if (!is_digit(text[i])) return std::nullopt;
    if (place < 3) us += (text[i] - '0') * unit;
    if (place == 3) round_up = text[i] >= '5';
    unit /= 10;
  }
  return us + (round_up ? 1 : 0);
}

// Receives the parser's events for one line. Each returns false to stop at a defect.
class RecordHandler {
 public:
  RecordHandler(std::string_view line, const char* const* seen, JsonRecord& record)
      : line_(line), seen_(seen), record_(record) {}

  std::optional<LineDefect> take_defect() { return std::move(defect_); }

  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t) { return number(false); }
  bool number_unsigned(Json::number_unsigned_t) { return number(true); }
  bool number_float(Json::number_float_t, const Json::string_t&) { return number(false); }
  bool string(Json::string_t&) { return scalar("a string"); }
  bool binary(Json::binary_t&) { return scalar("bytes"); }

  bool start_object(std::size_t) { return open("an object"); }
  bool start_array(std::size_t) {
    if (depth_ == 1 && field_ == Field::hash_ids) {
      record_.has_hash_ids = true;
      ++depth_;
      return true;
    }
    return open("an array");
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(Json::string_t& name) {
    if (depth_ != 1) return true;
    const auto known = std::find_if(kFields.begin(), kFields.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    field_ = known != kFields.end() ? known->second : Field::unknown;
    const bool twice = field_ == Field::unknown
                           ? std::find(unknown_.begin(), unknown_.end(), name) != unknown_.end()
                           : given_[static_cast<std::size_t>(field_)];
    if (twice)
      return refuse(fmt::format("the field {} again", excerpt_of(name)), "each field once");
    if (field_ != Field::unknown) {
      given_[static_cast<std::size_t>(field_)] = true;
      return true;
    }
    if (unknown_.size() == kMaxUnknownFields) {
      return refuse("too many unknown fields", "a request of a trace");
    }
    unknown_.push_back(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    std::string_view why = error.what();
    if (const auto at = why.find("] "); at != why.npos) why.remove_prefix(at + 2);
    if (const auto at = why.find(": "); at != why.npos) why.remove_prefix(at + 2);
    std::string_view wanted = "one JSON object a line";
    if (why.starts_with("number overflow")) wanted = "a number that fits its field";
    if (const auto at = why.rfind("; expected "); at != why.npos) {
      wanted = why.substr(at + 11);
      why = why.substr(0, at);
    }
    if (const auto at = why.rfind(" - "); at != why.npos) why.remove_prefix(at + 3);
    const bool cut = position > line_.size();
    defect_ = LineDefect{static_cast<std::int64_t>(std::min(position, line_.size() + 1)),
                         cut ? "the end of the line inside the object" : shortened(why),
                         cut ? "a complete JSON object" : std::string(wanted)};
    return false;
  }

 private:
  static std::string shortened(std::string_view text) {
    std::string plain = excerpt_of(text, 120);
    return plain.substr(1, plain.size() - 2);
  }

  // The bytes of the token that ends where the parser is; a number has one byte read past it.
  std::string_view token(bool is_number) const {
    std::size_t end = static_cast<std::size_t>(*seen_ - line_.data());
    if (is_number && end > 0 && !in_number(line_[end - 1])) --end;
    std::size_t begin = end;
    if (is_number) {
      while (begin > 0 && in_number(line_[begin - 1])) --begin;
    } else if (begin > 0 && line_[begin - 1] == '"') {
      --begin;
      while (begin > 0 && !is_opening_quote(begin - 1)) --begin;
      if (begin > 0) --begin;
    } else {
      while (begin > 0 && line_[begin - 1] >= 'a' && line_[begin - 1] <= 'z') --begin;
      if (begin == end && begin > 0) --begin;
    }
    return line_.substr(begin, end - begin);
  }
  bool is_opening_quote(std::size_t at) const {
    if (line_[at] != '"') return false;
    std::size_t slashes = 0;
    while (slashes < at && line_[at - 1 - slashes] == '\\') ++slashes;
    return slashes % 2 == 0;
  }

  bool refuse_at(std::string_view where, std::string found, std::string expected) {
    defect_ = LineDefect{where.data() - line_.data() + 1, std::move(found), std::move(expected)};
    return false;
  }
  bool refuse(std::string found, std::string expected) {
    return refuse_at(token(false), std::move(found), std::move(expected));
  }

  std::string expectation() const {
    if (depth_ == 0) return "one JSON object a line";
    switch (field_) {
      case Field::timestamp:
        return fmt::format("milliseconds in \"timestamp\": a plain number 0 .. {}",
                           kMaxTraceMicroseconds / 1000);
      case Field::input_length:
        return fmt::format("tokens in \"input_length\": a whole number 1 .. {}", kMaxTraceTokens);
      case Field::output_length:
        return fmt::format("tokens in \"output_length\": a whole number 0 .. {}", kMaxTraceTokens);
      case Field::hash_ids: return "block ids in \"hash_ids\": an array of whole numbers >= 0";
      case Field::session: return "a whole number >= 0 in \"session\"";
      case Field::turn: return "a whole number >= 0 in \"turn\"";
      default: return fmt::format("at most {} levels of nesting", kMaxDepth);
    }
  }

  bool skips() const {
    return depth_ >= 1 && (field_ == Field::unknown || field_ == Field::scheduled_ms);
  }
  bool scalar(std::string_view what) {
    if (skips()) return note_presence();
    return refuse(std::string(what), expectation());
  }
  bool note_presence() {
    if (field_ == Field::scheduled_ms) record_.has_scheduled_ms = true;
    return true;
  }
  bool open(std::string_view what) {
    if (depth_ == 0 && what == "an object") {
      ++depth_;
      return true;
    }
    if (!skips() || depth_ >= kMaxDepth) return refuse(std::string(what), expectation());
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  static std::optional<std::int64_t> whole(std::string_view text, std::int64_t smallest,
                                           std::int64_t largest) {
    std::int64_t value = 0;
    for (const char c : text) {
      if (!is_digit(c) || value > (largest - (c - '0')) / 10) return std::nullopt;
      value = value * 10 + (c - '0');
    }
    if (value < smallest) return std::nullopt;
    return value;
  }

  // `plain`: the parser saw an unsigned integer of at most 64 bits.
  bool number(bool plain) {
    if (skips()) return note_presence();
    constexpr std::int64_t kMaxId = (std::int64_t{1} << 62);
    const std::string_view text = token(true);
    const auto bounded = [&](std::int64_t smallest, std::int64_t largest) {
      return plain ? whole(text, smallest, largest) : std::nullopt;
    };
    std::optional<std::int64_t> value;
    if (depth_ == 1) {
      switch (field_) {
        case Field::timestamp: record_.timestamp_us = value = microseconds_of(text); break;
        case Field::input_length: record_.input_tokens = value = bounded(1, kMaxTraceTokens); break;
        case Field::output_length:
          record_.output_tokens = value = bounded(0, kMaxTraceTokens);
          break;
        case Field::session: record_.session = value = bounded(0, kMaxId); break;
        case Field::turn: record_.turn = value = bounded(0, kMaxId); break;
        default: break;
      }
    } else if (depth_ == 2 && field_ == Field::hash_ids) {
      value = bounded(0, kMaxId);
      if (value) record_.hash_ids.push_back(*value);
    }
    if (value) return true;
    return refuse_at(text, fmt::format("the number {}", shortened(text)), expectation());
  }

  std::string_view line_;
  const char* const* seen_;
  JsonRecord& record_;
  std::optional<LineDefect> defect_;
  Field field_ = Field::unknown;
  std::array<bool, 8> given_{};
  std::vector<std::string> unknown_;
  int depth_ = 0;
};

}  // namespace

std::optional<LineDefect> parse_json_record(std::string_view line, JsonRecord& record) {
  record = JsonRecord{};
  const char* seen = line.data();
  RecordHandler handler(line, &seen, record);
  const CountingIterator first{line.data(), &seen};
  const CountingIterator last{line.data() + line.size(), &seen};
  if (Json::sax_parse(first, last, &handler)) return std::nullopt;
  auto defect = handler.take_defect();
  if (!defect) defect = LineDefect{1, "something unreadable", "one JSON object a line"};
  return defect;
}

}  // namespace kvarena::trace
