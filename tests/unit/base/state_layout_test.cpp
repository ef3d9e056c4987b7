// Where the states of recurrent layers lie, byte by byte, and what is refused.

#include "kvarena/base/state_layout.hpp"
#include "kvarena/base/group_layout.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace kvarena {
namespace {

/// Layers 0 .. 3 of 4 have full attention, all others a state of two planes.
class StateLayoutTest : public ::testing::Test {
 protected:
  StateLayoutTest() {
    for (std::int32_t layer = 0; layer < 16; ++layer) {
      (layer % 4 == 3 ? full_ : recurrent_).push_back({.layer = layer});
    }
  }
  std::vector<LayerGroup> groups() const {
    return {{.kind = PagedKind::state, .layers = recurrent_, .planes = planes_},
            {.layers = full_, .num_kv_heads = 2, .head_dim_k = 64, .dtype = DType::bf16}};
  }
  Result<GroupLayout> create() const { return GroupLayout::create(groups(), 8192); }

  std::vector<GroupLayer> recurrent_;
  std::vector<GroupLayer> full_;
  std::vector<StatePlane> planes_{
      {.dtype = DType::f32, .num_dims = 3, .shape = {4, 32, 64}},
      {.dtype = DType::bf16, .num_dims = 2, .shape = {100, 3}},
  };
};

TEST_F(StateLayoutTest, PlanesFollowOneAnother) {
  EXPECT_EQ(state_bytes(planes_).value(), 4 * 32 * 64 * 4 + 608) << "600 bytes, padded";
  const GroupLayout layout = create().value();
  ASSERT_EQ(layout.states().size(), 1u);
  const GroupLayout::States& states = layout.states()[0];
  EXPECT_EQ(states.group, 0);
  EXPECT_EQ(states.layers.size(), 12u);
  EXPECT_EQ(states.layers_per_part * states.blocks.num_parts, 12);
  EXPECT_EQ(states.planes[0].offset, 0);
  EXPECT_EQ(states.planes[1].offset, 4 * 32 * 64 * 4);
  EXPECT_EQ(states.planes[1].plane, planes_[1]);
  EXPECT_EQ(layout.parts().size(), static_cast<std::size_t>(layout.parts()[0].blocks.num_parts))
      << "attention alone has parts with K and V";
}

/// No byte of any slot of any layer is another's, and every slot lies in the pool.
TEST_F(StateLayoutTest, NoTwoLayersShareAByte) {
  const GroupLayout layout = create().value();
  const GroupLayout::States& states = layout.states()[0];
  constexpr std::int64_t kPages = 3;
  std::byte* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  std::set<std::int32_t> parts;
  for (const std::int32_t layer : states.layers) {
    ASSERT_TRUE(layout.has_state(layer));
    EXPECT_FALSE(layout.has_layer(layer));
    const StateView view = layout.state_view(base, kPages, layer).value();
    EXPECT_EQ(view.num_planes, 2u);
    EXPECT_EQ(view.group, 0);
    parts.insert(view.part);
    for (std::int64_t page = 0; page < kPages; ++page) {
      for (std::int64_t block = 0; block < states.blocks.blocks_per_page; ++block) {
        // A slot belongs to one part: here each takes its turn.
        const std::int64_t in_all = page * states.blocks.blocks_per_page + block;
        if (in_all % states.blocks.num_parts != view.part) continue;
        const std::int64_t id = page * states.blocks.ids_per_page(layout.page_bytes()) +
                                block * states.blocks.ids_per_block();
        ASSERT_LT(id, view.num_slots);
        for (std::size_t p = 0; p < view.num_planes; ++p) {
          const StatePlaneView& plane = view.planes[p];
          const std::int64_t first = view.base - base + id * view.slot_stride + plane.offset;
          const std::int64_t bytes = plane.plane.num_elements() * bytes_of(plane.plane.dtype);
          EXPECT_EQ(first % 16, 0);
          EXPECT_LE(first + bytes, kPages * layout.page_bytes());
          EXPECT_TRUE(ranges.insert({first, first + bytes}).second);
        }
      }
    }
  }
  EXPECT_EQ(static_cast<std::int32_t>(parts.size()), states.blocks.num_parts);
  std::int64_t end = 0;
  for (const auto& [first, last] : ranges) {
    EXPECT_LE(end, first);
    end = last;
  }
  EXPECT_REFUSES(layout.state_view(base, kPages, 3), invalid_argument, layer);
  EXPECT_REFUSES(layout.state_view(base, kPages, 16), invalid_argument, layer);
  EXPECT_REFUSES(layout.layer_view(base, kPages, 0), invalid_argument, layer);
}

TEST_F(StateLayoutTest, BadStatesAreRefused) {
  const auto option_of_planes = [&](const StatePlane& plane) {
    planes_ = {plane};
    const Status status = create().status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    return status.option;
  };
  EXPECT_EQ(option_of_planes({.num_dims = 0}), Option::num_dims);
  EXPECT_EQ(option_of_planes({.num_dims = 5}), Option::num_dims);
  EXPECT_EQ(option_of_planes({.num_dims = 2, .shape = {4, 0}}), Option::shape);
  EXPECT_EQ(option_of_planes({.dtype = static_cast<DType>(9)}), Option::dtype);
  EXPECT_EQ(option_of_planes({.num_dims = 2, .shape = {1 << 30, 1 << 30}}), Option::layer_bytes);
  planes_.assign(9, {});
  EXPECT_EQ(create().status().option, Option::planes);
  planes_.clear();
  EXPECT_EQ(create().status().option, Option::planes);
  planes_ = {{}};
  recurrent_[1].reads_layer = 0;
  EXPECT_EQ(create().status().option, Option::reads_layer);
  recurrent_[1] = {.layer = 0};
  EXPECT_EQ(create().status().option, Option::layer) << "two owners in one group";
  recurrent_[1] = {.layer = 3};
  EXPECT_EQ(create().status().option, Option::layer) << "two owners in two groups";
  recurrent_.clear();
  EXPECT_EQ(create().status().option, Option::num_layers);
  recurrent_ = {{.layer = 0}};
  std::vector<LayerGroup> all = groups();
  all[0].mode = static_cast<StateMode>(7);
  EXPECT_EQ(GroupLayout::create(all, 8192).status().option, Option::mode);
  all = groups();
  all.pop_back();
  EXPECT_EQ(GroupLayout::create(all, 8192).status().code, StatusCode::unsupported);
}

}  // namespace
}  // namespace kvarena
