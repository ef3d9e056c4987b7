#include "effects/shrink.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvarena::test {
namespace {

std::size_t count_of(const Program& program, std::uint32_t kind) {
  return static_cast<std::size_t>(
      std::count_if(program.operations.begin(), program.operations.end(),
                    [&](const Operation& o) { return o.kind == kind; }));
}

Program program_of(std::size_t length) {
  std::mt19937_64 random(7);
  static constexpr std::array<KindWeight, 4> kWeights = {{{0, 1}, {1, 1}, {2, 1}, {3, 1}}};
  Program program = random_program(random, kWeights, length);
  for (std::size_t i = 0; i < length; ++i) program.operations[i].kind = i % 4;
  return program;
}

TEST(Shrink, KeepsOnlyWhatFails) {
  const Program shortest =
      shrink(program_of(400), [](const Program& p) { return count_of(p, 2) >= 3; });
  ASSERT_EQ(shortest.operations.size(), 3U);
  EXPECT_EQ(count_of(shortest, 2), 3U);
  for (const Operation& operation : shortest.operations) {
    EXPECT_EQ(operation.numbers, (std::array<std::uint32_t, 4>{}));
  }
  EXPECT_EQ(shortest.setup, (std::array<std::uint32_t, 8>{}));
}

TEST(Shrink, KeepsTheOrderOfWhatFails) {
  const Program shortest = shrink(program_of(300), [](const Program& p) {
    const auto three = std::find_if(p.operations.begin(), p.operations.end(),
                                    [](const Operation& o) { return o.kind == 3; });
    return std::any_of(three, p.operations.end(), [](const Operation& o) { return o.kind == 1; });
  });
  ASSERT_EQ(shortest.operations.size(), 2U);
  EXPECT_EQ(shortest.operations[0].kind, 3U);
  EXPECT_EQ(shortest.operations[1].kind, 1U);
}

TEST(Shrink, TakesPairsOutThatOnlyGoTogether) {
  const Program shortest = shrink(program_of(30), [](const Program& p) {
    return count_of(p, 0) == count_of(p, 1) && count_of(p, 3) >= 1;
  });
  EXPECT_EQ(shortest.operations.size(), 1U);
}

TEST(Shrink, MakesNumbersAsSmallAsTheFailureAllows) {
  Program program = program_of(20);
  program.operations[5].numbers[2] = 900;
  program.setup[3] = 641;
  const Program shortest = shrink(program, [](const Program& p) {
    return p.setup[3] % 10 == 1 &&
           std::any_of(p.operations.begin(), p.operations.end(),
                       [](const Operation& o) { return o.numbers[2] >= 117; });
  });
  ASSERT_EQ(shortest.operations.size(), 1U);
  EXPECT_EQ(shortest.operations[0].numbers[2], 117U);
  EXPECT_EQ(shortest.setup[3], 1U);
}

TEST(Shrink, StopsAtItsLimit) {
  const Program program = program_of(50);
  std::size_t runs = 0;
  const Program shorter = shrink(
      program, [&](const Program&) { return ++runs > 0; }, 3);
  EXPECT_EQ(runs, 3U);
  EXPECT_LT(shorter.operations.size(), program.operations.size());
}

TEST(Shrink, LeavesWhatCannotBecomeShorter) {
  const Program program = program_of(12);
  EXPECT_EQ(shrink(program, [&](const Program& p) { return p == program; }), program);
}

}  // namespace
}  // namespace kvarena::test
