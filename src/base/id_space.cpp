#include "base/id_space.hpp"

#include <array>
#include <atomic>

namespace kvarena {
namespace {

/// The number of ranges that each kind of object has taken. The numbers order nothing but ids.
std::array<std::atomic<std::uint64_t>, 4> ranges_taken{};

}  // namespace

std::uint64_t take_id_space(IdKind kind) noexcept {
  auto& taken = ranges_taken[static_cast<std::size_t>(kind)];
  return taken.fetch_add(1, std::memory_order_relaxed) << kIdCountBits;
}

}  // namespace kvarena
