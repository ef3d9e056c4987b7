#include "scenarios/process_memory.hpp"

#include <unistd.h>

#include <fstream>

namespace kvarena::replay::pressure {

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace kvarena::replay::pressure
