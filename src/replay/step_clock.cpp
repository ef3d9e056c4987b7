#include "replay/engines.hpp"

#include <limits>

namespace kvarena::replay {
namespace {

std::optional<std::int64_t> sum_of(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// `step_ns + prefill_ns x prompt tokens`, and `decode_ns` if anything decodes.
class FixedClock final : public StepClock {
 public:
  explicit FixedClock(const ReplayCosts& costs) : costs_(costs) {}

  std::optional<std::int64_t> step_ns(const StepLoad& load) const override {
    std::int64_t prompts = 0;
    if (__builtin_mul_overflow(load.prompt_tokens, costs_.prefill_ns, &prompts)) {
      return std::nullopt;
    }
    const auto fixed = sum_of(costs_.step_ns, load.decode_tokens > 0 ? costs_.decode_ns : 0);
    return fixed ? sum_of(prompts, *fixed) : std::nullopt;
  }

 private:
  ReplayCosts costs_;
};

/// What the GPU needs, and `step_ns`.
class RooflineClock final : public StepClock {
 public:
  RooflineClock(const capacity::StepTimeModel& model, std::int64_t step_ns)
      : model_(model), step_ns_(step_ns) {}

  std::optional<std::int64_t> step_ns(const StepLoad& load) const override {
    const std::int64_t needed = model_.time_of(load.rows).total_ns();
    if (needed == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
    return sum_of(needed, step_ns_);
  }

 private:
  capacity::StepTimeModel model_;
  std::int64_t step_ns_;
};

}  // namespace

std::unique_ptr<StepClock> make_step_clock(const ReplayOptions& options) {
  if (options.clock == ClockKind::roofline) {
    return std::make_unique<RooflineClock>(*options.roofline, options.costs.step_ns);
  }
  return std::make_unique<FixedClock>(options.costs);
}

}  // namespace kvarena::replay
