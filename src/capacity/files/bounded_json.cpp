#include "capacity/files/bounded_json.hpp"

#include "base/counting_iterator.hpp"
#include "base/excerpt.hpp"
#include "capacity/files/byte_source.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <tuple>
#include <vector>

namespace kvarena::capacity {
namespace {

using Json = nlohmann::json;

// An open array or object.
struct Level {
  bool is_object = false;
  std::int64_t index = -1;    // of an array's value
  std::size_t first_key = 0;  // where its keys begin among those of all open objects
};

// A key of an open object. Keys are sorted to find those that are there twice, which nobody can
// make slow, as one can a hash table; the hash spares most comparisons of names.
struct Key {
  std::size_t hash = 0;
  std::string_view name;
  std::size_t offset = 0;  // in the text

  bool is(const Key& other) const { return hash == other.hash && name == other.name; }
  bool operator<(const Key& other) const {
    return std::tie(hash, name, offset) < std::tie(other.hash, other.name, other.offset);
  }
};

bool is_plain(std::string_view key) {
  return !key.empty() && key.size() <= 64 && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  });
}

std::string place_of(const JsonText& text, std::size_t offset) {
  if (text.first_byte >= 0) {
    return "byte " + std::to_string(text.first_byte + static_cast<std::int64_t>(offset));
  }
  const std::string_view before = text.text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto last_break = before.rfind('\n');
  const std::size_t column = last_break == before.npos ? offset + 1 : offset - last_break;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

// Stands between the parser and the receiver: limits, duplicate keys, and where things are.
class Gate {
 public:
  Gate(const JsonText& text, const JsonLimits& limits, const char* const* seen,
       JsonReceiver& receiver, ReadFailure& failure)
      : text_(text), limits_(limits), seen_(seen), receiver_(receiver), failure_(failure) {}

  // What the parser calls; false ends the reading.
  bool null() { return take(JsonScalar(nullptr)); }
  bool boolean(bool value) { return take(JsonScalar(value)); }
  bool number_integer(Json::number_integer_t value) { return take(JsonScalar(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return take(JsonScalar(value)); }
  bool number_float(Json::number_float_t value, const Json::string_t&) {
    return take(JsonScalar(value));
  }
  bool string(const Json::string_t& value) { return take(JsonScalar(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(true); }
  bool start_array(std::size_t) { return open(false); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(Json::string_t& name) {
    const std::size_t begin = token_start();
    const std::string_view kept = kept_name(name, begin + 1);
    keys_.push_back({std::hash<std::string_view>()(kept), kept, begin});
    return pass(receiver_.key(kept));
  }
  bool parse_error(std::size_t position, const std::string& token, const Json::exception& error) {
    const std::size_t size = text_.text.size();
    if (position > size)
      return refuse_at(size, defect("the end of the text", "the rest of the JSON"));
    constexpr int kOutOfRange = 406;  // json.exception.out_of_range: a number
    const bool is_large = error.id == kOutOfRange;
    return refuse_at(position == 0 ? 0 : position - 1,
                     is_large ? defect("a number too large", "what a double holds")
                              : defect(excerpt_of(token), wanted()));
  }

 private:
  // What may stand where the parser has found something else.
  std::string wanted() const {
    if (levels_.empty()) return num_values_ == 0 ? "JSON" : "the end of the text";
    return levels_.back().is_object ? "a key and its value, ',' or '}'" : "a value, ',' or ']'";
  }
  // Where the token that the parser has just read begins: behind the last one's end.
  std::size_t token_start() const {
    const std::size_t start = text_.text.find_first_not_of(" \t\r\n,:", last_end_);
    const auto seen = static_cast<std::size_t>(*seen_ - text_.text.data());
    return std::min(start, seen == 0 ? 0 : seen - 1);
  }
  // The string that the parser has just read: a part of the text, unless something in it is
  // escaped.
  std::string_view kept_name(const std::string& name, std::size_t begin) {
    const auto end = static_cast<std::size_t>(*seen_ - text_.text.data()) - 1;
    if (end - begin == name.size()) return text_.text.substr(begin, name.size());
    return escaped_.emplace_back(name);
  }
  bool refuse(Finding what) { return refuse_at(token_start(), std::move(what)); }
  bool refuse_at(std::size_t offset, Finding what) {
    what.subject = place_of(text_, offset);
    if (const std::string here = path(); here != "$") what.subject += ", " + here;
    static_cast<void>(capacity::refuse(failure_, std::string(text_.file), std::move(what)));
    return false;
  }
  std::string path() const {
    std::string text = "$";
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Level& level = levels_[i];
      if (text.size() > 200) return text + "...";
      if (!level.is_object) {
        if (level.index >= 0) text += "[" + std::to_string(level.index) + "]";
        continue;
      }
      const bool is_last = i + 1 == levels_.size();
      const std::size_t end = is_last ? keys_.size() : levels_[i + 1].first_key;
      if (end == level.first_key) continue;
      const std::string_view key = keys_[end - 1].name;
      text += is_plain(key) ? "." + std::string(key) : "[" + excerpt_of(key) + "]";
    }
    return text;
  }

  bool count() {
    if (!levels_.empty()) ++levels_.back().index;
    if (++num_values_ <= limits_.max_values) return true;
    return refuse(
        defect("one value more", "at most " + std::to_string(limits_.max_values) + " values"));
  }
  bool pass(std::optional<Finding> what) {
    if (what) return refuse(std::move(*what));
    last_end_ = static_cast<std::size_t>(*seen_ - text_.text.data());
    return true;
  }
  bool take(const JsonScalar& value) { return count() && pass(receiver_.scalar(value)); }
  bool open(bool is_object) {
    if (!count()) return false;
    if (static_cast<std::int64_t>(levels_.size()) >= limits_.max_depth) {
      return refuse(defect(is_object ? "one object more inside" : "one array more inside",
                           "at most " + std::to_string(limits_.max_depth) + " levels of nesting"));
    }
    if (!pass(is_object ? receiver_.open_object() : receiver_.open_array())) return false;
    levels_.push_back({is_object, -1, keys_.size()});
    return true;
  }
  bool close() {
    if (levels_.back().is_object && !has_each_key_once()) return false;
    levels_.pop_back();
    return pass(receiver_.close());
  }
  // Of the object that is being closed, whose keys go.
  bool has_each_key_once() {
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(levels_.back().first_key);
    std::sort(first, keys_.end());
    const Key* again = nullptr;
    for (auto key = first; key != keys_.end(); ++key) {
      const bool is_again = key != first && key->is(*(key - 1));
      if (is_again && (again == nullptr || key->offset < again->offset)) again = &*key;
    }
    if (again == nullptr) {
      keys_.erase(first, keys_.end());
      return true;
    }
    const Key key = *again;
    keys_.push_back(key);  // the last one, for path()
    return refuse_at(key.offset, defect("the key " + excerpt_of(key.name) + " again",
                                        "each key of an object once"));
  }

  const JsonText& text_;
  const JsonLimits& limits_;
  const char* const* seen_;
  JsonReceiver& receiver_;
  ReadFailure& failure_;
  std::vector<Level> levels_;
  std::vector<Key> keys_;            // of all open objects so far
  std::deque<std::string> escaped_;  // names that the text does not have as they are
  std::int64_t num_values_ = 0;
  std::size_t last_end_ = 0;
};

// Builds a value. The limits bound its depth, so that its destruction does not recurse far.
class Tree final : public JsonReceiver {
 public:
  explicit Tree(Json& root) : next_(&root) {}

  std::optional<Finding> scalar(const JsonScalar& value) override {
    std::visit([&](const auto& plain) { place() = Json(plain); }, value);
    return {};
  }
  std::optional<Finding> key(std::string_view name) override {
    next_ = &(*open_.back())[std::string(name)];
    return {};
  }
  std::optional<Finding> open_object() override { return open(Json::object()); }
  std::optional<Finding> open_array() override { return open(Json::array()); }
  std::optional<Finding> close() override {
    open_.pop_back();
    return {};
  }

 private:
  Json& place() {
    if (!open_.empty() && open_.back()->is_array()) {
      return open_.back()->emplace_back();
    }
    return *next_;
  }
  std::optional<Finding> open(Json empty) {
    Json& here = place();
    here = std::move(empty);
    open_.push_back(&here);
    return {};
  }

  Json* next_;               // where an object's next value goes, and the first of all
  std::vector<Json*> open_;  // an array grows only while its last value is closed
};

}  // namespace

std::string name_of(const JsonScalar& value) {
  struct Name {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const {
      return "the number " + std::to_string(value);
    }
    std::string operator()(std::uint64_t value) const {
      return "the number " + std::to_string(value);
    }
    std::string operator()(double value) const { return "the number " + Json(value).dump(); }
    std::string operator()(std::string_view value) const {
      return "the string " + excerpt_of(value);
    }
  };
  return std::visit(Name{}, value);
}

Status stream_json(const JsonText& text, const JsonLimits& limits, JsonReceiver& receiver,
                   ReadFailure& failure) {
  const std::string_view bytes = text.text;
  const auto refuse = [&](std::size_t offset, std::string found, std::string expected) {
    return capacity::refuse(failure, std::string(text.file),
                            {.subject = place_of(text, offset),
                             .found = std::move(found),
                             .expected = std::move(expected)});
  };
  if (static_cast<std::int64_t>(bytes.size()) > limits.max_bytes) {
    return refuse(0, std::to_string(bytes.size()) + " bytes of JSON",
                  "at most " + std::to_string(limits.max_bytes));
  }
  if (bytes.empty()) return refuse(0, "nothing", "JSON");
  // The parser takes a NUL byte for the end of its input.
  if (const auto at = bytes.find('\0'); at != bytes.npos) return refuse(at, "a NUL byte", "text");
  const char* seen = bytes.data();
  Gate gate(text, limits, &seen, receiver, failure);
  const CountingIterator first{bytes.data(), &seen};
  const CountingIterator last{bytes.data() + bytes.size(), &seen};
  return Json::sax_parse(first, last, &gate) ? Status{} : status_of(failure);
}

Status read_json_text(const std::string& path, const JsonLimits& limits, std::string& text,
                      ReadFailure& failure) {
  FileBytes file;
  if (Status opened = file.open(path, failure); !opened) return opened;
  if (file.size_bytes() <= limits.max_bytes) {
    text.resize(static_cast<std::size_t>(file.size_bytes()));
    return file.read(0, text, failure);
  }
  return refuse(failure, path,
                defect(std::to_string(file.size_bytes()) + " bytes of JSON",
                       "at most " + std::to_string(limits.max_bytes)));
}

Status parse_json(const JsonText& text, const JsonLimits& limits, Json& value,
                  ReadFailure& failure) {
  value = nullptr;
  Tree tree(value);
  return stream_json(text, limits, tree, failure);
}

}  // namespace kvarena::capacity
