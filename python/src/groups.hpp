#pragma once

/// @file
/// Groups of layers that keep different data, as Python gives them: kvarena.LayerGroup.

#include <map>
#include <vector>

#include "core.hpp"
#include "layer_args.hpp"

namespace kvarena::python {

/// Groups with the layers that they borrow.
struct GroupOptions {
  std::vector<kvarena_layer_group> groups;
  std::vector<std::vector<kvarena_group_layer>> layers;  // by group
  std::vector<std::vector<kvarena_state_plane>> planes;  // by group
};

/// Reads the members `groups` and `page_sequence_tokens` of a kvarena.CacheOptions into `options`,
/// which borrows the result. Raises TypeError or ValueError with the group and its member.
GroupOptions read_groups(nb::handle given, kvarena_cache_options& options);

/// Returns the shape of each layer of the groups.
std::map<std::int32_t, LayerShape> layer_shapes(const GroupOptions& groups,
                                                std::int32_t num_q_heads);

}  // namespace kvarena::python
