// The arithmetic of plans: formulas make value and text at once, and lines are the plan's figures.

#include "capacity/formula.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace kvarena::capacity {
namespace {

void expect_formula(const Formula& formula, std::int64_t value, const std::string& text) {
  EXPECT_EQ(formula.value(), value) << text;
  EXPECT_EQ(formula.text(), text);
}

TEST(Formula, BindsAsItsTextReads) {
  const Formula two = 2;
  const Formula three(3, "heads");
  expect_formula(two + three, 5, "2 + 3 heads");
  expect_formula(two * (two + three), 10, "2 x (2 + 3 heads)");
  expect_formula(two * three + two, 8, "2 x 3 heads + 2");
  expect_formula((two + two).of("elements") * 3, 12, "(2 + 2) elements x 3");
  expect_formula(Formula(10) - (two + three), 5, "10 - (2 + 3 heads)");
  expect_formula(Formula(10) - two * three, 4, "10 - 2 x 3 heads");
  expect_formula(Formula(3) - 10, -7, "3 - 10");
  expect_formula(Formula(1'234'567), 1'234'567, "1,234,567");
  expect_formula(least({two, three}) + 1, 3, "min(2, 3 heads) + 1");
  expect_formula(largest({two, three, 1}), 3, "max(2, 3 heads, 1)");
}

TEST(Formula, SaysWhereItRounds) {
  expect_formula(rounded_up(128, 32), 4, "128 / 32");
  expect_formula(rounded_up(80, 32), 3, "ceil(80 / 32)");
  expect_formula(rounded_down(80, 32), 2, "floor(80 / 32)");
  expect_formula(rounded_down(-80, 32), -3, "floor(-80 / 32)");
  expect_formula(rounded_up(-80, 32), -2, "ceil(-80 / 32)");
  expect_formula(rounded_up(7, 1), 7, "7");
  expect_formula(rounded_up(Formula(3) + 4, Formula(2) * 2) * 5, 10, "ceil((3 + 4) / (2 x 2)) x 5");
}

TEST(Formula, SaturatesInsteadOfWrapping) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Formula huge = kMost;
  EXPECT_EQ((huge + huge).value(), kMost);
  EXPECT_EQ(rounded_down(huge * huge, kMost).value(), kMost) << "128 bits in between";
  for (int i = 0; i < 4; ++i) huge = huge * huge;
  EXPECT_EQ((huge + huge).value(), kMost);
  EXPECT_EQ((Formula(0) - huge).value(), -kMost);
}

/// The figures of a plan by the names of their lines.
std::map<std::string, std::int64_t> figures_of(const MemoryPlan& plan) {
  return {{"activations", plan.activation_bytes},
          {"overhead", plan.overhead_bytes},
          {"budget", plan.budget_bytes},
          {"K and V of a sequence", plan.bytes_per_sequence},
          {"largest batch", plan.max_batch},
          {"longest context", plan.max_context},
          {"total", plan.total_bytes},
          {"free", plan.free_bytes},
          {"KV cache asked for", plan.asked_kv_bytes},
          {"total asked for", plan.asked_total_bytes}};
}

class PlanLinesOf : public ::testing::TestWithParam<std::string_view> {};

TEST_P(PlanLinesOf, AreThePlansFigures) {
  const ModelSpec model = *find_model_preset(GetParam());
  PlanOptions options{.memory_bytes = 150'109'880'320,
                      .context_tokens = std::min<std::int64_t>(model.shape.max_position, 9001),
                      .batch = 7,
                      .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = 132}};
  for (const KeptTokens kept : {KeptTokens::full, KeptTokens::model}) {
    for (const std::int32_t ranks : tensor_parallel_choices(model)) {
      options.kept = kept;
      options.tensor_parallel = ranks;
      const MemoryPlan planned = plan(model, options).value();
      std::int64_t weights = 0;
      std::int64_t pools = 0;
      std::size_t found = 0;
      const auto figures = figures_of(planned);
      for (const PlanLine& line : planned.lines) {
        if (line.name.starts_with("weights")) weights += line.value;
        if (line.name.ends_with(": pool") || line.name == "pool") pools += line.value;
        const auto figure = figures.find(line.name);
        if (figure == figures.end()) continue;
        ++found;
        EXPECT_EQ(line.value, figure->second) << model.name << ": " << line.name;
      }
      EXPECT_EQ(found, figures.size());
      EXPECT_EQ(weights, planned.weights_bytes) << model.name;
      EXPECT_EQ(pools, planned.kv_cache_bytes) << model.name;
      for (const GroupPlan& group : planned.groups) {
        const std::string name = std::string(name_of(group.memory.kind)) + ": ";
        EXPECT_TRUE(std::ranges::any_of(planned.lines,
                                        [&](const PlanLine& line) {
                                          return line.name.starts_with(name) &&
                                                 line.name.ends_with(" a sequence") &&
                                                 line.value == group.units_per_sequence;
                                        }))
            << model.name << ": " << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, PlanLinesOf, ::testing::ValuesIn(model_preset_names()),
                         [](const auto& test) {
                           std::string name(test.param);
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace kvarena::capacity
