#pragma once

/// @file
/// `GgufHeader`: the metadata and tensor infos of a GGUF file, which come before its tensors' data,
/// and the model that they describe. `GgufKeys` reads the keys "ARCHITECTURE.KEY" and checks their
/// ranges (gguf_keys.cpp). Only the header is read. Only metadata that planning uses is
/// kept; a tokenizer's arrays are skipped. Headers are plain values; a reader is for one thread.
/// Format: ggml/docs/gguf.md of llama.cpp, versions 2 and 3, little endian.

#include "capacity/files/byte_source.hpp"
#include "capacity/files/tensor_index.hpp"

#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvarena::capacity {

struct GgufArray {
  std::int64_t length = 0;  ///< elements in the file
  /// The elements of an array of whole numbers or bools (0, 1) with at most as many elements as a
  /// model may have layers; empty for any other array.
  std::vector<std::int64_t> numbers;
};

/// A whole number (at most 2^63 - 1, larger ones become that), a number, a bool, a text (empty when
/// it is too long for planning), or an array.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, GgufArray>;

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// Returns the description of a value for a message: "the number 12", "an array of 3", ...
std::string name_of(const GgufValue& value);

/// Reads at a cursor, which must outlive the reader. A function returns false on failure, and the
/// cursor's failure() then has the reason.
class GgufValueReader {
 public:
  explicit GgufValueReader(ByteCursor& in) : in_(in) {}

  /// Reads a key or a tensor's name of 1 .. `max_bytes` bytes, in UTF-8 without control characters.
  /// `what` says in errors which name it is.
  bool name(std::string& name, std::uint64_t max_bytes, std::string_view what);
  /// Reads a type and the value behind it.
  bool value(GgufValue& value);

 private:
  enum class Type : std::uint32_t;

  bool type(Type& type);
  bool whole(Type type, std::int64_t& value);
  template <class T>
  bool whole_as(std::int64_t& value);
  template <class T>
  bool floating(GgufValue& value);
  bool text(GgufValue& value);
  bool array(GgufArray& array, int depth);
  bool numbers(Type type, GgufArray& array);
  bool walk(Type kind, std::uint64_t length, int depth);
  bool encoded(std::string& text, std::uint64_t size, std::string_view what, bool is_name);

  ByteCursor& in_;
  std::int64_t kept_numbers_ = 0;
  std::uint64_t walked_ = 0;
};

/// A type of tensors: a block of elements takes a number of bytes, with its scales.
struct GgmlType {
  std::uint32_t number = 0;         ///< its number in files
  std::string_view name;            ///< ggml's name, "q4_K"
  std::int64_t block_elements = 1;  ///< a row has whole blocks
  std::int64_t block_bytes = 0;     ///< of one block
};

/// Returns all types that a file may have, by number. Types that ggml has removed are missing.
std::span<const GgmlType> ggml_types() noexcept;
/// Returns the type with this number, or nullptr. O(number of types).
const GgmlType* find_ggml_type(std::uint32_t number) noexcept;

/// The header of a file, or the headers of a model that is split over several files.
struct GgufHeader {
  std::uint32_t version = 0;      ///< of the first file
  std::int64_t header_bytes = 0;  ///< of the first file, up to its tensors' data
  GgufMetadata metadata;          ///< of the first file
  TensorIndex weights;            ///< tensors of all files; types are named as in ggml_types()

  /// Returns the value of `key`, or nullptr.
  const GgufValue* find(std::string_view key) const noexcept;
  /// Returns the whole number of `key`; nullopt when the key is missing or has another type.
  std::optional<std::int64_t> number(std::string_view key) const noexcept;
  /// Returns the text of `key`; nullopt when the key is missing or has another type.
  std::optional<std::string_view> text(std::string_view key) const noexcept;
  /// Returns the length of the array `key`; nullopt when the key is missing or has another type.
  std::optional<std::int64_t> length(std::string_view key) const noexcept;
};

/// Reads one file's header from `source`. On failure fills `failure` and returns its Status:
/// parse_error, io_error. Memory: a small multiple of the header, which has at most 256 MiB.
Status parse_gguf(const ByteSource& source, GgufHeader& header, ReadFailure& failure);

/// Reads the header of the regular file `path`. When the file is the first of a split model
/// ("NAME-00001-of-00003.gguf"), also reads the headers of all other parts, which must be in the
/// same folder. Fails at the part with which the headers exceed `max_bytes`. Also returns
/// not_found.
Status read_gguf(const std::string& path, GgufHeader& header, ReadFailure& failure,
                 std::int64_t max_bytes = kMaxHeaderBytesOfModel);

/// Returns whether a file with this name is a part of a split model, but not its first part.
bool is_later_gguf_part(std::string_view file_name) noexcept;

/// Sets `model` from `header`, which was read from `file`. The file of any architecture works when
/// it has the keys of a decoder: block_count, embedding_length and attention.head_count. Head dims,
/// KV heads, windows, MLA ranks, experts and recurrent state are read when they are present. The
/// file decides which layers have a window. If it does not, a known architecture decides. For an
/// unknown architecture, all layers are assumed to keep the whole context. Weights are exact,
/// because they are the file's tensors. On failure fills `failure`, which names the key, and
/// returns parse_error.
Status model_from_gguf(const GgufHeader& header, const std::string& file, ModelSpec& model,
                       ReadFailure& failure);

/// Reads numbers of a header, which it borrows. The first missing or wrong key stays as the
/// failure. Values returned after a failure have no meaning.
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
