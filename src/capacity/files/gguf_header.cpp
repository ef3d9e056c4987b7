#include "capacity/files/gguf.hpp"

#include "base/excerpt.hpp"
#include "capacity/files/byte_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

// Numbers: enum ggml_type in llama.cpp's ggml/include/ggml.h. Names: the type_traits of
// ggml/src/ggml.c. Blocks: the block_* structures of ggml/src/ggml-common.h, whose sizes are
// static_asserted there (llama.cpp at 01243c587fec).
constexpr std::array<GgmlType, 35> kGgmlTypes = {{
    {0, "f32", 1, 4},         {1, "f16", 1, 2},         {2, "q4_0", 32, 18},
    {3, "q4_1", 32, 20},      {6, "q5_0", 32, 22},      {7, "q5_1", 32, 24},
    {8, "q8_0", 32, 34},      {9, "q8_1", 32, 36},      {10, "q2_K", 256, 84},
    {11, "q3_K", 256, 110},   {12, "q4_K", 256, 144},   {13, "q5_K", 256, 176},
    {14, "q6_K", 256, 210},   {15, "q8_K", 256, 292},   {16, "iq2_xxs", 256, 66},
    {17, "iq2_xs", 256, 74},  {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},
    {20, "iq4_nl", 32, 18},   {21, "iq3_s", 256, 110},  {22, "iq2_s", 256, 82},
    {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},         {25, "i16", 1, 2},
    {26, "i32", 1, 4},        {27, "i64", 1, 8},        {28, "f64", 1, 8},
    {29, "iq1_m", 256, 56},   {30, "bf16", 1, 2},       {34, "tq1_0", 256, 54},
    {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},    {40, "nvfp4", 64, 36},
    {41, "q1_0", 128, 18},    {42, "q2_0", 64, 18},
}};

constexpr std::int64_t kMaxHeaderBytes = std::int64_t{256} << 20;
constexpr std::uint64_t kMaxKeys = std::uint64_t{64} << 10;
constexpr std::uint64_t kMaxTensors = std::uint64_t{256} << 10;
constexpr std::uint64_t kMaxKeyBytes = 65535;      // gguf.md
constexpr std::uint64_t kMaxTensorNameBytes = 64;  // gguf.md
constexpr std::uint32_t kMaxDimensions = 4;        // gguf.md
constexpr std::uint64_t kDefaultAlignment = 32;    // gguf.md
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 30;

class Parser {
 public:
  Parser(const ByteSource& source, GgufHeader& header)
      : source_(source), header_(header), in_(source, kMaxHeaderBytes), values_(in_) {}

  bool parse() { return counts() && metadata() && alignment() && tensors() && placement(); }
  const ReadFailure& failure() const { return in_.failure(); }

 private:
  bool counts() {
    std::array<char, 4> magic{};
    if (source_.size_bytes() == 0) return in_.refuse(0, "an empty file", "a GGUF file");
    if (!in_.number(magic, "the magic number \"GGUF\"")) return false;
    const std::string_view seen(magic.data(), magic.size());
    if (seen != "GGUF") return in_.refuse(0, excerpt_of(seen), "\"GGUF\"", "this is no GGUF file");
    std::uint32_t& version = header_.version;
    if (!in_.number(version, "the version")) return false;
    if ((version & 0xffff) == 0 && version != 0) {
      return in_.refuse(4, "a big-endian version", "a little-endian file",
                        "convert the file with gguf-py's gguf_convert_endian");
    }
    if (version != 2 && version != 3) {
      return in_.refuse(4, fmt::format("version {}", version), "version 2 or 3",
                        version == 1 ? "convert the model again with a current llama.cpp" : "");
    }
    if (!in_.number(num_tensors_, "the number of tensors")) return false;
    if (num_tensors_ > kMaxTensors) {
      return in_.refuse(in_.offset() - 8, fmt::format("{} tensors", num_tensors_),
                        fmt::format("at most {}", kMaxTensors));
    }
    if (!in_.number(num_keys_, "the number of keys")) return false;
    if (num_keys_ <= kMaxKeys) return true;
    return in_.refuse(in_.offset() - 8, fmt::format("{} keys", num_keys_),
                      fmt::format("at most {}", kMaxKeys));
  }

  bool metadata() {
    for (std::uint64_t i = 0; i < num_keys_; ++i) {
      const std::int64_t begin = in_.offset();
      std::string key;
      if (!values_.name(key, kMaxKeyBytes, "a key")) return false;
      const auto [entry, is_new] = header_.metadata.try_emplace(std::move(key));
      if (!is_new) {
        return in_.refuse(begin, fmt::format("the key {} again", excerpt_of(entry->first, 80)),
                          "each key once");
      }
      if (!values_.value(entry->second)) return false;
    }
    return true;
  }

  bool alignment() {
    const GgufValue* value = header_.find("general.alignment");
    if (value == nullptr) return true;
    const auto* number = std::get_if<std::int64_t>(value);
    const std::int64_t given = number != nullptr ? *number : 0;
    alignment_ = static_cast<std::uint64_t>(given);
    if (given > 0 && alignment_ <= kMaxAlignment && (alignment_ & (alignment_ - 1)) == 0)
      return true;
    return in_.refuse(in_.offset(), fmt::format("general.alignment: {}", name_of(*value)),
                      fmt::format("a power of two up to {}", kMaxAlignment));
  }

  bool tensors() {
    for (std::uint64_t i = 0; i < num_tensors_; ++i) {
      const std::int64_t begin = in_.offset();
      TensorInfo tensor;
      if (!values_.name(tensor.name, kMaxTensorNameBytes, "a tensor's name")) return false;
      if (!shape(tensor) || !type(tensor, begin) || !offset(tensor)) return false;
      tensors_.push_back(std::move(tensor));
    }
    return true;
  }

  bool shape(TensorInfo& tensor) {
    std::uint32_t dimensions = 0;
    if (!in_.number(dimensions, "the number of a tensor's dimensions")) return false;
    if (dimensions > kMaxDimensions) {
      return in_.refuse(in_.offset() - 4,
                        fmt::format("{} dimensions of {}", dimensions, excerpt_of(tensor.name)),
                        fmt::format("at most {}", kMaxDimensions));
    }
    tensor.elements = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      std::uint64_t dimension = 0;
      if (!in_.number(dimension, "a tensor's dimension")) return false;
      tensor.shape.push_back(static_cast<std::int64_t>(dimension));
      tensor.elements = checked_product(tensor.elements, tensor.shape.back());
      if (tensor.elements >= 0) continue;
      return in_.refuse(in_.offset() - 8,
                        fmt::format("the dimension {} of {}", dimension, excerpt_of(tensor.name)),
                        "a product of dimensions below 2^63");
    }
    return true;
  }

  bool type(TensorInfo& tensor, std::int64_t begin) {
    std::uint32_t number = 0;
    if (!in_.number(number, "a tensor's type")) return false;
    const GgmlType* type = find_ggml_type(number);
    if (type == nullptr) {
      return in_.refuse(in_.offset() - 4,
                        fmt::format("ggml type {} of {}", number, excerpt_of(tensor.name)),
                        fmt::format("a type that ggml has: 0 .. {}, but those it gave up",
                                    ggml_types().back().number),
                        "convert the model again with a current llama.cpp");
    }
    tensor.type = type->name;
    const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.front();
    if (row % type->block_elements != 0) {
      return in_.refuse(begin, fmt::format("rows of {} in {}", row, excerpt_of(tensor.name)),
                        fmt::format("whole blocks of {} elements, for its type {}",
                                    type->block_elements, type->name));
    }
    tensor.bytes = checked_product(tensor.elements / type->block_elements, type->block_bytes);
    if (tensor.bytes >= 0) return true;
    return in_.refuse(begin,
                      fmt::format("{} elements in {}", tensor.elements, excerpt_of(tensor.name)),
                      "fewer than 2^63 bytes");
  }

  bool offset(TensorInfo& tensor) {
    std::uint64_t offset = 0;
    if (!in_.number(offset, "a tensor's offset")) return false;
    tensor.offset = static_cast<std::int64_t>(offset);
    if (offset % alignment_ == 0) return true;
    return in_.refuse(in_.offset() - 8,
                      fmt::format("the offset {} of {}", offset, excerpt_of(tensor.name)),
                      fmt::format("a multiple of the alignment, {}", alignment_));
  }

  // Every tensor lies in the file, and none in another.
  bool placement() {
    const auto aligned = static_cast<std::int64_t>(alignment_);
    header_.header_bytes = (in_.offset() + aligned - 1) / aligned * aligned;
    const std::int64_t room = source_.size_bytes() - header_.header_bytes;
    std::vector<const TensorInfo*> by_offset;
    for (const TensorInfo& tensor : tensors_) {
      if (tensor.offset >= 0 && tensor.offset <= room && tensor.bytes <= room - tensor.offset) {
        by_offset.push_back(&tensor);
        continue;
      }
      return in_.refuse(header_.header_bytes,
                        fmt::format("{} bytes of tensors' data", std::max<std::int64_t>(room, 0)),
                        fmt::format("{} of {} at offset {}", tensor.bytes, excerpt_of(tensor.name),
                                    static_cast<std::uint64_t>(tensor.offset)),
                        "the file is cut off or damaged");
    }
    std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
      return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
    });
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
      const TensorInfo& before = *by_offset[i - 1];
      const TensorInfo& tensor = *by_offset[i];
      if (tensor.offset - before.offset >= before.bytes) continue;
      return in_.refuse(
          header_.header_bytes + tensor.offset,
          fmt::format("{} inside {}", excerpt_of(tensor.name), excerpt_of(before.name)),
          "tensors that do not overlap");
    }
    header_.weights = index_of(std::move(tensors_));
    const std::string_view repeated = TensorNames(header_.weights.tensors).repeated();
    if (repeated.empty()) return true;
    return in_.refuse(in_.offset(), fmt::format("two tensors {}", excerpt_of(repeated, 80)),
                      "each name once");
  }

  const ByteSource& source_;
  GgufHeader& header_;
  ByteCursor in_;
  GgufValueReader values_;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_keys_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::vector<TensorInfo> tensors_;
};

// ---- split models -------------------------------------------------------------------------------

// A split model's files are numbered with five digits (llama_split_path of llama.cpp).
constexpr std::int64_t kMaxParts = 99999;
constexpr std::size_t kMaxTensorsOfModel = std::size_t{1} << 20;

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

// ---- types and headers --------------------------------------------------------------------------

std::span<const GgmlType> ggml_types() noexcept { return kGgmlTypes; }

const GgmlType* find_ggml_type(std::uint32_t number) noexcept {
  const auto* found = std::find_if(kGgmlTypes.begin(), kGgmlTypes.end(),
                                   [number](const auto& type) { return type.number == number; });
  return found == kGgmlTypes.end() ? nullptr : found;
}

const GgufValue* GgufHeader::find(std::string_view key) const noexcept {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufHeader::number(std::string_view key) const noexcept {
  const auto* value = std::get_if<std::int64_t>(find(key));
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<std::string_view> GgufHeader::text(std::string_view key) const noexcept {
  const auto* value = std::get_if<std::string>(find(key));
  return value != nullptr ? std::optional<std::string_view>(*value) : std::nullopt;
}

std::optional<std::int64_t> GgufHeader::length(std::string_view key) const noexcept {
  const auto* value = std::get_if<GgufArray>(find(key));
  return value != nullptr ? std::optional(value->length) : std::nullopt;
}

Status parse_gguf(const ByteSource& source, GgufHeader& header, ReadFailure& failure) {
  header = {};
  Parser parser(source, header);
  if (parser.parse()) return {};
  failure = parser.failure();
  return status_of(failure);
}

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
    if (tensors.size() > kMaxTensorsOfModel) {
      return refuse(failure, name,
                    {.found = fmt::format("{} tensors up to here", tensors.size()),
                     .expected = fmt::format("at most {}", kMaxTensorsOfModel)});
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
