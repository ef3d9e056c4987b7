#pragma once

/// @file
/// K and V of one layer of a pool, as tensors: out of a plane of the C interface, and into one.

#include "core.hpp"
#include "tensors.hpp"

namespace kvarena::python {

/// Returns the kvarena.LayerView of two planes. Its tensors keep `owner`.
nb::object layer_view_of(const kvarena_plane& key, const kvarena_plane& value, const Place& place,
                         nb::handle owner);

/// Returns the kvarena.IndexView of a plane of an index. Its tensors keep `owner`.
nb::object index_view_of(const kvarena_plane& plane, const Place& place, nb::handle owner);

/// The planes of a kvarena.LayerView for kernels of these options. The constructor raises
/// ValueError or TypeError for tensors that are no such planes.
struct LayerPlanes {
  LayerPlanes(const kvarena_kernels_options& options, nb::handle view, const Place& place);

  Tensor key_tensor;
  Tensor value_tensor;
  kvarena_plane key;
  kvarena_plane value;
};

}  // namespace kvarena::python
