#include "kvarena/capacity/model_files.hpp"

#include "capacity/files/bounded_json.hpp"
#include "capacity/files/byte_source.hpp"
#include "capacity/files/config_json.hpp"
#include "capacity/files/gguf.hpp"
#include "capacity/files/safetensors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace kvarena::capacity {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

enum class Content : std::uint8_t { gguf, safetensors, json };

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The folder's name, which is the model's as people keep them.
std::string folder_name(const fs::path& folder) {
  std::error_code error;
  fs::path whole = fs::absolute(folder.empty() ? "." : folder, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.filename().string();
}

/// A safetensors file begins with the length of its JSON header, of which no part is as large as a
/// letter in its last byte; a text has no NUL.
Status content_of(const std::string& path, Content& content, ReadFailure& failure) {
  FileBytes file;
  if (Status opened = file.open(path, failure); !opened) return opened;
  std::array<char, 9> head{};
  const auto size = std::min<std::int64_t>(file.size_bytes(), std::ssize(head));
  if (Status read = file.read(0, std::span(head).first(static_cast<std::size_t>(size)), failure);
      !read) {
    return read;
  }
  const std::string_view bytes(head.data(), head.size());
  content = bytes.starts_with("GGUF") ? Content::gguf
            : size == std::ssize(head) && bytes.substr(7) == std::string_view("\0{", 2)
                ? Content::safetensors
                : Content::json;
  return {};
}

/// Exact bytes; and where shapes do not tell, parameters, if nothing is packed.
void add_weights(const TensorIndex& index, ModelSpec& model) {
  model.weights_bytes = index.bytes;
  model.weights_by_dtype = index.types;
  const bool plain = std::ranges::all_of(index.types, [](const TypeTotal& total) {
    return total.type == "BF16" || total.type == "F16" || total.type == "F32";
  });
  if (model.parameters || !plain || index.elements == 0) return;
  model.parameters = index.elements;
  model.parameters_source = "the weights' headers";
}

Status read_config(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  std::string text;
  if (Status read = read_json_text(path, {}, text, failure); !read) return read;
  return model_from_config_text(text, path, model, failure);
}

/// `weights` is a folder, an index or a file of tensors. A folder may have none of them.
Status read_config_and_weights(const fs::path& folder, const std::string& weights, ModelSpec& model,
                               ReadFailure& failure) {
  if (Status read = read_config((folder / kConfigName).string(), model, failure); !read) {
    return read;
  }
  model.name = folder_name(folder);
  TensorIndex index;
  const Status read = read_safetensors(weights, index, failure);
  if (read) {
    add_weights(index, model);
    return {};
  }
  if (read.code != StatusCode::not_found || weights != folder.string()) return read;
  model.notes.push_back("weights are not read: " + to_string(failure));
  failure = {};
  return {};
}

Status read_gguf_model(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  GgufHeader header;
  if (Status read = read_gguf(path, header, failure); !read) return read;
  return model_from_gguf(header, path, model, failure);
}

/// The .gguf files of a folder that are not a later part of a split one.
Status gguf_files(const std::string& folder, std::vector<std::string>& files,
                  ReadFailure& failure) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".gguf") && !is_later_gguf_part(name)) {
      files.push_back(entry->path().string());
    }
  }
  if (!error) return {};
  failure = system_failure(folder, error.value());
  failure.what.expected = "a folder that can be listed";
  return status_of(failure);
}

Status read_folder(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  if (is_file(fs::path(path) / kConfigName)) {
    return read_config_and_weights(path, path, model, failure);
  }
  std::vector<std::string> ggufs;
  if (Status listed = gguf_files(path, ggufs, failure); !listed) return listed;
  if (ggufs.size() == 1) return read_gguf_model(ggufs.front(), model, failure);
  return refuse(failure, path,
                {.found = fmt::format("no {} and {} GGUF files", kConfigName, ggufs.size()),
                 .expected = "a folder with config.json, or with one model in GGUF"});
}

/// Tensors say nothing of shapes: the configuration lies beside them. One file of several stands
/// for all.
Status read_tensors(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  const fs::path folder = fs::path(path).parent_path();
  if (!is_file(folder / kConfigName)) {
    return refuse(
        failure, path,
        {.found = "no config.json beside it", .expected = "the model's configuration there"});
  }
  const fs::path index = folder / kIndexName;
  return read_config_and_weights(folder, is_file(index) ? index.string() : path, model, failure);
}

Status read_json(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  if (path.ends_with(".index.json")) return read_tensors(path, model, failure);
  if (Status read = read_config(path, model, failure); !read) return read;
  const fs::path file(path);
  model.name =
      file.filename() == kConfigName ? folder_name(file.parent_path()) : file.stem().string();
  return {};
}

Status read_any(const std::string& path, ModelSpec& model, ReadFailure& failure) {
  std::error_code error;
  if (path.find('\0') == path.npos && fs::is_directory(path, error)) {
    return read_folder(path, model, failure);
  }
  Content content = Content::json;
  if (Status known = content_of(path, content, failure); !known) return known;
  switch (content) {
    case Content::gguf: return read_gguf_model(path, model, failure);
    case Content::safetensors: return read_tensors(path, model, failure);
    case Content::json: break;
  }
  return read_json(path, model, failure);
}

}  // namespace

Result<ModelSpec> read_model(const std::string& path, std::string& why) {
  ModelSpec model;
  ReadFailure failure;
  if (Status read = read_any(path, model, failure); !read) {
    why = to_string(failure);
    return read;
  }
  model.source = path;
  return model;
}

}  // namespace kvarena::capacity
