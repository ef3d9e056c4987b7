#include "base/range_checks.hpp"

#include "kvarena/base/layout.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <span>

namespace kvarena {
namespace {

template <class Enum>
constexpr Enum foreign() {
  return static_cast<Enum>(99);
}

UniformLayoutOptions small() { return {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 32}; }

TEST(RangeChecks, NameTheOptionTheValueAndTheRange) {
  EXPECT_OK(check_option(Option::max_sequences, 1, 1, 4));
  EXPECT_EQ(check_option(Option::max_sequences, -1, 1, 4),
            invalid_option(Option::max_sequences, -1, 1, 4));
  EXPECT_OK(check_enum(Option::dtype, DType::int8, DType::int8));
  EXPECT_EQ(check_enum(Option::dtype, foreign<DType>(), DType::int8),
            invalid_option(Option::dtype, 99, 0, 4));
  EXPECT_EQ(check_enum(Resource::dtype, foreign<DType>(), DType::int8),
            invalid_argument(Resource::dtype, 99, 0, 4));
}

TEST(KvLayout, EnumeratorsThatAreNoneAreRefused) {
  UniformLayoutOptions options = small();
  options.dtype = foreign<DType>();
  EXPECT_REFUSES(KvLayout::create(options), invalid_argument, dtype);
  options = small();
  options.tile_order = foreign<TileOrder>();
  EXPECT_REFUSES(KvLayout::create(options), invalid_argument, tile_order);
}

TEST(KvLayout, ThereIsNoPlaneOfAForeignKind) {
  const KvLayout layout = KvLayout::create(small()).value();
  EXPECT_EQ(layout.plane_of(0, foreign<PlaneKind>()), -1);
}

TEST(KvLayout, EnumeratorsOfGroupsThatAreNoneAreRefused) {
  const GroupSpec sound{.planes = {{.layer = 0, .num_heads = 1, .head_dim = 32}}};
  const auto refused = [](const GroupSpec& group) {
    return KvLayout::create(std::span<const GroupSpec>(&group, 1));
  };
  EXPECT_OK(refused(sound));
  GroupSpec group = sound;
  group.planes[0].kind = foreign<PlaneKind>();
  EXPECT_REFUSES(refused(group), invalid_argument, kind);
  group = sound;
  group.planes[0].scale = foreign<ScaleKind>();
  EXPECT_REFUSES(refused(group), invalid_argument, scale);
  group = sound;
  group.retention = foreign<Retention>();
  EXPECT_REFUSES(refused(group), invalid_argument, retention);
}

}  // namespace
}  // namespace kvarena
