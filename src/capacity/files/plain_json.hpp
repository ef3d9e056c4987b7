#pragma once

/// @file
/// `PlainJson`: objects and arrays of strings without escapes, in ASCII, and of whole numbers: what
/// writers of tensors' headers make. Read several times as fast as JSON of any kind. Refers to its
/// text. One thread.

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Hands a text to a sink, token by token: key, string, number, open (whether an object) and close,
/// each with the place behind the token, each returning whether to go on.
template <class Sink>
class PlainJson {
 public:
  PlainJson(std::string_view text, std::int64_t max_depth, Sink& sink)
      : at_(text.data()), end_(text.data() + text.size()), max_depth_(max_depth), sink_(sink) {}

  /// Whether all of the text is such JSON, nested no deeper, and the sink took it.
  bool read() {
    if (!value()) return false;
    while (!open_.empty()) {
      if (!step()) return false;
    }
    return peek() == '\0' && at_ == end_;
  }

 private:
  struct Open {
    bool is_object = false;
    bool has_value = false;
  };

  // The next character but space; '\0' at the end.
  char peek() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ == end_ ? '\0' : *at_;
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  // The end of the innermost object or array, or its next value.
  bool step() {
    Open& open = open_.back();
    if (take(open.is_object ? '}' : ']')) {
      open_.pop_back();
      return sink_.close(at_);
    }
    if (open.has_value && !take(',')) return false;
    open.has_value = true;
    std::string_view name;
    if (open.is_object && !(string(name) && sink_.key(name, at_) && take(':'))) return false;
    return value();
  }

  bool value() {
    const char first = peek();
    if (first == '{' || first == '[') {
      ++at_;
      if (static_cast<std::int64_t>(open_.size()) >= max_depth_) return false;
      open_.push_back({first == '{', false});
      return sink_.open(first == '{', at_);
    }
    if (first == '"') {
      std::string_view text;
      return string(text) && sink_.string(text, at_);
    }
    std::uint64_t whole = 0;
    return number(whole) && sink_.number(whole, at_);
  }

  bool string(std::string_view& text) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\') ++at_;
    if (at_ == end_ || *at_ != '"') return false;
    text = {begin, static_cast<std::size_t>(at_ - begin)};
    ++at_;
    return true;
  }

  // What follows the digits is looked at as the next token, which a fraction is not.
  bool number(std::uint64_t& whole) {
    constexpr std::ptrdiff_t kMostDigits = 18;
    const char* begin = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9' && at_ - begin <= kMostDigits) {
      whole = 10 * whole + static_cast<std::uint64_t>(*at_++ - '0');
    }
    const std::ptrdiff_t digits = at_ - begin;
    return digits >= 1 && digits <= kMostDigits && (digits == 1 || *begin != '0');
  }

  const char* at_;
  const char* end_;
  std::int64_t max_depth_;
  Sink& sink_;
  std::vector<Open> open_;
};

}  // namespace kvarena::capacity
