// Levels, hysteresis, and what an event says.

#include "support/status_matchers.hpp"

#include "kvarena/health/pressure.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace kvarena {
namespace {

using enum PressureLevel;

PressureFigures blocks(std::int64_t available, std::int64_t total = 1000) {
  return {.available_blocks = available, .num_blocks = total};
}
PressureFigures vram(std::uint64_t free, std::uint64_t total = 100000) {
  return {.free_vram_bytes = free, .total_vram_bytes = total};
}

/// The level after `figures`.
PressureLevel observe(PressureGauge& gauge, const PressureFigures& figures) {
  static_cast<void>(gauge.observe(figures));
  return gauge.level();
}

TEST(PressureTest, LevelsAreEnteredAtTheirThresholds) {
  const struct {
    std::int64_t available;
    PressureLevel level;
  } cases[] = {{1000, normal}, {201, normal}, {200, elevated}, {51, elevated},
               {50, critical}, {1, critical}, {0, exhausted}};
  for (const auto& [available, level] : cases) {
    auto gauge = PressureGauge::create();
    ASSERT_OK(gauge);
    EXPECT_EQ(observe(*gauge, blocks(available)), level) << available << " of 1000 blocks";
  }
}

TEST(PressureTest, ALevelIsLeftPastItsThresholdByTheHysteresis) {
  auto gauge = PressureGauge::create();
  ASSERT_OK(gauge);
  const struct {
    std::int64_t available;
    PressureLevel level;
  } walk[] = {{0, exhausted},  {20, exhausted}, {21, critical}, {70, critical},  {71, elevated},
              {220, elevated}, {221, normal},   {201, normal},  {200, elevated}, {1000, normal},
              {0, exhausted},  {1000, normal},  {60, elevated}, {70, elevated},  {50, critical},
              {60, critical},  {215, elevated}, {0, exhausted}, {215, elevated}};
  for (const auto& [available, level] : walk) {
    EXPECT_EQ(observe(*gauge, blocks(available)), level) << available << " of 1000 blocks";
  }
}

TEST(PressureTest, AFigureThatTremblesMakesOneEvent) {
  auto gauge = PressureGauge::create();
  ASSERT_OK(gauge);
  int events = 0;
  for (int i = 0; i < 1000; ++i) events += gauge->observe(blocks(195 + i % 10)) ? 1 : 0;
  EXPECT_EQ(events, 1);
  EXPECT_EQ(gauge->entered()[static_cast<std::size_t>(elevated)], 1U);
}

TEST(PressureTest, TheHigherOfTheTwoLevelsCounts) {
  auto gauge = PressureGauge::create();
  ASSERT_OK(gauge);
  PressureFigures figures{.available_blocks = 150,
                          .num_blocks = 1000,
                          .free_vram_bytes = 1000,
                          .total_vram_bytes = 100000};
  auto event = gauge->observe(figures);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->from, normal);
  EXPECT_EQ(event->to, critical);
  EXPECT_TRUE(event->by_vram);
  figures.free_vram_bytes = 90000;
  event = gauge->observe(figures);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->to, elevated);
  EXPECT_TRUE(event->by_vram) << "VRAM had decided the level that was left";
  figures.available_blocks = 0;
  event = gauge->observe(figures);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->to, exhausted);
  EXPECT_FALSE(event->by_vram);
  EXPECT_EQ(to_string(*event),
            "level=exhausted previous=elevated cause=blocks available_blocks=0 num_blocks=1000 "
            "free_vram_bytes=90000 total_vram_bytes=100000");
}

TEST(PressureTest, VramIsWatchedOnlyOnRequestAndWhereKnown) {
  auto blind = PressureGauge::create({.watch_vram = false});
  auto gauge = PressureGauge::create();
  ASSERT_OK(blind);
  ASSERT_OK(gauge);
  EXPECT_EQ(observe(*blind, vram(0)), normal);
  EXPECT_EQ(observe(*gauge, vram(0)), exhausted);
  EXPECT_EQ(observe(*gauge, PressureFigures{}), normal) << "nothing is known";
}

TEST(PressureTest, CountsHowOftenEachLevelWasEntered) {
  auto gauge = PressureGauge::create();
  ASSERT_OK(gauge);
  for (int i = 0; i < 3; ++i) {
    observe(*gauge, blocks(0));
    observe(*gauge, blocks(1000));
  }
  observe(*gauge, blocks(40));
  const std::array<std::uint64_t, kNumPressureLevels> expected{3, 0, 1, 3};
  EXPECT_EQ(gauge->entered(), expected);
}

/// What the hysteresis means, without the gauge's way to compute it: all thresholds at or below
/// `level` act raised by it.
TEST(PressureTest, AgreesWithThePlainRuleOnRandomWalks) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const std::array<std::int64_t, 3> at = {static_cast<std::int64_t>(random() % 300 + 200),
                                            static_cast<std::int64_t>(random() % 200), 0};
    const auto slack = static_cast<std::int64_t>(random() % 100);
    auto gauge = PressureGauge::create(
        {.blocks = {static_cast<double>(at[0]) / 1024.0, static_cast<double>(at[1]) / 1024.0, 0.0},
         .hysteresis = static_cast<double>(slack) / 1024.0});
    ASSERT_OK(gauge);
    std::size_t level = 0;
    for (int i = 0; i < 300; ++i) {
      const auto available = static_cast<std::int64_t>(random() % 700);
      std::size_t expected = 0;
      for (std::size_t l = 1; l <= 3; ++l) {
        if (available <= at[l - 1] + (l <= level ? slack : 0)) expected = l;
      }
      level = expected;
      ASSERT_EQ(static_cast<std::size_t>(observe(*gauge, blocks(available, 1024))), expected)
          << available << " of 1024, round " << round;
    }
  }
}

TEST(PressureTest, RefusesSharesOutOfRangeOrOrder) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<PressureOptions> refused = {
      {.blocks = {-0.1, 0.0, 0.0}},  {.blocks = {1.5, 0.0, 0.0}}, {.blocks = {0.1, 0.2, 0.0}},
      {.blocks = {0.2, 0.1, 0.15}},  {.vram = {0.1, 0.05, 0.06}}, {.vram = {0.1, -0.05, -0.1}},
      {.hysteresis = -0.1},          {.hysteresis = 0.6},         {.hysteresis = nan},
      {.blocks = {nan, 0.0, 0.0}},   {.vram = {0.1, nan, 0.0}},   {.vram = {0.1, 0.1, nan}},
      {.blocks = {0.98, 0.05, 0.0}},  // with a hysteresis of 0.02 it could never be left
  };
  for (std::size_t i = 0; i < refused.size(); ++i) {
    const Option named = i >= 6 && i <= 8                         ? Option::hysteresis
                         : i == 4 || i == 5 || i == 10 || i == 11 ? Option::vram
                                                                  : Option::blocks;
    EXPECT_TRUE(
        test::fails_with(PressureGauge::create(refused[i]), StatusCode::invalid_argument, named))
        << "case " << i;
  }
  EXPECT_OK(PressureGauge::create({.blocks = {0.5, 0.5, 0.5}, .hysteresis = 0.0}));
}

}  // namespace
}  // namespace kvarena
