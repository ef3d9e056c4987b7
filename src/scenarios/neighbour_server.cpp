#include "scenarios/neighbour_server.hpp"

#include "verify/device_memory.hpp"

#include <fmt/format.h>

#include <charconv>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::replay::pressure {
namespace {

constexpr std::string_view kTake = "take ";
constexpr std::uint8_t kWritten = 0xa5;

class NeighbourServer {
 public:
  explicit NeighbourServer(Device& device) : device_(device) {}

  std::string take(std::int64_t bytes) {
    auto memory = verify::DeviceMemory::create(device_, bytes, "pressure neighbour");
    Status status = memory ? write(*memory) : memory.status();
    if (!status) return fmt::format("refused {} {}", status.required, status.available);
    held_.push_back(std::move(memory).value());
    total_ += bytes;
    return fmt::format("took {}", total_);
  }
  std::string free() {
    held_.clear();
    return fmt::format("freed {}", std::exchange(total_, 0));
  }

 private:
  Status write(const verify::DeviceMemory& memory) {
    const Result<StreamId> stream = device_.create_stream();
    if (!stream) return stream.status();
    Status status =
        device_.fill(memory.data(), kWritten, static_cast<std::uint64_t>(memory.bytes()), *stream);
    if (status) status = device_.synchronize(*stream);
    const Status destroyed = device_.destroy_stream(*stream);
    return status ? destroyed : status;
  }

  Device& device_;
  std::vector<verify::DeviceMemory> held_;
  std::int64_t total_ = 0;
};

/// BYTES of "take BYTES", or 0.
std::int64_t bytes_to_take(std::string_view line) {
  if (!line.starts_with(kTake)) return 0;
  const std::string_view number = line.substr(kTake.size());
  std::int64_t bytes = 0;
  const char* const last = number.data() + number.size();
  const auto [end, error] = std::from_chars(number.data(), last, bytes);
  return error == std::errc{} && end == last && bytes > 0 ? bytes : 0;
}

}  // namespace

bool serve_neighbour(Device& device, std::istream& in, std::ostream& out) {
  NeighbourServer server(device);
  out << "ready" << std::endl;
  for (std::string line; std::getline(in, line);) {
    if (line == "quit") return true;
    if (line == "free") {
      out << server.free() << std::endl;
    } else if (const std::int64_t bytes = bytes_to_take(line); bytes > 0) {
      out << server.take(bytes) << std::endl;
    } else {
      out << "unknown" << std::endl;
      return false;
    }
  }
  return true;
}

}  // namespace kvarena::replay::pressure
