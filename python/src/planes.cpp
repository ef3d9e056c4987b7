#include "planes.hpp"

#include <utility>
#include <vector>

#include "cache.hpp"
#include "records.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace kvarena::python {

namespace {

constexpr std::int64_t kLatentFp8Bytes = 656;  ///< of a row of latent_fp8

/// A plane is [num_blocks, num_heads, block_size, head_dim] in rows order. The chunked order has no
/// strides, so that it is [num_blocks, num_heads, block_size * head_dim] there.
nb::object tensor_of(const kvarena_plane& plane, const Place& place, nb::handle owner) {
  const dlpack::DataType dtype = dlpack_dtype(plane.dtype);
  const std::int64_t element = dtype.bits / 8;
  const std::int64_t row_dim =
      plane.dtype == KVARENA_LATENT_FP8 ? plane.token_stride_bytes : plane.head_dim;
  std::vector<std::int64_t> shape{plane.num_blocks, plane.num_heads};
  std::vector<std::int64_t> strides{plane.block_stride_bytes / element,
                                    plane.head_stride_bytes / element};
  if (plane.tile_order == KVARENA_TILE_CHUNKED) {
    // V that is a part of K has the bytes of K.
    shape.push_back(plane.block_size * (plane.token_stride_bytes / element));
    strides.push_back(1);
  } else {
    shape.insert(shape.end(), {plane.block_size, row_dim});
    strides.insert(strides.end(), {plane.token_stride_bytes / element, 1});
  }
  return array_of(plane.base, dtype, place, std::move(shape), owner, std::move(strides));
}

/// [num_blocks, num_heads, block_size]: the scales of a plane that has one for each token and head.
nb::object scales_of(const kvarena_plane& plane, const Place& place, nb::handle owner) {
  if (plane.scales_offset_bytes == 0) return nb::none();
  return array_of(static_cast<std::byte*>(plane.base) + plane.scales_offset_bytes, kFloat32, place,
                  {plane.num_blocks, plane.num_heads, plane.block_size}, owner,
                  {plane.block_stride_bytes / 4, plane.block_size, 1});
}

/// `row_dim` elements of a token lie in the pool: K's, where V is a part of K.
kvarena_plane plane_of(const Tensor& tensor, const kvarena_kernels_options& options,
                       std::int32_t head_dim, std::int32_t row_dim) {
  auto plane = sized<kvarena_plane>();
  plane.num_heads = options.num_kv_heads;
  plane.head_dim = head_dim;
  plane.block_size = options.block_size_tokens;
  plane.dtype = options.dtype;
  plane.tile_order = options.tile_order;
  tensor.require_dtype(dlpack_dtype(options.dtype));
  const std::int64_t blocks = tensor.ndim() > 0 ? tensor.shape(0) : 0;
  if (options.tile_order == KVARENA_TILE_CHUNKED) {
    tensor.require_shape({blocks, plane.num_heads, std::int64_t{plane.block_size} * row_dim},
                         "[num_blocks, num_kv_heads, block_size * head_dim]");
    tensor.require_dense(2, "the elements of a head without gaps");
    plane.token_stride_bytes = std::int64_t{row_dim} * (dlpack_dtype(options.dtype).bits / 8);
  } else {
    const bool is_latent_fp8 = options.dtype == KVARENA_LATENT_FP8;
    tensor.require_shape(
        {blocks, plane.num_heads, plane.block_size, is_latent_fp8 ? kLatentFp8Bytes : head_dim},
        is_latent_fp8 ? "[num_blocks, 1, block_size, 656]"
                      : "[num_blocks, num_kv_heads, block_size, head_dim]");
    tensor.require_dense(3, "the elements of a token without gaps");
    plane.token_stride_bytes = tensor.stride_bytes(2);
  }
  plane.base = tensor.data();
  plane.num_blocks = blocks;
  plane.block_stride_bytes = tensor.stride_bytes(0);
  plane.head_stride_bytes = tensor.stride_bytes(1);
  return plane;
}

nb::object member_of(nb::handle view, const char* name) {
  if (!nb::hasattr(view, name)) {
    raise_type("layer_view", "an object without ." + std::string(name), "kvarena.LayerView");
  }
  return view.attr(name);
}

/// Reads options for a pool of the engine's own. The C interface refuses those with groups.
kvarena_cache_options read_layout_options(nb::handle given) {
  kvarena_cache_options options = read_cache_options(given);
  const nb::object groups = given.attr("groups");
  options.num_groups = static_cast<std::int64_t>(nb::len(groups));
  return options;
}

nb::object pool_plan(nb::handle given, std::int64_t free_bytes) {
  const kvarena_cache_options options = read_layout_options(given);
  auto plan = sized<kvarena_pool_plan>();
  check(kvarena_layout_plan(&options, free_bytes, &plan));
  return record_of("PoolPlan", plan);
}

nb::object layer_view(const Device& device, nb::handle given, nb::handle memory,
                      std::int32_t layer) {
  const kvarena_cache_options options = read_layout_options(given);
  auto plan = sized<kvarena_pool_plan>();
  check(kvarena_layout_plan(&options, 0, &plan));
  const Tensor taken("memory", memory, device.place());
  taken.require_dense(0, "a dense tensor");
  taken.require_writable();
  std::int64_t bytes = taken.bytes_of_element();
  for (int i = 0; i < taken.ndim(); ++i) bytes *= taken.shape(i);
  if (bytes < plan.pool_bytes) {
    raise_value("memory", std::to_string(bytes) + " bytes",
                std::to_string(plan.pool_bytes) + " bytes or more for " +
                    std::to_string(plan.num_blocks) + " blocks");
  }
  kvarena_plane planes[2];
  for (const std::int32_t kind : {KVARENA_KEY, KVARENA_VALUE}) {
    planes[kind] = sized<kvarena_plane>();
    check(
        kvarena_layout_plane(&options, taken.data(), plan.num_blocks, layer, kind, &planes[kind]));
  }
  return layer_view_of(planes[KVARENA_KEY], planes[KVARENA_VALUE], device.place(), memory);
}

}  // namespace

nb::object layer_view_of(const kvarena_plane& key, const kvarena_plane& value, const Place& place,
                         nb::handle owner) {
  nb::dict values;
  values["key"] = tensor_of(key, place, owner);
  values["value"] = tensor_of(value, place, owner);
  values["tile_order"] = nb::str(kTileOrders[key.tile_order].data());
  values["key_scales"] = scales_of(key, place, owner);
  values["value_scales"] = scales_of(value, place, owner);
  return make_record("LayerView", values);
}

nb::object index_view_of(const kvarena_plane& plane, const Place& place, nb::handle owner) {
  nb::dict values;
  values["keys"] = array_of(plane.base, dlpack_dtype(plane.dtype), place,
                            {plane.num_blocks, plane.block_size, plane.head_dim}, owner,
                            {plane.block_stride_bytes, plane.token_stride_bytes, 1});
  values["scales"] =
      array_of(static_cast<std::byte*>(plane.base) + plane.scales_offset_bytes, kFloat32, place,
               {plane.num_blocks, plane.block_size}, owner, {plane.block_stride_bytes / 4, 1});
  return make_record("IndexView", values);
}

LayerPlanes::LayerPlanes(const kvarena_kernels_options& options, nb::handle view,
                         const Place& place)
    : key_tensor("layer_view.key", member_of(view, "key"), place),
      value_tensor("layer_view.value", member_of(view, "value"), place) {
  const auto order = nb::cast<std::string>(nb::str(member_of(view, "tile_order")));
  const std::string_view expected = kTileOrders[options.tile_order];
  if (order != expected) {
    raise_value("layer_view.tile_order", "\"" + order + "\"",
                "\"" + std::string(expected) + "\", as in the options of the kernels");
  }
  const std::int32_t value_row =
      options.value_in_key != 0 ? options.head_dim_k : options.head_dim_v;
  key = plane_of(key_tensor, options, options.head_dim_k, options.head_dim_k);
  value = plane_of(value_tensor, options, options.head_dim_v, value_row);
}

void bind_layout(nb::module_& module) {
  module.def("pool_plan", &pool_plan, nb::arg("options"), nb::arg("free_bytes") = 0);
  module.def("layer_view", &layer_view, nb::arg("device"), nb::arg("options"), nb::arg("memory"),
             nb::arg("layer"));
}

}  // namespace kvarena::python
