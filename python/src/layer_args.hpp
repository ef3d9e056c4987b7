#pragma once

/// @file
/// The arguments of write and attend, checked. They are the same for a cache's step and for kernels
/// of an engine with tables of its own.

#include <optional>

#include "core.hpp"
#include "tensors.hpp"

namespace kvarena::python {

/// The dimensions that tensors of a layer must have.
struct LayerShape {
  std::int32_t num_q_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim_k;
  std::int32_t head_dim_v;

  bool value_in_key = false;  ///< V lies in K: writes have no value

  template <class Options>
  static LayerShape of(const Options& o) {
    bool value_in_key = false;
    if constexpr (requires { o.value_in_key; }) value_in_key = o.value_in_key != 0;
    return {o.num_q_heads, o.num_kv_heads, o.head_dim_k,
            o.head_dim_v == 0 ? o.head_dim_k : o.head_dim_v, value_in_key};
  }
};

/// K and V of a write. The constructor raises ValueError or TypeError; `args` are good then.
struct WriteCall {
  WriteCall(const LayerShape& shape, std::int64_t num_tokens, const Place& place,
            std::int32_t layer, nb::handle key, nb::handle value, nb::handle key_scale,
            nb::handle value_scale);

  Tensor key;
  std::optional<Tensor> value;  // none: it lies in the key
  std::optional<Tensor> key_scale;
  std::optional<Tensor> value_scale;
  kvarena_write_args args = sized<kvarena_write_args>();
};

/// The arguments of attend that are no tensors.
struct AttendTraits {
  std::int32_t layer;
  double scale;
  double soft_cap;
  bool windowed;
  bool kv_is_written;
};

/// The tensors of attend; all but q may be None.
struct AttendTensors {
  nb::handle q;
  nb::handle out;
  nb::handle lse;
  nb::handle sinks;
  nb::handle tree_mask;
  nb::handle key_scale;
  nb::handle value_scale;
};

/// The arguments of attend. Without `out`, the result is a new tensor of q's library.
struct AttendCall {
  AttendCall(const LayerShape& shape, std::int64_t num_tokens, const Place& place,
             const AttendTraits& traits, const AttendTensors& tensors);

  Tensor q;
  nb::object result;
  Tensor out;
  std::optional<Tensor> lse;
  std::optional<Tensor> sinks;
  std::optional<Tensor> tree_mask;
  std::optional<Tensor> key_scale;
  std::optional<Tensor> value_scale;
  kvarena_attend_args args = sized<kvarena_attend_args>();
};

}  // namespace kvarena::python
