#include "kvarena/base/clock.hpp"

#include <chrono>

namespace kvarena {
namespace {

/// The clock of std::chrono, as a Clock.
class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& steady_clock() noexcept {
  static const SteadyClock clock;
  return clock;
}

}  // namespace kvarena
