#pragma once

/// @file
/// Readers for a model's configuration: typed look-ups, the kind of each layer, the data that the
/// layers keep for a sequence, and the formats of the weights. layer_types decides the kind of a
/// layer; without it, the rule of the family does. The first look-up that finds a wrong value sets
/// the reader's failure. Later look-ups return empty values, so a reader may check for a failure
/// once, after all look-ups. One thread at a time.

#include "capacity/amount.hpp"
#include "capacity/files/byte_source.hpp"
#include "capacity/files/families.hpp"

#include "kvarena/capacity/model_spec.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// A range that includes both ends.
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

/// An object of a configuration. Refers to the object and to the failure that all objects of the
/// configuration share. A key whose value is null counts as missing. Several keys are names of one
/// value; the first present key is used.
class ConfigValues {
 public:
  using Keys = std::initializer_list<std::string_view>;

  /// `path` is "$" or "$.text_config"; the subject of `failure` is the file.
  ConfigValues(const nlohmann::json& object, std::string path, ReadFailure& failure)
      : object_(&object), path_(std::move(path)), failure_(&failure) {}

  /// Returns whether nothing has been refused so far, in any object of the configuration.
  bool ok() const noexcept { return failure_->what.is_empty(); }
  bool has(std::string_view key) const;
  bool is_null(std::string_view key) const;

  /// Returns a whole number. The key must be present.
  std::int64_t integer(Keys keys, IntegerRange range);
  /// Returns a whole number, or `otherwise` when the key is missing.
  std::int64_t integer(Keys keys, IntegerRange range, std::int64_t otherwise);
  /// Does what integer does, for a range within 32 bits.
  std::int32_t number(Keys keys, IntegerRange range) {
    return static_cast<std::int32_t>(integer(keys, range));
  }
  std::int32_t number(Keys keys, IntegerRange range, std::int64_t otherwise) {
    return static_cast<std::int32_t>(integer(keys, range, otherwise));
  }
  bool flag(std::string_view key, bool otherwise);
  /// Returns a string, or "" when the key is missing.
  std::string word(std::string_view key);
  std::vector<std::string> words(std::string_view key);
  std::vector<std::int64_t> integers(std::string_view key, IntegerRange range);
  bool is_array(std::string_view key) const;
  /// Returns the object at `key`, or nullopt when the key is missing.
  std::optional<ConfigValues> object(std::string_view key);
  /// Returns the only object among this object's values; nullopt when there is none or more than
  /// one.
  std::optional<ConfigValues> only_object() const;

  /// Sets the failure at `key`, unless there is one already. An empty `found` stands for the value.
  void refuse(std::string_view key, std::string found, std::string expected,
              std::string advice = {});
  /// Does the same for the object itself.
  void refuse_object(std::string found, std::string expected);

 private:
  const nlohmann::json* find(std::string_view key) const;
  std::string path_of(std::string_view key) const { return path_ + "." + std::string(key); }
  void fill(std::string place, std::string found, std::string expected, std::string advice);

  const nlohmann::json* object_;
  std::string path_;
  ReadFailure* failure_;
};

/// The kind of one layer. `none`: a layer with an MLP alone.
enum class ConfigLayer : std::uint8_t { full, window, chunked, delta_net, mamba, cross, none };

/// Returns the kinds of the model.shape.num_layers layers; fewer when something was refused through
/// `text`. A window or chunk that is not smaller than the longest context counts as full attention.
/// Adds assumptions to model.notes.
std::vector<ConfigLayer> config_layers(ConfigValues& text, const ModelFamily& family,
                                       ModelSpec& model);
/// Returns the tokens of the windows or chunks; 0 when the model's longest context does not reach
/// the limit.
std::int64_t config_layer_limit(ConfigValues& text, const ModelFamily& family,
                                const ModelSpec& model, ConfigLayer layer);

/// The parts of a configuration that describe a decoder.
struct DecoderConfig {
  ConfigValues text;                   ///< the decoder's own object
  std::optional<ConfigValues> vision;  ///< the image encoder's, beside it
  const ModelFamily* family = nullptr;
  bool has_encoder = false;  ///< every layer also reads an encoder's tokens
};

/// Sets model.groups and adds assumptions to model.notes. Requires model.shape. Unknown values are
/// refused through config.text.
void add_config_groups(DecoderConfig& config, ModelSpec& model);

/// Sets the formats of weights, experts, K and V from `text` and its enclosing object `outer`. Adds
/// a format's scales and assumptions to model.notes. An unknown quantisation is noted, not refused.
void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model);

}  // namespace kvarena::capacity
