// Random programs over the public calls, judged by their effects alone: whoever was promised bytes
// must find them, in whatever order the streams run. It predicts no block, no copy and no count.
//
// KVARENA_EFFECTS_OPERATIONS   operations over all worlds (10,000,000; a hundredth under
// sanitizers, and
//                              a tenth in a debug build)
// KVARENA_SEED                 of the programs (1)

#include "effects/cache_world.hpp"
#include "effects/campaign.hpp"
#include "effects/prefix_world.hpp"
#include "effects/step_world.hpp"
#include "effects/tables_world.hpp"
#include "model/optimised.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace kvarena::test {
namespace {

constexpr std::uint64_t kOperations = kSanitized ? 100'000 : kOptimised ? 10'000'000 : 1'000'000;

/// Plays `percent` percent of the operations in one world.
void expect_promises_kept(const World& world, std::uint64_t percent) {
  const std::uint64_t all = number_from_environment("KVARENA_EFFECTS_OPERATIONS", kOperations);
  const std::uint64_t seed = number_from_environment("KVARENA_SEED", 1);
  const CampaignResult result = run_campaign(world, all * percent / 100, seed);
  std::printf("world of %s: %llu operations in %llu programs, seed %llu, %.0f operations/s\n",
              world.name, static_cast<unsigned long long>(result.operations),
              static_cast<unsigned long long>(result.programs),
              static_cast<unsigned long long>(seed),
              static_cast<double>(result.operations) / result.seconds);
  EXPECT_TRUE(result.report.empty()) << result.failed_programs << " program(s) failed\n"
                                     << result.report;
}

TEST(Effects, TablesKeepTheirPromises) { expect_promises_kept(tables_world(), 60); }
TEST(Effects, CachesKeepTheirPromises) { expect_promises_kept(cache_world(), 25); }
TEST(Effects, StepsKeepTheirPromises) { expect_promises_kept(step_world(), 15); }
// Beside the 100 percent of the others.
TEST(Effects, PrefixPoolsKeepTheirPromises) { expect_promises_kept(prefix_world(), 20); }

}  // namespace
}  // namespace kvarena::test
