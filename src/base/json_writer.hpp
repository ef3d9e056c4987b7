#pragma once

/// @file
/// `JsonWriter`: writes one JSON document on one line, member by member, for values of the core. It
/// knows no documents to read and needs no library. Throws std::bad_alloc.

#include "base/utf8.hpp"

#include <array>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena {

/// Appends to a text. The caller opens and closes objects and lists in pairs, and names each member
/// of an object.
class JsonWriter {
 public:
  /// Opens an object, as the next value.
  JsonWriter& open_object() { return open('{'); }
  JsonWriter& close_object() { return close('}'); }
  /// Opens a list, as the next value.
  JsonWriter& open_list() { return open('['); }
  JsonWriter& close_list() { return close(']'); }

  /// Names the next value of an object.
  JsonWriter& name(std::string_view text) {
    value(text);
    text_ += ':';
    needs_comma_ = false;
    return *this;
  }
  /// Writes a number, exact.
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) JsonWriter& value(Number number) {
    begin_value();
    text_ += std::to_string(number);
    return *this;
  }
  /// Writes a finite number, as the shortest text that reads as the same double.
  template <std::floating_point Number>
  JsonWriter& value(Number number) {
    begin_value();
    std::array<char, 32> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), double{number}).ptr;
    const std::string_view written(text.data(), static_cast<std::size_t>(end - text.data()));
    text_ += written;
    // A reader takes a number without these for a whole one.
    if (written.find_first_of(".e") == written.npos) text_ += ".0";
    return *this;
  }
  /// Writes true or false. No pointer converts to it.
  template <std::same_as<bool> Bool>
  JsonWriter& value(Bool flag) {
    begin_value();
    text_ += flag ? "true" : "false";
    return *this;
  }
  /// Writes a text. A byte that is not part of UTF-8 becomes U+FFFD.
  JsonWriter& value(std::string_view text) {
    begin_value();
    text_ += '"';
    while (!text.empty()) {
      const std::size_t length = utf8_length(text.substr(0, 4));
      if (length == 0) {
        text_ += "\xef\xbf\xbd";
      } else if (length == 1) {
        append_ascii(text[0]);
      } else {
        text_ += text.substr(0, length);
      }
      text.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
    return *this;
  }
  /// Writes null.
  JsonWriter& null() {
    begin_value();
    text_ += "null";
    return *this;
  }
  /// Writes a member of an object: its name and its value.
  template <class Value>
  JsonWriter& member(std::string_view its_name, const Value& its_value) {
    return name(its_name).value(its_value);
  }

  /// Returns the document and leaves the writer empty.
  std::string take() noexcept {
    needs_comma_ = false;
    return std::exchange(text_, {});
  }

 private:
  void begin_value() {
    if (needs_comma_) text_ += ',';
    needs_comma_ = true;
  }
  JsonWriter& open(char bracket) {
    begin_value();
    text_ += bracket;
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text_ += bracket;
    needs_comma_ = true;
    return *this;
  }
  /// Control characters are written as \u00NN (RFC 8259, section 7), the frequent one as \n.
  void append_ascii(char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      (text_ += '\\') += c;
    } else if (c == '\n') {
      text_ += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      ((text_ += "\\u00") += kDigits[byte / 16]) += kDigits[byte % 16];
    } else {
      text_ += c;
    }
  }

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace kvarena
