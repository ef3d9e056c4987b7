#pragma once

/// @file
/// Writes safetensors headers for tests, well-formed or not.

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::test {

/// The file with this header and so many zeros behind it.
inline std::string safetensors_bytes(std::string_view header, std::int64_t data_bytes) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += header;
  bytes.append(static_cast<std::size_t>(data_bytes), '\0');
  return bytes;
}

/// One header; tensors follow each other without holes.
class SafetensorsWriter {
 public:
  /// A tensor of `bytes` bytes.
  SafetensorsWriter& tensor(std::string_view name, std::string_view dtype,
                            const std::vector<std::int64_t>& shape, std::int64_t bytes) {
    const std::int64_t end = data_bytes_ + bytes;
    return raw(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name,
                           dtype, fmt::join(shape, ","), data_bytes_, end),
               bytes);
  }
  /// Members of the header as they are, which stand for `bytes` bytes.
  SafetensorsWriter& raw(std::string_view members, std::int64_t bytes = 0) {
    if (!members_.empty()) members_ += ",";
    members_ += members;
    data_bytes_ += bytes;
    return *this;
  }
  std::string header() const { return fmt::format("{{{}}}", members_); }
  std::int64_t data_bytes() const { return data_bytes_; }
  std::string file() const { return safetensors_bytes(header(), data_bytes_); }

 private:
  std::string members_;
  std::int64_t data_bytes_ = 0;
};

}  // namespace kvarena::test
