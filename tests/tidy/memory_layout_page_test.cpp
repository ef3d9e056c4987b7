// docs/explanation/memory-layout.md shows numbers; these tests compute each of them with KvLayout.

#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/shapes.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using Table = std::map<std::string, std::int64_t>;

constexpr std::int64_t kNumBlocks = 1000;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

/// Rows `| label | arithmetic | number |` below the heading `## title`.
Table table_of(std::istream& page, const std::string& title) {
  Table table;
  bool in_section = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) in_section = line == "## " + title;
    if (!in_section || !line.starts_with("| ")) continue;
    std::istringstream cells(line.substr(1));
    std::string label, arithmetic, number, digits;
    std::getline(cells, label, '|');
    std::getline(cells, arithmetic, '|');
    std::getline(cells, number, '|');
    for (const char c : number) {
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) digits += c;
    }
    if (!digits.empty()) table[trimmed(label)] = std::stoll(digits);
  }
  return table;
}

/// Offset of block 7, layer 3, V, last head, token 5, element 10.
std::int64_t element_offset(const KvLayout& layout, const ModelShape& shape, BlockOrder order) {
  const std::int32_t plane = layout.plane_of(3, PlaneKind::value);
  return layout.plane_offset(plane, order, kNumBlocks) + 7 * layout.block_stride(plane, order) +
         (shape.num_kv_heads - 1) * layout.head_stride(plane) + 5 * layout.token_stride(plane) +
         10 * bytes_of(shape.dtype);
}

Table computed(const ModelShape& shape) {
  const auto layout = KvLayout::create({.num_layers = shape.num_layers,
                                        .num_kv_heads = shape.num_kv_heads,
                                        .head_dim_k = shape.head_dim,
                                        .dtype = shape.dtype});
  return {{"token, all layers", layout->bytes_per_token()},
          {"token stride", layout->token_stride(0)},
          {"head stride", layout->head_stride(0)},
          {"plane", layout->plane_bytes(0)},
          {"block", layout->block_bytes()},
          {"pool", layout->pool_bytes(kNumBlocks).value()},
          {"element, block-major", element_offset(*layout, shape, BlockOrder::block_major)},
          {"element, layer-major", element_offset(*layout, shape, BlockOrder::layer_major)}};
}

class MemoryLayoutPage : public testing::TestWithParam<const char*> {};

TEST_P(MemoryLayoutPage, ShowsWhatTheLayoutComputes) {
  std::ifstream page(KVARENA_SOURCE_DIR "/docs/explanation/memory-layout.md");
  ASSERT_TRUE(page) << "docs/explanation/memory-layout.md cannot be read";
  const ModelShape* shape = find_model_shape(GetParam());
  ASSERT_NE(shape, nullptr);
  EXPECT_EQ(table_of(page, GetParam()), computed(*shape));
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryLayoutPage, testing::Values("Qwen2.5-0.5B", "Llama-3.1-8B"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::erase_if(name, [](char c) { return c == '.' || c == '-'; });
                           return name;
                         });

TEST(MemoryLayoutPageReader, SeesAWrongNumber) {
  std::istringstream page("## A\n| block | 1 * 2 | 2 |\n## B\n| block | 3 * 3 | 1,009 |\n");
  EXPECT_EQ(table_of(page, "B"), (Table{{"block", 1009}}));
}

TEST(MemoryLayoutPage, HasThePageOfGemma) {
  std::vector<GroupLayer> full;
  std::vector<GroupLayer> window;
  for (std::int32_t layer = 0; layer < 62; ++layer) {
    (layer % 6 == 5 ? full : window).push_back({layer});
  }
  const std::vector<LayerGroup> groups{
      {PagedKind::full, full, 16, 128, 0, DType::bf16},
      {PagedKind::window, window, 16, 128, 0, DType::bf16, {}, false, 16, 1024}};
  const GroupLayout layout = GroupLayout::create(groups, 131'072).value();
  ASSERT_EQ(layout.parts().size(), 2U);
  const GroupLayout::Part& all = layout.parts()[0];
  const PagedBlocks& blocks = all.blocks;
  const std::int64_t page = layout.page_bytes();
  const std::int64_t id = 7 * blocks.ids_per_page(page) + 2 * blocks.ids_per_block();
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  const PlaneView value = layout.layer_view(base, 100, full[3].layer)->value;
  const Table expected{
      {"K of one layer in a block", all.layout.plane_bytes(0)},
      {"block of all tokens", blocks.block_bytes},
      {"block of the windows", layout.parts()[1].blocks.block_bytes},
      {"page", page},
      {"blocks of all tokens in a page", blocks.blocks_per_page},
      {"left over in such a page", page - blocks.blocks_per_page * blocks.block_bytes},
      {"stride of ids, all tokens", blocks.id_stride_bytes},
      {"stride of ids, windows", layout.parts()[1].blocks.id_stride_bytes},
      {"block 2 of page 7, all tokens: id", id},
      {"its V of the fourth layer: address", value.base + id * value.block_stride - base}};
  std::ifstream text(KVARENA_SOURCE_DIR "/docs/explanation/memory-layout.md");
  EXPECT_EQ(table_of(text, "Pages of several groups"), expected);
}

TEST(MemoryLayoutPage, HasTheSlotsOfQwen3Next) {
  std::vector<GroupLayer> full;
  std::vector<GroupLayer> recurrent;
  for (std::int32_t layer = 0; layer < 48; ++layer) {
    (layer % 4 == 3 ? full : recurrent).push_back({layer});
  }
  const std::vector<StatePlane> planes{
      {.dtype = DType::f32, .num_dims = 3, .shape = {32, 128, 128}},
      {.dtype = DType::bf16, .num_dims = 2, .shape = {8192, 3}}};
  const std::vector<LayerGroup> groups{
      {.layers = full, .num_kv_heads = 2, .head_dim_k = 256, .dtype = DType::bf16},
      {.kind = PagedKind::state, .layers = recurrent, .planes = planes}};
  const GroupLayout layout = GroupLayout::create(groups, 131'072).value();
  const GroupLayout::States& states = layout.states()[0];
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  const StateView second = layout.state_view(base, 100, recurrent[1].layer).value();
  const Table expected{
      {"state of one layer", states.planes[1].offset},
      {"convolution of one layer", states.layer_bytes - states.planes[1].offset},
      {"one layer", states.layer_bytes},
      {"parts", states.blocks.num_parts},
      {"slot", states.blocks.block_bytes},
      {"page", layout.page_bytes()},
      {"left over in a page of a slot", layout.page_bytes() - states.blocks.block_bytes},
      {"stride of slots", second.slot_stride},
      {"slot 7, convolution of its second layer: address",
       second.base + 7 * second.slot_stride + second.planes[1].offset - base}};
  std::ifstream text(KVARENA_SOURCE_DIR "/docs/explanation/memory-layout.md");
  EXPECT_EQ(table_of(text, "Slots of states"), expected);
}

}  // namespace
}  // namespace kvarena
