#include "base/random_key.hpp"

#include <sys/random.h>

#include <cerrno>

namespace kvarena {

/// Up to 256 bytes come whole, unless the call fails.
Result<std::array<std::uint64_t, 2>> draw_key() noexcept {
  std::array<std::uint64_t, 2> key{};
  while (key[0] == 0 && key[1] == 0) {
    if (::getrandom(key.data(), sizeof(key), 0) == static_cast<ssize_t>(sizeof(key))) continue;
    if (errno == EINTR) continue;
    return Status{StatusCode::io_error, Resource::none, Option::hash_key, errno, 0, 0, 0};
  }
  return key;
}

}  // namespace kvarena
