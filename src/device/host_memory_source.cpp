#include "kvarena/device/host_device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

namespace kvarena {
namespace {

constexpr std::uint64_t kBigPageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step) noexcept {
  return (bytes + step - 1) / step * step;
}

std::uint64_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Returns the number behind `key` in a file of "key number" lines, or `otherwise`.
std::uint64_t field_of(const std::string& path, const std::string& key, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  std::string rest;
  while (file >> word) {
    if (word == key && file >> number) return number;
    std::getline(file, rest);
  }
  return otherwise;
}

/// Returns the first number of a file, or kUnlimited for "max" or when there is no such file.
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnlimited;
}

/// Returns this process's folder in the unified control-group hierarchy. It is "" at the root or
/// without one.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::/", 0) == 0) return line.substr(3) == "/" ? "" : line.substr(3);
  }
  return {};
}

/// Returns how much the process's control groups would still give. For each limit on the way to the
/// root, that is the limit minus the memory charged to it. File cache that can be dropped does not
/// count as charged. https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.max,
/// memory.current, memory.stat.
std::uint64_t control_group_available() {
  std::uint64_t available = kUnlimited;
  std::string group = control_group();
  for (;;) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const std::uint64_t limit = number_in(folder + "/memory.max");
    const std::uint64_t charged = number_in(folder + "/memory.current");
    if (limit != kUnlimited && charged != kUnlimited) {
      const std::uint64_t cache = field_of(folder + "/memory.stat", "inactive_file", 0);
      const std::uint64_t held = charged - std::min(charged, cache);
      available = std::min(available, limit - std::min(limit, held));
    }
    if (group.empty()) return available;
    group.erase(group.rfind('/'));
  }
}

/// The operating system's memory: anonymous mappings.
class SystemMemorySource final : public HostMemorySource {
 public:
  void* allocate(std::uint64_t bytes, std::uint64_t alignment_bytes,
                 std::int32_t* native_error) noexcept override {
    const bool big = bytes >= kBigPageBytes;
    const std::uint64_t alignment =
        std::max({alignment_bytes, page_bytes(), big ? kBigPageBytes : std::uint64_t{0}});
    const std::uint64_t kept = round_up(bytes, page_bytes());
    const std::uint64_t mapped = kept + (alignment - page_bytes());
    void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
      *native_error = errno;
      return nullptr;
    }
    char* const first = static_cast<char*>(raw);
    const std::uint64_t head = round_up(reinterpret_cast<std::uintptr_t>(first), alignment) -
                               reinterpret_cast<std::uintptr_t>(first);
    const std::uint64_t tail = mapped - head - kept;
    if (head > 0) ::munmap(first, head);
    if (tail > 0) ::munmap(first + head + kept, tail);
    // This is only a hint. Paged attention reads blocks at random, and small pages would miss the
    // TLB.
    if (big) ::madvise(first + head, kept, MADV_HUGEPAGE);
    return first + head;
  }

  void free(void* pointer, std::uint64_t bytes) noexcept override {
    ::munmap(pointer, round_up(bytes, page_bytes()));
  }

  std::uint64_t available_bytes() const noexcept override {
    try {
      const std::uint64_t machine = field_of("/proc/meminfo", "MemAvailable:", 0) * 1024;
      return std::min(machine, control_group_available());
    } catch (...) {  // reading a file can run out of memory: then none is available
      return 0;
    }
  }
};

}  // namespace

HostMemorySource& system_memory_source() noexcept {
  static SystemMemorySource source;
  return source;
}

}  // namespace kvarena
