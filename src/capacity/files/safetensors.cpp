#include "capacity/files/safetensors.hpp"

#include "base/excerpt.hpp"
#include "capacity/files/bounded_json.hpp"
#include "capacity/files/byte_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvarena::capacity {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // MAX_HEADER_SIZE of tensor.rs
constexpr std::int64_t kLengthBytes = 8;
constexpr JsonLimits kLimits{
    .max_bytes = kMaxHeaderBytes, .max_depth = 3, .max_values = std::int64_t{2} << 20};

struct SafetensorsType {
  std::string_view name;
  std::int64_t bits;  // of an element
};

// Dtype::bitsize of tensor.rs (safetensors at 24b0b2857fef).
constexpr std::array<SafetensorsType, 22> kTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

// A tensor and what the JSON says of its place.
struct Entry {
  TensorInfo tensor;
  std::int64_t bits = 0;
  std::array<std::int64_t, 2> offsets{};  // begin, end
};

// Takes the JSON of a header: {"NAME": {"dtype": "F16", "shape": [1, 16], "data_offsets": [0, 32]},
// "__metadata__": {"KEY": "TEXT"}}.
class HeaderReceiver final : public JsonReceiver {
 public:
  std::vector<Entry> take_entries() { return std::move(entries_); }

  std::optional<Finding> key(std::string_view name) override {
    if (at_ == At::top) {
      is_metadata_ = name == "__metadata__";
      if (!is_metadata_) entries_.emplace_back().tensor.name = name;
      num_offsets_ = 0;
    } else if (at_ == At::tensor) {
      const auto* field = std::find(kFields.begin(), kFields.end(), name);
      if (field == kFields.end()) return defect(excerpt_of(name), kAnyField);
      field_ = static_cast<std::size_t>(field - kFields.begin());
      given_[field_] = true;
    }
    return {};
  }

  std::optional<Finding> open_object() override {
    if (at_ == At::outside) {
      at_ = At::top;
    } else if (at_ == At::top) {
      at_ = is_metadata_ ? At::metadata : At::tensor;
      given_ = {};
    } else {
      return unexpected("an object");
    }
    return {};
  }

  std::optional<Finding> open_array() override {
    if (at_ != At::tensor || field_ == kDtype) return unexpected("an array");
    at_ = At::numbers;
    return {};
  }

  std::optional<Finding> close() override {
    switch (at_) {
      case At::numbers:
        at_ = At::tensor;
        if (field_ != kOffsets || num_offsets_ == 2) return {};
        return defect(fmt::format("{} offsets", num_offsets_), "a begin and an end");
      case At::tensor:
        at_ = At::top;
        for (std::size_t i = 0; i < given_.size(); ++i) {
          if (!given_[i]) {
            return defect(fmt::format("no {}", kFields[i]), kAnyField);
          }
        }
        return {};
      case At::metadata: at_ = At::top; return {};
      default: at_ = At::outside; return {};
    }
  }

  std::optional<Finding> scalar(const JsonScalar& value) override {
    if (at_ == At::metadata && std::holds_alternative<std::string_view>(value)) return {};
    if (at_ == At::tensor && field_ == kDtype) return dtype(value);
    if (at_ == At::numbers) {
      const auto* number = std::get_if<std::uint64_t>(&value);
      if (number != nullptr && *number <= INT64_MAX) {
        const auto whole = static_cast<std::int64_t>(*number);
        if (field_ == kShape) {
          entry().tensor.shape.push_back(whole);
        } else if (++num_offsets_ <= entry().offsets.size()) {
          entry().offsets[num_offsets_ - 1] = whole;
        }
        return {};
      }
    }
    return unexpected(name_of(value));
  }

 private:
  enum class At : std::uint8_t { outside, top, metadata, tensor, numbers };
  static constexpr std::size_t kDtype = 0;
  static constexpr std::size_t kShape = 1;
  static constexpr std::size_t kOffsets = 2;
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
  static constexpr auto kAnyField = "\"dtype\", \"shape\" and \"data_offsets\"";

  Entry& entry() { return entries_.back(); }

  std::optional<Finding> dtype(const JsonScalar& value) {
    const auto* name = std::get_if<std::string_view>(&value);
    for (const SafetensorsType& type : kTypes) {
      if (name == nullptr || type.name != *name) continue;
      entry().tensor.type = type.name;
      entry().bits = type.bits;
      return {};
    }
    return defect(name_of(value), "a dtype of safetensors, such as \"BF16\"");
  }

  std::optional<Finding> unexpected(std::string found) const {
    switch (at_) {
      case At::outside: return defect(std::move(found), "an object of tensors");
      case At::top:
        return defect(std::move(found), is_metadata_ ? "an object of texts" : "a tensor's object");
      case At::metadata: return defect(std::move(found), "a text");
      case At::tensor:
        return defect(std::move(found), field_ == kDtype ? "a text" : "an array of whole numbers");
      case At::numbers: break;
    }
    return defect(std::move(found), "a whole number, 0 .. 2^63 - 1");
  }

  std::vector<Entry> entries_;
  At at_ = At::outside;
  bool is_metadata_ = false;
  std::size_t field_ = 0;
  std::size_t num_offsets_ = 0;  // of the tensor
  std::array<bool, 3> given_{};
};

class Parser {
 public:
  Parser(const ByteSource& source, ReadFailure& failure) : source_(source), failure_(failure) {}

  Status parse(TensorIndex& index) {
    std::string header;
    if (Status read = text(header); !read) return read;
    HeaderReceiver receiver;
    const JsonText json{header, source_.name(), kLengthBytes};
    if (Status read = stream_json(json, kLimits, receiver, failure_); !read) return read;
    const auto header_bytes = static_cast<std::int64_t>(header.size());
    header = {};
    data_begin_ = kLengthBytes + header_bytes;
    std::vector<Entry> entries = receiver.take_entries();
    if (Status sized = sizes(entries); !sized) return sized;
    if (Status placed = placement(entries); !placed) return placed;
    std::vector<TensorInfo> tensors;
    tensors.reserve(entries.size());
    for (Entry& entry : entries) tensors.push_back(std::move(entry.tensor));
    index = index_of(std::move(tensors));  // an object has no key twice
    return {};
  }

 private:
  Status refuse(std::int64_t place, std::string found, std::string expected,
                std::string advice = "") {
    return capacity::refuse(failure_, source_.name(),
                            {.subject = fmt::format("byte {}", place),
                             .found = std::move(found),
                             .expected = std::move(expected),
                             .advice = std::move(advice)});
  }

  Status text(std::string& header) {
    const std::int64_t size = source_.size_bytes();
    if (size < kLengthBytes) {
      return refuse(0, fmt::format("{} bytes", size), "8 bytes of the header's length",
                    "the file is cut off or damaged");
    }
    ByteCursor in(source_, size);
    std::uint64_t length = 0;
    const bool read = in.number(length, "the header's length");
    if (read && length > kMaxHeaderBytes) {
      return refuse(0, fmt::format("a header of {} bytes", length),
                    fmt::format("at most {}", kMaxHeaderBytes), "this is no safetensors file");
    }
    if (!read || !in.text(header, length, "a header")) {
      failure_ = in.failure();
      return status_of(failure_);
    }
    if (header.starts_with('{')) return {};
    return refuse(kLengthBytes, header.empty() ? "nothing" : excerpt_of(header), "'{'",
                  "this is no safetensors file");
  }

  Status sizes(std::vector<Entry>& entries) {
    for (Entry& entry : entries) {
      TensorInfo& tensor = entry.tensor;
      tensor.elements = 1;
      for (const std::int64_t dimension : tensor.shape) {
        tensor.elements = checked_product(tensor.elements, dimension);
      }
      const std::int64_t bits = checked_product(tensor.elements, entry.bits);
      if (bits < 0 || bits % 8 != 0) {
        return refuse(data_begin_, fmt::format("the shape of {}", excerpt_of(tensor.name, 80)),
                      bits < 0 ? "fewer than 2^63 bits" : "whole bytes");
      }
      tensor.bytes = bits / 8;
      tensor.offset = entry.offsets[0];
      if (entry.offsets[1] >= tensor.offset && entry.offsets[1] - tensor.offset == tensor.bytes) {
        continue;
      }
      return refuse(data_begin_,
                    fmt::format("the offsets {} and {} of {}", entry.offsets[0], entry.offsets[1],
                                excerpt_of(tensor.name, 80)),
                    fmt::format("{} bytes, by its shape and dtype", tensor.bytes));
    }
    return {};
  }

  // The tensors fill the rest of the file, without holes or overlaps.
  Status placement(std::vector<Entry>& entries) {
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
    std::int64_t end = 0;
    for (const Entry& entry : entries) {
      if (entry.offsets[0] != end) {
        return refuse(
            data_begin_ + std::min(end, source_.size_bytes() - data_begin_),
            fmt::format("{} at offset {}", excerpt_of(entry.tensor.name, 80), entry.offsets[0]),
            fmt::format("a tensor at offset {}: no holes, no overlaps", end));
      }
      end = entry.offsets[1];
    }
    const std::int64_t there = source_.size_bytes() - data_begin_;
    if (there == end) return {};
    return refuse(data_begin_, fmt::format("{} bytes of tensors' data", there),
                  fmt::format("{}, as the header says", end), "the file is cut off or damaged");
  }

  const ByteSource& source_;
  ReadFailure& failure_;
  std::int64_t data_begin_ = 0;
};

}  // namespace

Status parse_safetensors(const ByteSource& source, TensorIndex& index, ReadFailure& failure) {
  index = {};
  return Parser(source, failure).parse(index);
}

}  // namespace kvarena::capacity
