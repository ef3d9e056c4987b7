#include "layer_args.hpp"

#include <vector>

#include <nanobind/stl/string.h>

namespace kvarena::python {

namespace {

constexpr std::string_view kDenseHeads =
    "heads and elements without gaps; only tokens may be apart";

void require_heads(const Tensor& tensor, std::int64_t num_tokens, std::int64_t num_heads,
                   std::int64_t head_dim, std::string_view form) {
  tensor.require_shape({num_tokens, num_heads, head_dim}, form);
  tensor.require_dense(1, kDenseHeads);
}

/// Takes scales of fp8: one, or one for each KV head. Null: no scale.
const float* take_scale(std::optional<Tensor>& taken, std::string_view argument, nb::handle object,
                        const Place& place, std::int32_t num_kv_heads, std::int32_t& per_head) {
  if (object.is_none()) return nullptr;
  if (!place.is_cuda) {
    raise_value(argument, "a tensor", "None on the host, where K and V have no scales");
  }
  taken.emplace(argument, object, place);
  taken->require_dtype(kFloat32);
  const bool is_one = taken->ndim() == 0 || (taken->ndim() == 1 && taken->shape(0) == 1);
  if (!is_one) {
    taken->require_shape({num_kv_heads}, "[num_kv_heads], or one scale");
    per_head = 1;
  }
  taken->require_dense(0, "adjacent scales");
  return static_cast<const float*>(taken->data());
}

nb::object result_for(const LayerShape& shape, std::int64_t num_tokens, const Tensor& q,
                      const AttendTensors& tensors) {
  if (!tensors.out.is_none()) return nb::borrow(tensors.out);
  return new_tensor(tensors.q, q, {num_tokens, shape.num_q_heads, shape.head_dim_v});
}

}  // namespace

WriteCall::WriteCall(const LayerShape& shape, std::int64_t num_tokens, const Place& place,
                     std::int32_t layer, nb::handle key_object, nb::handle value_object,
                     nb::handle key_scale_object, nb::handle value_scale_object)
    : key("key", key_object, place) {
  require_heads(key, num_tokens, shape.num_kv_heads, shape.head_dim_k,
                "[num_tokens, num_kv_heads, head_dim]");
  args.dtype = key.float_dtype();
  args.layer = layer;
  args.key = key.data();
  args.key_token_stride_bytes = key.token_stride_bytes();
  if (!shape.value_in_key) {
    value.emplace("value", value_object, place);
    require_heads(*value, num_tokens, shape.num_kv_heads, shape.head_dim_v,
                  "[num_tokens, num_kv_heads, head_dim_v]");
    value->require_dtype(key.dtype());
    args.value = value->data();
    args.value_token_stride_bytes = value->token_stride_bytes();
  } else if (!value_object.is_none()) {
    raise_value("value", "a tensor", "None: V of this layer lies in K");
  }
  args.key_scale = take_scale(key_scale, "key_scale", key_scale_object, place, shape.num_kv_heads,
                              args.scale_per_head);
  args.value_scale = take_scale(value_scale, "value_scale", value_scale_object, place,
                                shape.num_kv_heads, args.scale_per_head);
}

AttendCall::AttendCall(const LayerShape& shape, std::int64_t num_tokens, const Place& place,
                       const AttendTraits& traits, const AttendTensors& tensors)
    : q("q", tensors.q, place),
      result((require_heads(q, num_tokens, shape.num_q_heads, shape.head_dim_k,
                            "[num_tokens, num_q_heads, head_dim]"),
              q.float_dtype(), result_for(shape, num_tokens, q, tensors))),
      out("out", result, place) {
  require_heads(out, num_tokens, shape.num_q_heads, shape.head_dim_v,
                "[num_tokens, num_q_heads, head_dim_v]");
  out.require_writable();
  args.q = q.data();
  args.out = out.data();
  args.q_token_stride_bytes = q.token_stride_bytes();
  args.out_token_stride_bytes = out.token_stride_bytes();
  args.q_dtype = q.float_dtype();
  args.out_dtype = out.float_dtype();
  args.layer = traits.layer;
  args.scale = static_cast<float>(traits.scale);
  args.soft_cap = static_cast<float>(traits.soft_cap);
  args.windowed = traits.windowed ? 1 : 0;
  args.kv_is_written = traits.kv_is_written ? 1 : 0;
  if (!tensors.lse.is_none()) {
    lse.emplace("lse", tensors.lse, place);
    lse->require_dtype(kFloat32);
    lse->require_shape({num_tokens, shape.num_q_heads}, "[num_tokens, num_q_heads]");
    lse->require_dense(0, "a dense tensor");
    lse->require_writable();
    args.lse = static_cast<float*>(lse->data());
  }
  if (!tensors.sinks.is_none()) {
    sinks.emplace("sinks", tensors.sinks, place);
    sinks->require_dtype(kFloat32);
    sinks->require_shape({shape.num_q_heads}, "[num_q_heads]");
    sinks->require_dense(0, "a dense tensor");
    args.sinks = static_cast<const float*>(sinks->data());
  }
  if (!tensors.tree_mask.is_none()) {
    tree_mask.emplace("tree_mask", tensors.tree_mask, place);
    // torch has few operations on uint64: int64 with the same bits is as good.
    if (tree_mask->dtype() != kInt64) tree_mask->require_dtype(kUint64);
    tree_mask->require_shape({num_tokens}, "[num_tokens]");
    tree_mask->require_dense(0, "a dense tensor");
    args.tree_mask = static_cast<const std::uint64_t*>(tree_mask->data());
  }
  args.key_scale = take_scale(key_scale, "key_scale", tensors.key_scale, place, shape.num_kv_heads,
                              args.scale_per_head);
  args.value_scale = take_scale(value_scale, "value_scale", tensors.value_scale, place,
                                shape.num_kv_heads, args.scale_per_head);
}

}  // namespace kvarena::python
