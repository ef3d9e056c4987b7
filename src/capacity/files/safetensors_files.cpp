#include "base/excerpt.hpp"
#include "capacity/files/bounded_json.hpp"
#include "capacity/files/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kFileName = "model.safetensors";
constexpr JsonLimits kIndexLimits{
    .max_bytes = std::int64_t{64} << 20, .max_depth = 8, .max_values = std::int64_t{1} << 20};
constexpr std::size_t kMaxShards = 4096;
constexpr std::size_t kMaxTensors = std::size_t{1} << 20;

// Takes an index: {"metadata": {...}, "weight_map": {"TENSOR": "FILE"}}.
class IndexReceiver final : public JsonReceiver {
 public:
  explicit IndexReceiver(SafetensorsMap& files) : files_(files), last_(files.end()) {}
  bool has_map() const { return has_map_; }

  std::optional<Finding> scalar(const JsonScalar& value) override {
    if (depth_ == 0) return defect(name_of(value), "an object");
    if (!in_map_) return {};
    const auto* file = std::get_if<std::string_view>(&value);
    if (depth_ != 2 || file == nullptr) return defect(name_of(value), "a file's name");
    // Tensors of a file mostly stand together.
    if (last_ == files_.end() || last_->first != *file) {
      if (auto defect = find(*file)) return defect;
    }
    last_->second.push_back(std::move(tensor_));
    return {};
  }
  std::optional<Finding> key(std::string_view name) override {
    if (depth_ == 1) in_map_ = name == "weight_map";
    if (depth_ == 2 && in_map_) tensor_ = name;
    return {};
  }
  std::optional<Finding> open_object() override {
    if (in_map_ && depth_ != 1) return defect("an object", "a file's name");
    if (in_map_) has_map_ = true;
    ++depth_;
    return {};
  }
  std::optional<Finding> open_array() override {
    if (depth_ == 0 || in_map_) return defect("an array", "an object");
    ++depth_;
    return {};
  }
  std::optional<Finding> close() override {
    if (--depth_ == 1) in_map_ = false;
    return {};
  }

 private:
  // Makes the last file that of this name.
  std::optional<Finding> find(std::string_view file) {
    last_ = files_.find(file);
    if (last_ != files_.end()) return {};
    if (file.empty() || file.starts_with('.') || file.find('/') != file.npos ||
        printable(file) != file) {
      return defect(excerpt_of(file, 80), "the name of a file beside the index");
    }
    last_ = files_.try_emplace(std::string(file)).first;
    if (files_.size() <= kMaxShards) return {};
    return defect("one file more", fmt::format("at most {} files", kMaxShards));
  }

  SafetensorsMap& files_;
  SafetensorsMap::iterator last_;
  std::string tensor_;
  int depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
};

// Each reader takes the bytes that it reads of tensors' files from `bytes_left`.
Status read_file(const std::string& path, TensorIndex& index, std::int64_t& bytes_left,
                 ReadFailure& failure) {
  FileBytes file;
  if (Status opened = file.open(path, failure); !opened) return opened;
  if (Status read = parse_safetensors(file, index, failure); !read) return read;
  return file.charge(bytes_left, failure);
}

Status read_index(const std::string& path, TensorIndex& index, std::int64_t& bytes_left,
                  ReadFailure& failure) {
  std::string text;
  SafetensorsMap files;
  if (Status read = read_json_text(path, kIndexLimits, text, failure); !read) return read;
  if (Status read = parse_safetensors_index(text, path, files, failure); !read) return read;
  text = {};
  std::vector<TensorInfo> tensors;
  for (const auto& [name, mapped] : files) {
    const std::string shard = (fs::path(path).parent_path() / name).string();
    TensorIndex part;
    if (Status read = read_file(shard, part, bytes_left, failure); !read) return read;
    const TensorNames names(part.tensors);
    for (const std::string& tensor : mapped) {
      if (names.has(tensor)) continue;
      return refuse(
          failure, shard,
          {.found = fmt::format("no tensor {}", excerpt_of(tensor, 80)),
           .expected = fmt::format("all that {} names in it", fs::path(path).filename().string())});
    }
    if (tensors.size() + part.tensors.size() > kMaxTensors) {
      return refuse(failure, shard,
                    {.found = "more tensors in all files",
                     .expected = fmt::format("at most {}", kMaxTensors)});
    }
    for (TensorInfo& tensor : part.tensors) tensors.push_back(std::move(tensor));
  }
  index = index_of(std::move(tensors));
  const std::string_view repeated = TensorNames(index.tensors).repeated();
  if (repeated.empty()) return {};
  return refuse(failure, path,
                {.found = fmt::format("two files with {}", excerpt_of(repeated, 80)),
                 .expected = "each tensor in one file"});
}

Status read_folder(const std::string& path, TensorIndex& index, std::int64_t& bytes_left,
                   ReadFailure& failure) {
  std::error_code error;
  const fs::path folder(path);
  if (fs::exists(folder / kIndexName, error)) {
    return read_index((folder / kIndexName).string(), index, bytes_left, failure);
  }
  if (fs::exists(folder / kFileName, error)) {
    return read_file((folder / kFileName).string(), index, bytes_left, failure);
  }
  std::string only;
  int files = 0;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != ".safetensors") continue;
    only = at->path().string();
    ++files;
  }
  if (error) {
    failure = system_failure(path, error.value());
    return status_of(failure);
  }
  if (files == 1) return read_file(only, index, bytes_left, failure);
  failure = {.code = StatusCode::not_found,
             .what = {.subject = path,
                      .found = fmt::format("{} files of tensors, and no index", files),
                      .expected = fmt::format("{}, {} or one *.safetensors", kIndexName, kFileName),
                      .advice = files == 0 ? "" : "name one of the files"}};
  return status_of(failure);
}

}  // namespace

Status parse_safetensors_index(std::string_view text, const std::string& path,
                               SafetensorsMap& files, ReadFailure& failure) {
  files.clear();
  IndexReceiver receiver(files);
  if (Status read = stream_json({text, path}, kIndexLimits, receiver, failure); !read) return read;
  if (!files.empty()) return {};
  return refuse(failure, path,
                {.found = receiver.has_map() ? "an empty weight_map" : "no weight_map",
                 .expected = "an object \"weight_map\" that names each tensor's file"});
}

Status read_safetensors(const std::string& path, TensorIndex& index, ReadFailure& failure,
                        std::int64_t max_bytes) {
  std::error_code error;
  std::int64_t bytes_left = max_bytes;
  index = {};
  if (fs::is_directory(path, error)) return read_folder(path, index, bytes_left, failure);
  if (path.ends_with(".json")) return read_index(path, index, bytes_left, failure);
  return read_file(path, index, bytes_left, failure);
}

}  // namespace kvarena::capacity
