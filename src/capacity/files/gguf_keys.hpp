#pragma once

/// @file
/// `GgufKeys`: reads the keys "ARCHITECTURE.KEY" of a GGUF header and checks their ranges. Refers
/// to the header. One thread at a time. The other functions read the layers that keep more or other
/// data than K and V of their own tokens: K and V of an encoder's text (T5) or image (Llama 3.2
/// Vision), or a recurrent state.

#include "capacity/files/gguf.hpp"
#include "capacity/files/read_failure.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Reads numbers. The first missing or wrong key stays as the failure. Values returned after a
/// failure have no meaning.
class GgufKeys {
 public:
  /// Reads keys of `header`, which comes from `file`. All three arguments must outlive this object.
  GgufKeys(const GgufHeader& header, const std::string& file, std::string_view architecture)
      : header_(header), file_(file), architecture_(architecture) {}

  /// Returns whether a key was missing or wrong.
  bool failed() const noexcept { return failed_; }
  const ReadFailure& failure() const noexcept { return failure_; }

  const GgufValue* find(std::string_view key) const;
  /// Returns a number of `smallest` .. `largest`, or `absent` when the key is missing.
  std::int64_t optional(std::string_view key, std::int64_t absent, std::int64_t smallest,
                        std::int64_t largest);
  /// A number of `smallest` .. `largest`.
  std::int64_t required(std::string_view key, std::int64_t smallest, std::int64_t largest);
  /// Returns a number of 0 .. kMostDim (amount.hpp), or `absent` when the key is missing.
  std::int32_t dim(std::string_view key, std::int64_t absent = 0);
  /// Returns one number of 0 .. `largest` for each of absent.size() layers. A file may have one
  /// number for all layers. Returns `absent` when the key is missing.
  std::vector<std::int64_t> by_layer(std::string_view key, const std::vector<std::int64_t>& absent,
                                     std::int64_t largest);
  /// Sets the failure: the value of `key` is wrong.
  void refuse(std::string_view key, std::string found, std::string expected);

 private:
  const GgufHeader& header_;
  const std::string& file_;
  std::string_view architecture_;
  ReadFailure failure_;
  bool failed_ = false;
};

/// Returns for each layer whether it reads an image's tokens instead of the text's.
std::vector<bool> image_layers(GgufKeys& keys, std::int32_t num_layers);
/// Returns the tokens of one image with the most tiles: each tile has its patches and a class
/// token. Adds the assumption to `notes`.
std::int64_t image_tokens(GgufKeys& keys, std::vector<std::string>& notes);
/// Adds a group for an encoder's tokens, as many as the longest context, when the layers of the
/// model's first group also read them.
void add_encoder_group(GgufKeys& keys, ModelSpec& model);

/// Returns for each layer whether the keys make it recurrent, whatever its KV heads are. The file
/// lists the recurrent layers. Without a list, all layers but every `interval`-th are recurrent; a
/// key may give another interval.
std::vector<bool> recurrent_layers(GgufKeys& keys, std::int32_t num_layers, std::int64_t interval);
/// Returns the data that a recurrent layer keeps (llama_hparams' n_embd_s and n_embd_r), or nullopt
/// when no key gives it.
std::optional<CacheGroup> recurrent_state(GgufKeys& keys, const TransformerShape& shape);

}  // namespace kvarena::capacity
