#pragma once

/// @file
/// Typed look-ups in a model's configuration. The first that finds something wrong says so in the
/// reader's failure; those after it return what stands for "nothing", so that a reader asks for all
/// it needs and looks for a failure once. Not for several threads.

#include "capacity/amount.hpp"
#include "capacity/files/read_failure.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Both ends are allowed.
struct IntegerRange {
  std::int64_t smallest = 0;
  std::int64_t largest = 0;
};
inline constexpr IntegerRange kLayerRange{1, kMostLayers};
inline constexpr IntegerRange kHeadRange{1, kMostHeads};
inline constexpr IntegerRange kDimRange{1, kMostDim};
inline constexpr IntegerRange kWidthRange{1, kMostWidth};
inline constexpr IntegerRange kVocabRange{1, std::int64_t{1} << 31};
inline constexpr IntegerRange kTokenRange{1, kMostTokens};

/// An object of a configuration; refers to it and to the failure that all its objects share. A key
/// whose value is null is not there. Several keys are names of one thing: the first that is there
/// counts.
class ConfigValues {
 public:
  using Keys = std::initializer_list<std::string_view>;

  /// `path` is "$" or "$.text_config"; the subject of `failure` is the file.
  ConfigValues(const nlohmann::json& object, std::string path, ReadFailure& failure)
      : object_(&object), path_(std::move(path)), failure_(&failure) {}

  /// Nothing has been refused so far, in any object of the configuration.
  bool ok() const noexcept { return failure_->what.is_empty(); }
  bool has(std::string_view key) const;
  /// Whether the key is there, and null.
  bool is_null(std::string_view key) const;

  /// A whole number that must be there.
  std::int64_t integer(Keys keys, IntegerRange range);
  /// A whole number; `otherwise` when it is not there.
  std::int64_t integer(Keys keys, IntegerRange range, std::int64_t otherwise);
  /// As integer, of a range within 32 bits.
  std::int32_t number(Keys keys, IntegerRange range) {
    return static_cast<std::int32_t>(integer(keys, range));
  }
  std::int32_t number(Keys keys, IntegerRange range, std::int64_t otherwise) {
    return static_cast<std::int32_t>(integer(keys, range, otherwise));
  }
  bool flag(std::string_view key, bool otherwise);
  /// "" when it is not there.
  std::string word(std::string_view key);
  std::vector<std::string> words(std::string_view key);
  std::vector<std::int64_t> integers(std::string_view key, IntegerRange range);
  /// Whether the value is an array.
  bool is_array(std::string_view key) const;
  /// The object at `key`; none when it is not there.
  std::optional<ConfigValues> object(std::string_view key);
  /// The one object among an object's values; none when there is none, or more.
  std::optional<ConfigValues> only_object() const;

  /// What is wrong at `key`, unless something was before. `found` empty: the value.
  void refuse(std::string_view key, std::string found, std::string expected,
              std::string advice = {});
  /// As refuse, of the object itself.
  void refuse_object(std::string found, std::string expected);

 private:
  const nlohmann::json* find(std::string_view key) const;
  std::string path_of(std::string_view key) const { return path_ + "." + std::string(key); }
  void fill(std::string place, std::string found, std::string expected, std::string advice);

  const nlohmann::json* object_;
  std::string path_;
  ReadFailure* failure_;
};

}  // namespace kvarena::capacity
