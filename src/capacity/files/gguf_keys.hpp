#pragma once

/// @file
/// `GgufKeys`: the keys "ARCHITECTURE.KEY" of a GGUF header, with their ranges. Refers to the
/// header. One thread. And what they say of layers that keep other things than K and V of their own
/// tokens: of an encoder's text (T5) or image (Llama 3.2 Vision), or a recurrent state.

#include "capacity/files/gguf_header.hpp"
#include "capacity/files/read_failure.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Reads numbers. The first key that is missing or wrong stays as the failure; what is returned
/// from then on means nothing.
class GgufKeys {
 public:
  /// Of `header`, read from `file`; both must stay, and so must `architecture`.
  GgufKeys(const GgufHeader& header, const std::string& file, std::string_view architecture)
      : header_(header), file_(file), architecture_(architecture) {}

  /// Whether a key was missing or wrong.
  bool failed() const noexcept { return failed_; }
  /// Which.
  const ReadFailure& failure() const noexcept { return failure_; }

  /// The value, or nullptr.
  const GgufValue* find(std::string_view key) const;
  /// A number of `smallest` .. `largest`; `absent` where there is none.
  std::int64_t optional(std::string_view key, std::int64_t absent, std::int64_t smallest,
                        std::int64_t largest);
  /// A number of `smallest` .. `largest`.
  std::int64_t required(std::string_view key, std::int64_t smallest, std::int64_t largest);
  /// A number of 0 .. kMostDim (model_limits.hpp); `absent` where there is none.
  std::int32_t dim(std::string_view key, std::int64_t absent = 0);
  /// One number of 0 .. `largest` for each layer, or one for all; `absent` where there is none.
  /// There are absent.size() layers.
  std::vector<std::int64_t> by_layer(std::string_view key, const std::vector<std::int64_t>& absent,
                                     std::int64_t largest);
  /// The key is wrong.
  void refuse(std::string_view key, std::string found, std::string expected);

 private:
  const GgufHeader& header_;
  const std::string& file_;
  std::string_view architecture_;
  ReadFailure failure_;
  bool failed_ = false;
};

/// Whether each layer reads an image's tokens instead of the text's.
std::vector<bool> image_layers(GgufKeys& keys, std::int32_t num_layers);
/// Tokens of one image of as many tiles as it may have: a tile's patches and its class token. Says
/// so in `notes`.
std::int64_t image_tokens(GgufKeys& keys, std::vector<std::string>& notes);
/// Where the layers of a model's first group read an encoder's tokens as well, a group of those: as
/// many as the longest context.
void add_encoder_group(GgufKeys& keys, ModelSpec& model);

/// Whether keys make each layer recurrent, whatever its KV heads: those that are listed, or, where
/// none are, all but every `interval`-th, unless a key gives another interval.
std::vector<bool> recurrent_layers(GgufKeys& keys, std::int32_t num_layers, std::int64_t interval);
/// What a recurrent layer keeps: llama_hparams' n_embd_s and n_embd_r. None where no key says so.
std::optional<CacheGroup> recurrent_state(GgufKeys& keys, const TransformerShape& shape);

}  // namespace kvarena::capacity
