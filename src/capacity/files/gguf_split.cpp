#include "base/excerpt.hpp"
#include "capacity/files/gguf_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

// A split model's files are numbered with five digits (llama_split_path of llama.cpp).
constexpr std::int64_t kMaxParts = 99999;
constexpr std::size_t kMaxTensors = std::size_t{1} << 20;

std::string part_suffix(std::int64_t part, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part, count);
}

Status read_part(const std::string& path, GgufHeader& header, std::int64_t& bytes_left,
                 ReadFailure& failure) {
  FileBytes file;
  if (Status opened = file.open(path, failure); !opened) return opened;
  if (Status read = parse_gguf(file, header, failure); !read) return read;
  return file.charge(bytes_left, failure);
}

}  // namespace

bool is_later_gguf_part(std::string_view file_name) noexcept {
  constexpr std::string_view kFirst = "-00001-of-00000.gguf";  // of any number of parts
  if (file_name.size() < kFirst.size()) return false;
  const std::string_view suffix = file_name.substr(file_name.size() - kFirst.size());
  const bool is_part = std::ranges::equal(suffix, kFirst, [](char c, char pattern) {
    const bool is_digit = pattern == '0' || pattern == '1';
    return is_digit ? c >= '0' && c <= '9' : c == pattern;
  });
  return is_part && suffix.substr(0, 6) > kFirst.substr(0, 6);
}

Status read_gguf(const std::string& path, GgufHeader& header, ReadFailure& failure,
                 std::int64_t max_bytes) {
  std::int64_t bytes_left = max_bytes;
  if (Status read = read_part(path, header, bytes_left, failure); !read) return read;
  const std::int64_t count = header.number("split.count").value_or(1);
  if (count <= 1) return {};
  const std::int64_t own = header.number("split.no").value_or(0);
  const std::string suffix = part_suffix(1, count);
  if (own != 0 || count > kMaxParts || !path.ends_with(suffix)) {
    return refuse(failure, path,
                  {.found = fmt::format("part {} of {} of a model", own + 1, count),
                   .expected = "the first part, named NAME" + suffix,
                   .advice = "name that file; the other parts are looked for beside it"});
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  std::vector<TensorInfo> tensors = std::move(header.weights.tensors);
  for (std::int64_t part = 2; part <= count; ++part) {
    const std::string name = stem + part_suffix(part, count);
    GgufHeader other;
    if (Status read = read_part(name, other, bytes_left, failure); !read) return read;
    if (other.number("split.no") != part - 1 || other.number("split.count") != count) {
      return refuse(failure, name,
                    {.found = "another split.no or split.count",
                     .expected = fmt::format("part {} of {}", part, count)});
    }
    for (TensorInfo& tensor : other.weights.tensors) tensors.push_back(std::move(tensor));
    if (tensors.size() > kMaxTensors) {
      return refuse(failure, name,
                    {.found = fmt::format("{} tensors up to here", tensors.size()),
                     .expected = fmt::format("at most {}", kMaxTensors)});
    }
  }
  const std::int64_t wanted = header.number("split.tensors.count").value_or(-1);
  if (wanted >= 0 && wanted != static_cast<std::int64_t>(tensors.size())) {
    return refuse(failure, path,
                  {.found = fmt::format("{} tensors in all parts", tensors.size()),
                   .expected = fmt::format("{}, as split.tensors.count says", wanted)});
  }
  header.weights = index_of(std::move(tensors));
  const std::string_view repeated = TensorNames(header.weights.tensors).repeated();
  if (repeated.empty()) return {};
  return refuse(failure, path,
                {.found = fmt::format("two parts with {}", excerpt_of(repeated, 80)),
                 .expected = "each tensor in one part"});
}

}  // namespace kvarena::capacity
