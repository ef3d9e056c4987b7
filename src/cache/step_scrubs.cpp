#include "cache/step_scrubs.hpp"

#include "cache/cache_scrubs.hpp"
#include "cache/scrub_params.hpp"
#include "kernels/reference/kv_write.hpp"

#include <algorithm>

namespace kvarena {

StepScrubs::StepScrubs(const Arena& arena, const StepLimits& limits)
    : params_(group_scrub_params(arena)) {
  const GroupLayout& layout = *arena.groups();
  const auto add = [&](std::int64_t most) {
    lists_.push_back({LazyArray<kernels::BlockScrub>(static_cast<std::size_t>(most))});
  };
  add(arena.num_blocks());
  for (std::size_t part = 0; part < layout.parts().size(); ++part) {
    add(CacheScrubs::max_entries(table_group(layout, part), limits));
  }
}

bool StepScrubs::capture(std::span<const ScrubPlan> plans) noexcept {
  bool has_any = false;
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    const ScrubPlan& plan = plans[i];
    auto* const clears =
        std::copy(plan.copies.begin(), plan.copies.end(), lists_[i].scrubs.begin());
    std::copy(plan.clears.begin(), plan.clears.end(), clears);
    lists_[i].count = plan.copies.size() + plan.clears.size();
    has_any = has_any || lists_[i].count > 0;
  }
  return has_any;
}

void StepScrubs::run() const {
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    for (kernels::ScrubParams its : params_[i]) {
      its.scrubs = lists_[i].scrubs.data();
      its.num_scrubs = static_cast<std::int64_t>(lists_[i].count);
      kernels::reference::scrub(its);
    }
  }
}

}  // namespace kvarena
