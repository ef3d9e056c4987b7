#include "cache/scrub_params.hpp"

#include <algorithm>

namespace kvarena {
namespace {

using kernels::ScrubParams;

/// The bytes of a block's heads, without padding and scales.
std::int64_t heads_bytes(const PlaneView& plane) noexcept {
  return plane.num_heads * plane.head_stride;
}

/// A plane whose elements are bytes, where a row is no number of equal elements.
PlaneView in_bytes(PlaneView plane) noexcept {
  if (has_equal_elements(plane.dtype)) return plane;
  plane.head_dim = static_cast<std::int32_t>(plane.token_stride);
  plane.dtype = DType::fp8_e4m3;
  return plane;
}

/// The scales of tokens, as a plane with an f32 for each token and head.
PlaneView scales_of(const PlaneView& plane, std::int32_t block_size) noexcept {
  constexpr std::int64_t kScaleBytes = 4;
  return {.base = plane.base + plane.scales_offset,
          .block_stride = plane.block_stride,
          .head_stride = block_size * kScaleBytes,
          .token_stride = kScaleBytes,
          .num_heads = plane.num_heads,
          .head_dim = 1,
          .dtype = DType::f32};
}

/// What a part's scrubs have in common.
ScrubParams params_of(KvLayerView kv, bool has_value, const GroupLayout::Part& part) noexcept {
  const auto num_layers = static_cast<std::int32_t>(
      std::ranges::count(part.layout.planes(), PlaneKind::key, &PlaneSpec::kind));
  kv.key = in_bytes(kv.key);
  kv.value = has_value ? in_bytes(kv.value) : kv.key;
  return {.kv = kv,
          .key_bytes = heads_bytes(kv.key),
          .value_bytes = has_value ? heads_bytes(kv.value) : 0,
          .num_layers = num_layers,
          .layer_stride = part.layout.block_bytes() / num_layers,
          .scrubs = nullptr,
          .num_scrubs = 0};
}

}  // namespace

ScrubParams scrub_params(const Arena& arena) noexcept {
  const KvLayout& layout = arena.layout();
  const std::int64_t layer_bytes = layout.block_bytes() / layout.num_layers();
  const std::int64_t times = arena.order() == BlockOrder::block_major ? 1 : arena.num_blocks();
  return {.kv = *arena.layer_view(0),
          .key_bytes = layout.plane_bytes(layout.plane_of(0, PlaneKind::key)),
          .value_bytes = layout.plane_bytes(layout.plane_of(0, PlaneKind::value)),
          .num_layers = layout.num_layers(),
          .layer_stride = layer_bytes * times,
          .scrubs = nullptr,
          .num_scrubs = 0};
}

namespace {

/// A page is a block of tokens of kPageUnit bytes. One that has no such units is never cleared in
/// part: it is a token of one byte, and the rest is padding.
ScrubParams page_params(const Arena& arena) noexcept {
  const std::int64_t bytes = arena.groups()->page_bytes();
  const bool has_units = bytes % kPageUnit == 0 && bytes <= PageChoice::kMaxPageBytes;
  const std::int32_t unit = has_units ? kPageUnit : 1;
  const auto num_units = static_cast<std::int32_t>(has_units ? bytes / kPageUnit : 1);
  const PlaneView page{.base = arena.base(),
                       .block_stride = bytes,
                       .head_stride = std::int64_t{num_units} * unit,
                       .token_stride = unit,
                       .num_heads = 1,
                       .head_dim = unit,
                       .dtype = DType::fp8_e4m3};
  return {
      .kv = {.key = page, .value = page, .block_size = num_units, .num_blocks = arena.num_blocks()},
      .key_bytes = bytes,
      .value_bytes = 0,
      .num_layers = 1,
      .layer_stride = bytes,
      .scrubs = nullptr,
      .num_scrubs = 0};
}

std::vector<ScrubParams> part_params(const Arena& arena, const GroupLayout::Part& its) {
  const std::int32_t layer = its.layout.planes()[0].layer;
  const KvLayerView kv = *arena.layer_view(layer);
  const bool has_value =
      its.layout.planes()[static_cast<std::size_t>(its.layout.plane_of(layer, PlaneKind::value))]
          .alias_of == -1;
  std::vector<ScrubParams> all{params_of(kv, has_value, its)};
  const auto add_scales = [&](KvLayerView of, bool both) {
    if (of.key.scales_offset == 0) return;
    of.key = scales_of(of.key, of.block_size);
    if (both) of.value = scales_of(of.value, of.block_size);
    all.push_back(params_of(of, both, its));
  };
  add_scales(kv, has_value);
  if (arena.groups()->has_index(layer)) {
    const KvLayerView index = layer_of(*arena.index_view(layer));
    all.push_back(params_of(index, false, its));
    add_scales(index, false);
  }
  return all;
}

}  // namespace

std::vector<std::vector<ScrubParams>> group_scrub_params(const Arena& arena) {
  std::vector<std::vector<ScrubParams>> all{{page_params(arena)}};
  for (const GroupLayout::Part& part : arena.groups()->parts()) {
    all.push_back(part_params(arena, part));
  }
  return all;
}

}  // namespace kvarena
