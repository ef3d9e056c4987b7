#pragma once

/// @file
/// Readers for the headers of safetensors files, which list the tensors of a model exactly. Only
/// headers are read. Files that the format's own library refuses
/// (github.com/huggingface/safetensors, src/tensor.rs) are refused here too: files with holes,
/// overlaps, sizes that do not fit the shape, or bytes of no tensor. Stateless; for any thread.

#include "capacity/files/byte_source.hpp"
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

/// Names of tensors by the file that has them.
using SafetensorsMap = std::map<std::string, std::vector<std::string>, std::less<>>;

/// Sets `files` from `text`, the text of the index file `path`. The files are beside `path`; their
/// names have no folder and no control character. Errors name `path`. On failure fills `failure`
/// and returns parse_error.
Status parse_safetensors_index(std::string_view text, const std::string& path,
                               SafetensorsMap& files, ReadFailure& failure);

/// Reads the headers of a model's weights. `path` is a file of tensors, an index
/// ("model.safetensors.index.json") whose files are in its folder, or a folder with
/// model.safetensors.index.json, model.safetensors, or one file of tensors. Fails at the file with
/// which the headers exceed `max_bytes`. Also returns not_found.
Status read_safetensors(const std::string& path, TensorIndex& index, ReadFailure& failure,
                        std::int64_t max_bytes = kMaxHeaderBytesOfModel);

}  // namespace kvarena::capacity
