#include "kvarena/base/choose_pages.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTokens = 131'072;
constexpr std::int64_t kPoolBytes = 40'000'000'000;

PagedGroup full(std::int32_t layers, std::int64_t token_bytes) {
  return {.kind = PagedKind::full, .num_layers = layers, .layer_bytes = 16 * token_bytes};
}
PagedGroup limited(PagedKind kind, std::int32_t layers, std::int64_t token_bytes,
                   std::int64_t limit) {
  return {
      .kind = kind, .num_layers = layers, .layer_bytes = 16 * token_bytes, .limit_tokens = limit};
}
PagedGroup state(std::int32_t layers, std::int64_t bytes) {
  return {.kind = PagedKind::state, .num_layers = layers, .layer_bytes = bytes};
}

/// A model's groups, and what is expected of its pages: blocks of 16 tokens in bf16, states in f32.
struct ModelPages {
  std::string name;
  std::vector<PagedGroup> groups;
  std::int64_t page_bytes;
  std::vector<std::int32_t> parts;
  std::vector<std::int32_t> blocks_per_page;
  std::vector<std::int64_t> id_stride_bytes;
  std::int64_t length;              // of a sequence
  std::vector<std::int64_t> pages;  // of one sequence, by group
  std::int64_t guaranteed;          // sequences in a pool of kPoolBytes
  std::int64_t worst_excess;        // 1/10000
};

void PrintTo(const ModelPages& model, std::ostream* out) { *out << model.name; }

std::vector<ModelPages> attention_models() {
  return {
      {"Gemma_3_27B",
       {full(10, 8192), limited(PagedKind::window, 52, 8192, 1024)},
       6'815'744,
       {1, 1},
       {5, 1},
       {262'144, 6'815'744},
       8192,
       {103, 65},
       34,
       388},
      {"gpt_oss_120b",
       {full(18, 2048), limited(PagedKind::window, 18, 2048, 128)},
       589'824,
       {1, 1},
       {1, 1},
       {589'824, 589'824},
       8192,
       {512, 9},
       130,
       0},
      {"Llama_4_Scout",
       {full(12, 4096), limited(PagedKind::chunk, 36, 4096, 8192)},
       786'432,
       {1, 3},
       {1, 1},
       {786'432, 786'432},
       8192,
       {512, 1536},
       24,
       0},
      {"DeepSeek_V3", {full(61, 1152)}, 1'124'352, {1}, {1}, {1'124'352}, 8192, {512}, 69, 0},
      {"Phi_3_mini_4k",
       {limited(PagedKind::window, 32, 12288, 2047)},
       6'291'456,
       {1},
       {1},
       {6'291'456},
       4096,
       {129},
       49,
       0},
      {"MiMo_V2_Flash",
       {full(9, 2560), limited(PagedKind::window, 39, 5120, 128)},
       1'105'920,
       {1, 3},
       {3, 1},
       {368'640, 1'105'920},
       8192,
       {171, 27},
       182,
       364},
      {"Llama_3_2_11B_Vision",
       {full(32, 4096), limited(PagedKind::cross, 8, 4096, 6404)},
       524'288,
       {4, 1},
       {1, 1},
       {524'288, 524'288},
       8192,
       {2048, 401},
       31,
       0},
  };
}

std::vector<ModelPages> models_with_states() {
  return {
      // 32 value heads of 128 x 128 in f32, 3 x 8,192 elements of convolution in bf16
      {"Qwen3_Next_80B",
       {full(12, 2048), state(36, 32 * 128 * 128 * 4 + 3 * 8192 * 2)},
       4'325'376,
       {1, 18},
       {11, 1},
       {393'216, 4'325'376},
       8192,
       {47, 18},
       142,
       210},
      // 64 heads of 64 x 128 in f32, 3 x 6,144 elements of convolution in bf16
      {"Nemotron_3_Nano",
       {full(6, 1024), state(23, 64 * 64 * 128 * 4 + 3 * 6144 * 2)},
       2'162'688,
       {1, 23},
       {22, 1},
       {98'304, 2'162'688},
       8192,
       {24, 23},
       393,
       352},
      {"Kimi_Linear_48B",
       {full(7, 1152), state(20, 32 * 128 * 128 * 4 + 3 * 12288 * 2)},
       2'193'408,
       {1, 20},
       {17, 1},
       {129'024, 2'193'408},
       8192,
       {31, 20},
       357,
       329},
  };
}

std::vector<ModelPages> models() {
  std::vector<ModelPages> all = attention_models();
  for (const ModelPages& model : models_with_states()) all.push_back(model);
  return all;
}

class PagesOfModels : public ::testing::TestWithParam<ModelPages> {};

TEST_P(PagesOfModels, AreTheOnesOfTheTable) {
  const ModelPages& model = GetParam();
  const Result<PageChoice> choice = choose_pages(model.groups, kMaxTokens);
  ASSERT_OK(choice);
  EXPECT_EQ(choice->page_bytes, model.page_bytes);
  EXPECT_EQ(choice->worst_excess, model.worst_excess);
  ASSERT_EQ(choice->num_groups, model.groups.size());
  std::int64_t pages_of_sequence = 0;
  for (std::size_t g = 0; g < model.groups.size(); ++g) {
    const PagedBlocks& blocks = choice->groups[g];
    EXPECT_EQ(blocks.num_parts, model.parts[g]);
    EXPECT_EQ(blocks.blocks_per_page, model.blocks_per_page[g]);
    EXPECT_EQ(blocks.id_stride_bytes, model.id_stride_bytes[g]);
    EXPECT_EQ(blocks.block_bytes * blocks.num_parts,
              model.groups[g].num_layers * model.groups[g].layer_bytes);
    const std::int64_t pages = pages_of(model.groups[g], blocks, model.length);
    EXPECT_EQ(pages, model.pages[g]);
    pages_of_sequence += pages;
  }
  EXPECT_EQ(kPoolBytes / model.page_bytes / pages_of_sequence, model.guaranteed);
}

INSTANTIATE_TEST_SUITE_P(, PagesOfModels, ::testing::ValuesIn(models()),
                         [](const auto& tested) { return tested.param.name; });

/// The excess of one choice, computed as a user would.
double excess_of(std::span<const PagedGroup> groups, std::span<const std::int32_t> parts,
                 std::int64_t page) {
  double worst = 0;
  for (std::int64_t n = 512; n <= kMaxTokens; n *= 2) {
    double held = 0;
    double wanted = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::int64_t whole = groups[g].num_layers * groups[g].layer_bytes;
      const std::int64_t block = (whole / parts[g] + 1023) / 1024 * 1024;
      const std::int64_t m = page / block;
      const std::int64_t units = peak_blocks(groups[g], n);
      const std::int64_t pages = groups[g].kind == PagedKind::state
                                     ? pages_of(groups[g].kind, units * parts[g], m)
                                     : parts[g] * pages_of(groups[g].kind, units, m);
      held += static_cast<double>(pages * page);
      wanted += static_cast<double>(units * whole);
    }
    worst = std::max(worst, held / wanted - 1);
  }
  return worst;
}

// Tries every cut and every page without giving up early, and keeps the best in the same order.
TEST(ChoosePages, NothingThatWasTriedIsBetter) {
  const std::vector<std::vector<PagedGroup>> tries = {
      {full(10, 8192), limited(PagedKind::window, 52, 8192, 1024)},
      {full(6, 1000), state(12, 1'000'003)},
      {full(4, 600), limited(PagedKind::window, 8, 3000, 100), state(6, 700'000)},
  };
  for (const std::vector<PagedGroup>& groups : tries) {
    std::int64_t best_excess = -1;
    std::int64_t best_parts = 0;
    std::int64_t best_page = 0;
    std::vector<std::int32_t> parts(groups.size(), 1);
    for (bool more = true; more;) {
      std::vector<std::int64_t> blocks;
      std::int64_t num_parts = 0;
      bool divides = true;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        blocks.push_back((groups[g].num_layers * groups[g].layer_bytes / parts[g] + 1023) / 1024 *
                         1024);
        divides = divides && groups[g].num_layers % parts[g] == 0;
        num_parts += parts[g];
      }
      const std::int64_t smallest = *std::min_element(blocks.begin(), blocks.end());
      const std::int64_t largest = *std::max_element(blocks.begin(), blocks.end());
      for (const std::int64_t block : blocks) {
        for (std::int64_t times = 1; divides && times <= 64; ++times) {
          const std::int64_t page = times * block;
          if (page < largest || page > PageChoice::kMaxPageBytes || page / smallest > 64) continue;
          const std::int64_t excess = std::llround(10000 * excess_of(groups, parts, page));
          const auto key = std::tuple(excess, num_parts, page);
          if (best_excess == -1 || key < std::tuple(best_excess, best_parts, best_page)) {
            std::tie(best_excess, best_parts, best_page) = key;
          }
        }
      }
      more = false;
      for (std::size_t g = 0; g < groups.size() && !more; ++g) {
        const std::int32_t most = groups[g].kind == PagedKind::state ? groups[g].num_layers : 4;
        more = parts[g] < most;
        parts[g] = more ? parts[g] + 1 : 1;
      }
    }
    const Result<PageChoice> choice = choose_pages(groups, kMaxTokens);
    ASSERT_OK(choice);
    std::int64_t num_parts = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) num_parts += choice->groups[g].num_parts;
    EXPECT_EQ(choice->worst_excess, best_excess);
    EXPECT_EQ(num_parts, best_parts);
    EXPECT_EQ(choice->page_bytes, best_page);
  }
}

TEST(ChoosePages, IdsOfEveryBlockOfAPageAreWholeStrides) {
  for (const ModelPages& model : models()) {
    const PageChoice choice = choose_pages(model.groups, kMaxTokens).value();
    for (std::size_t g = 0; g < choice.num_groups; ++g) {
      const PagedBlocks& b = choice.groups[g];
      EXPECT_EQ(choice.page_bytes % b.id_stride_bytes, 0) << model.name;
      EXPECT_EQ(b.ids_per_page(choice.page_bytes) * b.id_stride_bytes, choice.page_bytes);
      if (b.blocks_per_page > 1) {
        EXPECT_EQ(b.ids_per_block() * b.id_stride_bytes, b.block_bytes) << model.name;
      }
      EXPECT_GE(b.ids_per_page(choice.page_bytes), b.ids_per_block() * b.blocks_per_page);
      EXPECT_TRUE(choice.num_groups == 1 || b.id_stride_bytes >= PageChoice::kBlockAlignment);
    }
  }
}

TEST(ChoosePages, TheBlockOfASingleGroupIsThePageWhateverItsSize) {
  const PagedGroup odd = {.num_layers = 3, .layer_bytes = 1'000'000'007};
  const Result<PageChoice> choice = choose_pages(std::span(&odd, 1), 100);
  ASSERT_OK(choice);
  EXPECT_EQ(choice->page_bytes, 3'000'000'021);
  EXPECT_EQ(choice->groups[0].num_parts, 1);
  EXPECT_EQ(choice->groups[0].blocks_per_page, 1);
  EXPECT_EQ(choice->groups[0].id_stride_bytes, 3'000'000'021);
  EXPECT_EQ(choice->worst_excess, 0);
}

TEST(ChoosePages, BlocksOfSeveralGroupsAreRoundedUp) {
  const std::vector<PagedGroup> groups = {full(5, 100), full(5, 100)};  // 8,000 B
  const Result<PageChoice> choice = choose_pages(groups, 1000);
  ASSERT_OK(choice);
  EXPECT_EQ(choice->page_bytes, 8192);
  EXPECT_EQ(choice->groups[0].block_bytes, 8192);
  EXPECT_EQ(choice->worst_excess, 240);  // 8,192 / 8,000
}

TEST(ChoosePages, ManyGroupsAreChosenQuickly) {
  std::vector<PagedGroup> groups;
  for (std::int32_t g = 0; g < 7; ++g) {
    groups.push_back(limited(PagedKind::window, 12 + 12 * g, 256 * (1 + g % 3), 128 << g));
  }
  groups.push_back(state(96, 1'234'567));
  EXPECT_OK(choose_pages(groups, std::int64_t{1} << 40));
}

TEST(ChoosePages, RefusesTheNumberOfGroupsAndLengths) {
  EXPECT_FAILS(choose_pages({}, 100), invalid_argument, num_groups);
  const std::vector<PagedGroup> nine(9, full(1, 64));
  EXPECT_FAILS(choose_pages(nine, 100), invalid_argument, num_groups);
  EXPECT_REFUSES(choose_pages(std::span(nine).first(2), 0), invalid_argument, max_sequence_tokens);
  EXPECT_OK(choose_pages(std::span(nine).first(8), 1));
}

TEST(ChoosePages, RefusesGroupsWithTheMemberTheValueAndTheRange) {
  const auto refusal = [](const PagedGroup& group) {
    EXPECT_EQ(choose_pages(std::span(&group, 1), 100).status(), validate(group));
    return validate(group);
  };
  PagedGroup group = full(0, 64);
  EXPECT_EQ(refusal(group), invalid_option(Option::num_layers, 0, 1, 4096));
  group = full(1, 0);
  EXPECT_EQ(refusal(group), invalid_option(Option::layer_bytes, 0, 1, std::int64_t{1} << 40));
  group = {.num_layers = 4096, .layer_bytes = std::int64_t{1} << 40};
  EXPECT_FAILS(refusal(group), invalid_argument, block_bytes);
  group = full(1, 64);
  group.block_size_tokens = 0;
  EXPECT_EQ(refusal(group), invalid_option(Option::block_size_tokens, 0, 1, 65536));
  for (const PagedKind kind : {PagedKind::window, PagedKind::chunk, PagedKind::cross}) {
    group = limited(kind, 1, 64, 0);
    EXPECT_EQ(refusal(group), invalid_option(Option::limit_tokens, 0, 1, std::int64_t{1} << 40));
  }
  group = limited(PagedKind::chunk, 1, 64, 100);
  EXPECT_EQ(refusal(group), invalid_option(Option::limit_tokens, 100, 96, 112));
  group.limit_tokens = 9;
  EXPECT_EQ(refusal(group), invalid_option(Option::limit_tokens, 9, 16, 16));
  group = limited(PagedKind::window, 1, 64, 9);
  group.rollback_tokens = -1;
  EXPECT_EQ(refusal(group), invalid_option(Option::rollback_tokens, -1, 0, 65536));
  for (const PagedKind kind : {PagedKind::full, PagedKind::chunk, PagedKind::cross}) {
    group = limited(kind, 1, 64, kind == PagedKind::full ? 0 : 16);
    group.rollback_tokens = 5;
    EXPECT_EQ(refusal(group), invalid_option(Option::rollback_tokens, 5, 0, 0)) << name_of(kind);
  }
  for (const PagedKind kind : {PagedKind::full, PagedKind::state}) {
    group = limited(kind, 1, 64, 7);
    EXPECT_EQ(refusal(group), invalid_option(Option::limit_tokens, 7, 0, 0)) << name_of(kind);
  }
  group = full(1, 64);
  group.kind = static_cast<PagedKind>(9);
  EXPECT_EQ(refusal(group), invalid_option(Option::kind, 9, 0, 4));
}

TEST(ChoosePages, RefusesBlocksThatNoPageHolds) {
  // 100 MiB in one layer do not fit a page of 64 MiB.
  std::vector<PagedGroup> groups = {full(1, 4096), state(1, 100 << 20)};
  EXPECT_EQ(choose_pages(groups, 100).status(),
            invalid_argument(Resource::block_bytes, 100 << 20, 1, 65 * 65536 - 1));
  // 5 MiB fit a page, but it would have 80 blocks of 64 KiB.
  groups[1] = state(1, 5 << 20);
  EXPECT_EQ(choose_pages(groups, 100).status(),
            invalid_argument(Resource::block_bytes, 5 << 20, 1, 65 * 65536 - 1));
  // In two parts it has 40.
  groups[1] = state(2, (5 << 20) / 2);
  EXPECT_OK(choose_pages(groups, 100));
}

TEST(Retained, OfEachKind) {
  EXPECT_EQ(retained(full(1, 64), 100),
            (Retained{.first_token = 0, .end_token = 100, .first_block = 0, .end_block = 7}));
  PagedGroup window = limited(PagedKind::window, 1, 64, 40);
  EXPECT_EQ(retained(window, 40), (Retained{0, 40, 0, 3}));
  EXPECT_EQ(retained(window, 100), (Retained{60, 100, 3, 7}));
  window.rollback_tokens = 13;
  EXPECT_EQ(retained(window, 100), (Retained{47, 100, 2, 7}));
  const PagedGroup chunk = limited(PagedKind::chunk, 1, 64, 32);
  EXPECT_EQ(retained(chunk, 0), (Retained{0, 0, 0, 0}));
  EXPECT_EQ(retained(chunk, 32), (Retained{0, 32, 0, 2}));
  EXPECT_EQ(retained(chunk, 33), (Retained{32, 33, 2, 3}));
  PagedGroup recurrent = state(3, 1000);
  EXPECT_EQ(retained(recurrent, 77), (Retained{77, 77, 0, 1}));
  recurrent.rollback_tokens = 4;
  EXPECT_EQ(retained(recurrent, 77), (Retained{73, 77, 0, 5}));
  EXPECT_EQ(retained(recurrent, 2), (Retained{0, 2, 0, 5}));
  EXPECT_EQ(retained(limited(PagedKind::cross, 1, 64, 33), 7), (Retained{0, 33, 0, 3}));
}

// The peak is the most blocks at any length on the way.
TEST(Retained, ALengthCanBeHadWhereItsTokensAreHeld) {
  const PagedGroup window{.kind = PagedKind::window, .limit_tokens = 100};
  EXPECT_EQ(oldest_needed(window, 400), 301);
  EXPECT_EQ(oldest_needed(window, 50), 0);
  EXPECT_EQ(restorable_length(window, 288, 387), 387);
  EXPECT_EQ(restorable_length(window, 288, 386), 0);
  EXPECT_EQ(restorable_length(window, 0, 5), 5);
  const PagedGroup last{.kind = PagedKind::window, .limit_tokens = 1};
  EXPECT_EQ(oldest_needed(last, 33), 32) << "its block gets the next token";
  const PagedGroup chunk{.kind = PagedKind::chunk, .limit_tokens = 64};
  EXPECT_EQ(oldest_needed(chunk, 128), 64);
  EXPECT_EQ(oldest_needed(chunk, 129), 128);
  EXPECT_EQ(restorable_length(chunk, 128, 129), 129);
  EXPECT_EQ(restorable_length(chunk, 128, 128), 0);
  EXPECT_EQ(restorable_length({.kind = PagedKind::full}, 0, 77), 77);
  // What is kept between steps is enough to go on.
  for (const PagedGroup& group : {window, last, chunk}) {
    for (std::int64_t n = 0; n < 700; ++n) {
      const std::int64_t held = retained(group, n).first_block * group.block_size_tokens;
      EXPECT_EQ(restorable_length(group, held, n), n);
    }
  }
}

TEST(Retained, PeakIsTheMostOnTheWay) {
  for (std::int64_t limit : {1, 15, 16, 17, 64, 100}) {
    for (std::int32_t rollback : {0, 1, 20}) {
      PagedGroup window = limited(PagedKind::window, 1, 64, limit);
      window.rollback_tokens = rollback;
      const PagedGroup chunk = limited(PagedKind::chunk, 1, 64, 16 * limit);
      for (const PagedGroup& group : {window, chunk, full(1, 64), state(2, 64)}) {
        std::int64_t most = 0;
        for (std::int64_t n = 0; n < 400; ++n) {
          most = std::max(most, retained(group, n).num_blocks());
          EXPECT_EQ(peak_blocks(group, n), most) << limit << " " << rollback << " " << n;
        }
      }
    }
  }
}

// The pages of consecutive blocks, wherever the first of them begins in its page.
TEST(PagesOf, IsTheMostOfAnyBeginning) {
  for (std::int64_t m = 1; m <= 9; ++m) {
    EXPECT_EQ(pages_of(PagedKind::full, 0, m), 0);
    EXPECT_EQ(pages_of(PagedKind::window, 0, m), 0);
    for (std::int64_t blocks = 1; blocks < 40; ++blocks) {
      std::int64_t most = 0;
      for (std::int64_t first = 0; first < m; ++first) {
        most = std::max(most, (first + blocks - 1) / m + 1);
      }
      EXPECT_EQ(pages_of(PagedKind::window, blocks, m), most);
      EXPECT_EQ(pages_of(PagedKind::chunk, blocks, m), most);
      EXPECT_EQ(pages_of(PagedKind::full, blocks, m), (blocks - 1) / m + 1);
      EXPECT_EQ(pages_of(PagedKind::state, blocks, m), (blocks - 1) / m + 1);
    }
  }
}

}  // namespace
}  // namespace kvarena
