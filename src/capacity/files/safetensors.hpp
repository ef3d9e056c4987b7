#pragma once

/// @file
/// Headers of safetensors files: which tensors a model stores, exactly. Only headers are read; what
/// the format's own library refuses (github.com/huggingface/safetensors, src/tensor.rs) is refused
/// here: holes, overlaps, sizes that do not fit the shape, bytes that belong to no tensor.
/// Stateless; for any thread.

#include "capacity/files/byte_source.hpp"
#include "capacity/files/read_failure.hpp"
#include "capacity/files/tensor_index.hpp"
#include "kvarena/base/status.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Reads the header of one file from `source`. On failure fills `failure` and returns its Status:
/// parse_error, io_error. Memory: a small multiple of the header, which has at most 100 MB.
Status parse_safetensors(const ByteSource& source, TensorIndex& index, ReadFailure& failure);

/// Tensors' names by the file that has them.
using SafetensorsMap = std::map<std::string, std::vector<std::string>, std::less<>>;

/// Sets `files` to what an index of text `text` says: names of files beside `path`, the
/// index, which errors name: no folder, no control character. On failure fills `failure` and
/// returns parse_error.
Status parse_safetensors_index(std::string_view text, const std::string& path,
                               SafetensorsMap& files, ReadFailure& failure);

/// Reads the headers of a model's weights. `path` is a file of tensors; an index
/// ("model.safetensors.index.json"), whose files lie in its folder; or a folder with
/// model.safetensors.index.json, model.safetensors, or one file of tensors. Stops at the file with
/// which the headers are larger than `max_bytes`. Also returns not_found.
Status read_safetensors(const std::string& path, TensorIndex& index, ReadFailure& failure,
                        std::int64_t max_bytes = kMaxHeaderBytesOfModel);

}  // namespace kvarena::capacity
