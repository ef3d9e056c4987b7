#include "kvarena/base/layout.hpp"

#include "kvarena/base/shapes.hpp"
#include "support/status_matchers.hpp"
#include "support/test_files.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

UniformLayoutOptions small() {
  return {.num_layers = 3, .num_kv_heads = 2, .head_dim_k = 8, .block_size_tokens = 4};
}

/// Expects create to refuse, naming the option, with every number in the text.
void expect_refused(const UniformLayoutOptions& options, Option option, std::int64_t value) {
  const Status status = KvLayout::create(options).status();
  EXPECT_EQ(status.code, StatusCode::invalid_argument) << describe(status);
  EXPECT_EQ(status.option, option) << describe(status);
  EXPECT_NE(describe(status).find(std::to_string(value)), std::string::npos) << describe(status);
}

TEST(KvLayout, BytesOfASmallShapeByHand) {
  const KvLayout layout = KvLayout::create(small()).value();
  EXPECT_EQ(layout.block_size(), 4);
  EXPECT_EQ(layout.num_layers(), 3);
  EXPECT_EQ(layout.planes().size(), 6U);
  // 3 layers x (K, V) x 2 heads x 8 elements x 2 bytes.
  EXPECT_EQ(layout.bytes_per_token(), 192);
  EXPECT_EQ(layout.block_bytes(), 768);
  EXPECT_EQ(layout.plane_bytes(0), 128);
  EXPECT_EQ(layout.token_stride(0), 16);
  EXPECT_EQ(layout.head_stride(0), 64);
  EXPECT_EQ(layout.plane_of(1, PlaneKind::value), 3);
  EXPECT_EQ(layout.plane_of(3, PlaneKind::key), -1);
  EXPECT_EQ(layout.plane_of(-1, PlaneKind::key), -1);
  EXPECT_EQ(layout.plane_offset(3, BlockOrder::block_major, 10), 3 * 128);
  EXPECT_EQ(layout.plane_offset(3, BlockOrder::layer_major, 10), 3 * 128 * 10);
  EXPECT_EQ(layout.block_stride(3, BlockOrder::block_major), 768);
  EXPECT_EQ(layout.block_stride(3, BlockOrder::layer_major), 128);
  EXPECT_EQ(layout.pool_bytes(10).value(), 7680);
}

TEST(KvLayout, KAndVMayDifferInHeadDim) {
  UniformLayoutOptions options = small();
  options.head_dim_v = 4;
  const KvLayout layout = KvLayout::create(options).value();
  EXPECT_EQ(layout.bytes_per_token(), 3 * 2 * (8 + 4) * 2);
  EXPECT_EQ(layout.plane_bytes(1), 64);
}

TEST(KvLayout, PlanesArePaddedToTheirAlignment) {
  UniformLayoutOptions options = small();
  options.num_kv_heads = 1;
  options.head_dim_k = 3;
  options.block_size_tokens = 1;
  const KvLayout layout = KvLayout::create(options).value();
  EXPECT_EQ(layout.bytes_per_token(), 3 * 2 * 6);
  EXPECT_EQ(layout.block_bytes(), 6 * KvLayout::kPlaneAlignment);
}

TEST(KvLayout, PlanesNeverOverlapInEitherOrder) {
  for (const std::int32_t head_dim : {1, 7, 64}) {
    for (const std::int32_t block_size : {1, 7, 16, 128}) {
      const KvLayout layout = KvLayout::create({.num_layers = 3,
                                                .num_kv_heads = 3,
                                                .head_dim_k = head_dim,
                                                .head_dim_v = head_dim + 2,
                                                .block_size_tokens = block_size})
                                  .value();
      for (const BlockOrder order : {BlockOrder::block_major, BlockOrder::layer_major}) {
        constexpr std::int64_t kBlocks = 5;
        std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
        for (std::int32_t plane = 0; plane < 6; ++plane) {
          for (std::int64_t block = 0; block < kBlocks; ++block) {
            const std::int64_t first = layout.plane_offset(plane, order, kBlocks) +
                                       block * layout.block_stride(plane, order);
            EXPECT_EQ(first % KvLayout::kPlaneAlignment, 0);
            EXPECT_LE(layout.head_stride(plane) * 3, layout.plane_bytes(plane));
            ranges.emplace_back(first, first + layout.plane_bytes(plane));
          }
        }
        std::sort(ranges.begin(), ranges.end());
        EXPECT_EQ(ranges.front().first, 0);
        for (std::size_t i = 1; i < ranges.size(); ++i) {
          EXPECT_EQ(ranges[i].first, ranges[i - 1].second) << "neither gap nor overlap";
        }
        EXPECT_EQ(ranges.back().second, layout.pool_bytes(kBlocks).value());
      }
    }
  }
}

TEST(KvLayout, NonsenseIsRefusedWithTheNumbers) {
  const auto with = [](auto change) {
    UniformLayoutOptions options = small();
    change(options);
    return options;
  };
  expect_refused(with([](auto& o) { o.num_layers = 0; }), Option::num_layers, 0);
  expect_refused(with([](auto& o) { o.num_layers = 5000; }), Option::num_layers, 5000);
  expect_refused(with([](auto& o) { o.num_kv_heads = 0; }), Option::num_kv_heads, 0);
  expect_refused(with([](auto& o) { o.num_kv_heads = -4; }), Option::num_kv_heads, -4);
  expect_refused(with([](auto& o) { o.head_dim_k = 0; }), Option::head_dim_k, 0);
  expect_refused(with([](auto& o) { o.head_dim_v = -1; }), Option::head_dim_v, -1);
  expect_refused(with([](auto& o) { o.head_dim_v = 4097; }), Option::head_dim_v, 4097);
  expect_refused(with([](auto& o) { o.block_size_tokens = 0; }), Option::block_size_tokens, 0);
  expect_refused(with([](auto& o) { o.block_size_tokens = 65537; }), Option::block_size_tokens,
                 65537);
}

TEST(KvLayout, BlockBytesPastTheLimitAreRefused) {
  const Status status = KvLayout::create({.num_layers = 4096,
                                          .num_kv_heads = 4096,
                                          .head_dim_k = 4096,
                                          .dtype = DType::f32,
                                          .block_size_tokens = 65536})
                            .status();
  EXPECT_EQ(status.code, StatusCode::invalid_argument);
  EXPECT_EQ(status.resource, Resource::block_bytes);
}

TEST(KvLayout, PoolBytesRefusesTooManyBlocks) {
  const KvLayout layout = KvLayout::create(small()).value();
  for (const std::int64_t blocks :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40, kHuge}) {
    const Status status = layout.pool_bytes(blocks).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    EXPECT_EQ(status.resource, Resource::num_blocks);
    EXPECT_NE(describe(status).find(std::to_string(blocks)), std::string::npos);
  }
  const KvLayout large =
      KvLayout::create(
          {.num_layers = 128, .num_kv_heads = 128, .head_dim_k = 512, .block_size_tokens = 32768})
          .value();
  EXPECT_EQ(large.block_bytes(), std::int64_t{1} << 40);
  EXPECT_EQ(large.pool_bytes((1 << 23) - 1).value(), (std::int64_t{1} << 40) * ((1 << 23) - 1));
  EXPECT_FAILS(large.pool_bytes(1 << 23), invalid_argument, pool_bytes);
}

TEST(KvLayout, GroupsOfThisVersion) {
  EXPECT_EQ(KvLayout::create(std::span<const GroupSpec>()).status().resource, Resource::num_groups);
  std::vector<GroupSpec> two(2);
  EXPECT_EQ(KvLayout::create(two).status().code, StatusCode::unsupported);
  GroupSpec group;
  EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().option, Option::planes);
  group.planes = {{.layer = 0, .num_heads = 1, .head_dim = 8}};
  group.retention = Retention::window;
  EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().code, StatusCode::unsupported);
  group.retention = Retention::full;
  group.tile_order = TileOrder::chunked;
  group.block_size_tokens = 8;
  EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().option, Option::tile_order);
  group.block_size_tokens = 32;
  group.planes[0].head_dim = 32;
  EXPECT_TRUE(KvLayout::create(std::span(&group, 1)));
  group.planes.push_back(group.planes[0]);
  EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().option, Option::layer)
      << "a plane given twice";
}

TEST(KvLayout, VMayAliasK) {
  GroupSpec group;
  group.planes = {
      {.layer = 0, .num_heads = 1, .head_dim = 576},
      {.layer = 0, .kind = PlaneKind::value, .num_heads = 1, .head_dim = 512, .alias_of = 0}};
  const KvLayout layout = KvLayout::create(std::span(&group, 1)).value();
  EXPECT_EQ(layout.bytes_per_token(), 576 * 2);
  EXPECT_EQ(layout.plane_bytes(1), 0);
  for (const BlockOrder order : {BlockOrder::block_major, BlockOrder::layer_major}) {
    EXPECT_EQ(layout.plane_offset(1, order, 9), layout.plane_offset(0, order, 9));
    EXPECT_EQ(layout.block_stride(1, order), layout.block_stride(0, order));
  }
  EXPECT_EQ(layout.token_stride(1), layout.token_stride(0)) << "V walks K's rows";
  group.tile_order = TileOrder::chunked;
  const KvLayout chunked = KvLayout::create(std::span(&group, 1)).value();
  EXPECT_EQ(chunked.token_stride(1), 576 * 2) << "and its chunks";
  group.tile_order = TileOrder::rows;
  for (const std::int32_t wrong : {1, 2, -2}) {
    group.planes[1].alias_of = wrong;
    EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().code, StatusCode::invalid_argument);
  }
  group.planes[1].alias_of = 0;
  group.planes[1].head_dim = 577;
  EXPECT_EQ(KvLayout::create(std::span(&group, 1)).status().code, StatusCode::invalid_argument);
}

TEST(KvLayout, PerTokenScalesTakeBytes) {
  GroupSpec group;
  group.planes = {{.layer = 0,
                   .num_heads = 2,
                   .head_dim = 64,
                   .dtype = DType::fp8_e4m3,
                   .scale = ScaleKind::per_token_head}};
  EXPECT_EQ(KvLayout::create(std::span(&group, 1))->bytes_per_token(), 2 * (64 + 4));
  EXPECT_EQ(KvLayout::create(std::span(&group, 1))->scales_offset(0), 2 * 64 * 16);
  group.planes[0].scale = ScaleKind::per_head;
  EXPECT_EQ(KvLayout::create(std::span(&group, 1))->bytes_per_token(), 2 * 64);
  EXPECT_EQ(KvLayout::create(std::span(&group, 1))->scales_offset(0), 0);
  group.planes[0].scale = ScaleKind::per_token_head;
  group.planes[0].head_dim = 62;
  EXPECT_REFUSES(KvLayout::create(std::span(&group, 1)), unsupported, head_dim);
}

// The keys of an index have rows order beside K and V in chunked order, and their scales behind.
TEST(KvLayout, AnIndexLiesBehindKAndV) {
  GroupSpec group;
  group.tile_order = TileOrder::chunked;
  for (const std::int32_t layer : {0, 1}) {
    group.planes.push_back({.layer = layer, .num_heads = 1, .head_dim = 576, .dtype = DType::bf16});
    group.planes.push_back({.layer = layer,
                            .kind = PlaneKind::value,
                            .num_heads = 1,
                            .head_dim = 512,
                            .dtype = DType::bf16,
                            .alias_of = 3 * layer});
    group.planes.push_back({.layer = layer,
                            .kind = PlaneKind::index,
                            .num_heads = 1,
                            .head_dim = 128,
                            .dtype = DType::fp8_e4m3,
                            .scale = ScaleKind::per_token_head});
  }
  const KvLayout layout = KvLayout::create(std::span(&group, 1)).value();
  EXPECT_EQ(layout.block_bytes(), 2 * 16 * (1152 + 132));
  EXPECT_EQ(layout.plane_of(1, PlaneKind::index), 5);
  EXPECT_EQ(layout.plane_offset(5, BlockOrder::block_major, 9), 16 * (2 * 1152 + 132));
  EXPECT_EQ(layout.scales_offset(5), 16 * 128);
  EXPECT_EQ(layout.tile_order_of(5), TileOrder::rows);
  EXPECT_EQ(layout.tile_order_of(3), TileOrder::chunked);
  group.planes[2].alias_of = 0;
  EXPECT_REFUSES(KvLayout::create(std::span(&group, 1)), invalid_argument, alias_of);
}

// ---- shapes -------------------------------------------------------------------------------------

TEST(ModelShapes, AreSortedFoundInAnyCaseAndLayOut) {
  const auto shapes = model_shapes();
  ASSERT_GT(shapes.size(), 10U);
  for (const ModelShape& shape : shapes) {
    EXPECT_EQ(find_model_shape(shape.name), &shape);
    EXPECT_EQ(shape.num_q_heads % shape.num_kv_heads, 0) << shape.name;
    EXPECT_TRUE(KvLayout::create({.num_layers = shape.num_layers,
                                  .num_kv_heads = shape.num_kv_heads,
                                  .head_dim_k = shape.head_dim,
                                  .dtype = shape.dtype}))
        << shape.name;
  }
  EXPECT_EQ(find_model_shape("QWEN2.5-0.5b"), find_model_shape("Qwen2.5-0.5B"));
  EXPECT_EQ(find_model_shape("no such model"), nullptr);
  EXPECT_EQ(find_model_shape(""), nullptr);
}

TEST(ModelShapes, AgreeWithThePublishedFacts) {
  std::ifstream file(KVARENA_TEST_DATA "/model_facts.json");
  const nlohmann::json facts = nlohmann::json::parse(file);
  int compared = 0;
  for (const nlohmann::json& model : facts.at("models")) {
    const ModelShape* shape = find_model_shape(model.at("name").get<std::string>());
    if (shape == nullptr) continue;
    ++compared;
    EXPECT_EQ(shape->num_layers, model.at("kv_layers").get<int>()) << shape->name;
    EXPECT_EQ(shape->num_q_heads, model.at("q_heads").get<int>()) << shape->name;
    EXPECT_EQ(shape->num_kv_heads, model.at("kv_heads").get<int>()) << shape->name;
    EXPECT_EQ(shape->head_dim, model.at("head_dim").get<int>()) << shape->name;
    EXPECT_EQ(shape->max_position, model.at("max_position").get<int>()) << shape->name;
    const KvLayout layout = KvLayout::create({.num_layers = shape->num_layers,
                                              .num_kv_heads = shape->num_kv_heads,
                                              .head_dim_k = shape->head_dim,
                                              .dtype = shape->dtype})
                                .value();
    EXPECT_EQ(layout.bytes_per_token(), model.at("kv_bytes_per_token_16bit").get<std::int64_t>())
        << shape->name;
  }
  EXPECT_GE(compared, 10) << "the built-in names must be those of the facts";
}

TEST(DTypes, HaveBytesAndNames) {
  EXPECT_EQ(bytes_of(DType::f32), 4);
  EXPECT_EQ(bytes_of(DType::f16), 2);
  EXPECT_EQ(bytes_of(DType::bf16), 2);
  EXPECT_EQ(bytes_of(DType::fp8_e4m3), 1);
  EXPECT_EQ(bytes_of(DType::int8), 1);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
}

}  // namespace
}  // namespace kvarena
