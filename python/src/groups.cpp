// Caches whose layers keep different data.

#include "groups.hpp"

#include "cache.hpp"
#include "explain.hpp"
#include "records.hpp"
#include "tokens.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace kvarena::python {

namespace {

constexpr std::string_view kKinds[] = {"full", "window", "chunk", "state", "cross"};
constexpr std::string_view kLayers = "whole numbers, or pairs (layer, reads_layer)";

std::vector<kvarena_group_layer> read_layers(nb::handle given) {
  std::vector<kvarena_group_layer> layers;
  for (const nb::handle item : given) {
    std::int32_t layer = 0;
    std::pair<std::int32_t, std::int32_t> both;
    if (nb::try_cast(item, layer)) {
      layers.push_back({layer, layer});
    } else if (nb::try_cast(item, both)) {
      layers.push_back({both.first, both.second});
    } else {
      raise_type("layers", nb::cast<std::string>(nb::repr(item)), kLayers);
    }
  }
  return layers;
}

constexpr std::string_view kModes[] = {"in_place", "read_write"};

std::vector<kvarena_state_plane> read_planes(nb::handle given) {
  std::vector<kvarena_state_plane> planes;
  for (const nb::handle item : given) {
    std::pair<nb::object, std::vector<std::int64_t>> both;
    kvarena_state_plane plane{};
    if (!nb::try_cast(item, both) || both.second.size() > std::size(plane.shape)) {
      raise_type("planes", nb::cast<std::string>(nb::repr(item)),
                 "pairs (dtype, shape) of at most 4 dimensions");
    }
    std::copy(both.second.begin(), both.second.end(), plane.shape);
    plane.num_dims = static_cast<std::int32_t>(both.second.size());
    plane.dtype = dtype_of(both.first);
    planes.push_back(plane);
  }
  return planes;
}

kvarena_layer_group read_group(nb::handle given, std::vector<kvarena_group_layer>& layers,
                               std::vector<kvarena_state_plane>& planes) {
  if (!nb::isinstance(given, python_class("kvarena._options", "LayerGroup"))) {
    raise_type("groups", nb::cast<std::string>(nb::repr(given)), "kvarena.LayerGroup");
  }
  auto group = sized<kvarena_layer_group>();
  read_members(given, group);
  layers = read_layers(given.attr("layers"));
  group.layers = layers.data();
  group.num_layers = static_cast<std::int32_t>(layers.size());
  planes = read_planes(given.attr("planes"));
  group.planes = planes.data();
  group.num_planes = static_cast<std::int32_t>(planes.size());
  group.state_mode =
      number_of("state_mode", nb::cast<std::string>(given.attr("state_mode")), kModes);
  group.kind = number_of("kind", nb::cast<std::string>(given.attr("kind")), kKinds);
  group.dtype = dtype_of(given.attr("dtype"));
  const nb::object dtype_v = given.attr("dtype_v");
  group.has_dtype_v = dtype_v.is_none() ? 0 : 1;
  if (group.has_dtype_v != 0) group.dtype_v = dtype_of(dtype_v);
  return group;
}

nb::object pages_of(const Cache& cache) {
  auto stats = sized<kvarena_page_stats>();
  check(kvarena_cache_pages(cache.handle(), &stats), cache.witness());
  return record_of("PageStats", stats);
}

nb::list parts_of(const Cache& cache) {
  std::int32_t count = 0;
  check(kvarena_cache_num_parts(cache.handle(), &count), cache.witness());
  nb::list parts;
  for (std::int32_t i = 0; i < count; ++i) {
    auto stats = sized<kvarena_part_stats>();
    check(kvarena_cache_part(cache.handle(), i, &stats), cache.witness());
    parts.append(record_of("PartStats", stats));
  }
  return parts;
}

std::int64_t restorable_length(const Sequence& sequence, std::int64_t length) {
  std::int64_t found = 0;
  check(kvarena_sequence_restorable_length(sequence.cache->handle(), sequence.id, length, &found),
        sequence.cache->witness());
  return found;
}

/// The index of the first block that is kept, and the blocks from there on.
std::pair<std::int64_t, std::vector<std::int32_t>> group_blocks(const Sequence& sequence,
                                                                std::int32_t part) {
  std::int64_t first = 0;
  std::vector<std::int32_t> blocks = list_of<std::int32_t>(
      [&](std::int32_t* ids, std::size_t room, std::size_t* count) {
        return kvarena_sequence_group_blocks(sequence.cache->handle(), sequence.id, part, ids, room,
                                             count, &first);
      },
      sequence.cache->witness());
  return {first, std::move(blocks)};
}

/// Creates a sequence from (first_block, blocks) of each part: blocks that somebody holds.
Sequence create_from(CacheArgument cache, std::int64_t length,
                     const std::vector<std::pair<std::int64_t, std::vector<std::int32_t>>>& parts,
                     std::int32_t cross_tokens, std::uint64_t salt, nb::handle extra_keys,
                     std::int64_t max_length, std::uint64_t owner) {
  auto options = sized<kvarena_sequence_options>();
  const Prompt prompt(nb::none(), salt, extra_keys);
  prompt.put_in(options);
  options.cross_tokens = cross_tokens;
  options.max_length_tokens = max_length;
  options.owner = owner;
  std::vector<std::vector<std::uint32_t>> generations(parts.size());
  std::vector<kvarena_group_blocks> given(parts.size(), sized<kvarena_group_blocks>());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const std::int32_t block : parts[i].second) {
      auto info = sized<kvarena_block_info>();
      check(kvarena_cache_block(cache.p->handle(), block, &info), cache.p->witness());
      generations[i].push_back(info.generation);
    }
    given[i].first_block = parts[i].first;
    given[i].blocks = parts[i].second.data();
    given[i].generations = generations[i].data();
    given[i].num_blocks = parts[i].second.size();
  }
  Sequence made{cache, 0};
  check(kvarena_sequence_create_from(cache.p->handle(), length, given.data(), given.size(),
                                     &options, &made.id),
        cache.p->witness());
  return made;
}

/// [num_slots, *shape] of one plane.
nb::object state_array(const kvarena_state_view& view, std::int32_t index, const Place& place,
                       nb::handle owner) {
  const kvarena_state_plane& plane = view.planes[index];
  const dlpack::DataType dtype = dlpack_dtype(plane.dtype);
  const auto dims = static_cast<std::size_t>(plane.num_dims);
  std::vector<std::int64_t> shape(plane.shape, plane.shape + dims);
  std::vector<std::int64_t> strides(dims, 1);
  for (std::size_t i = dims; i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  shape.insert(shape.begin(), view.num_slots);
  strides.insert(strides.begin(), view.slot_stride_bytes / (dtype.bits / 8));
  return array_of(static_cast<std::byte*>(view.base) + view.offsets[index], dtype, place,
                  std::move(shape), owner, std::move(strides));
}

/// One array for each plane, in the memory of the pool, and which part of a state has the layer.
nb::object state_view(const Cache& cache, std::int32_t layer) {
  auto view = sized<kvarena_state_view>();
  check(kvarena_cache_state_view(cache.handle(), layer, &view), cache.witness());
  const nb::object owner = cache.memory_owner();
  nb::list planes;
  for (std::int32_t i = 0; i < view.num_planes; ++i) {
    planes.append(state_array(view, i, cache.device->place(), owner));
  }
  nb::dict values;
  values["planes"] = planes;
  values["group"] = view.index;
  values["part"] = view.part;
  return make_record("StateView", values);
}

std::vector<std::int64_t> checkpoints_of(const Sequence& sequence) {
  return list_of<std::int64_t>(
      [&](std::int64_t* lengths, std::size_t room, std::size_t* count) {
        return kvarena_sequence_checkpoints(sequence.cache->handle(), sequence.id, lengths, room,
                                            count);
      },
      sequence.cache->witness());
}

void checkpoint(const Sequence& sequence) {
  check(kvarena_sequence_checkpoint(sequence.cache->handle(), sequence.id),
        sequence.cache->witness());
}

/// (0, blocks) of the state at a length, as create_sequence_from takes them.
std::pair<std::int64_t, std::vector<std::int32_t>> state_blocks(const Sequence& sequence,
                                                                std::int64_t length,
                                                                std::int32_t part) {
  std::vector<std::uint32_t> generations;
  return {0, list_of<std::int32_t>(
                 [&](std::int32_t* ids, std::size_t room, std::size_t* count) {
                   generations.resize(room);
                   return kvarena_sequence_state_blocks(sequence.cache->handle(), sequence.id,
                                                        length, part, ids, generations.data(), room,
                                                        count);
                 },
                 sequence.cache->witness())};
}

}  // namespace

GroupOptions read_groups(nb::handle given, kvarena_cache_options& options) {
  GroupOptions read;
  const nb::object groups = given.attr("groups");
  const std::size_t count = nb::len(groups);
  read.layers.resize(count);
  read.planes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    read.groups.push_back(read_group(groups[i], read.layers[i], read.planes[i]));
  }
  options.groups = read.groups.data();
  options.num_groups = static_cast<std::int64_t>(count);
  return read;
}

std::map<std::int32_t, LayerShape> layer_shapes(const GroupOptions& groups,
                                                std::int32_t num_q_heads) {
  std::map<std::int32_t, LayerShape> shapes;
  for (std::size_t i = 0; i < groups.groups.size(); ++i) {
    const kvarena_layer_group& group = groups.groups[i];
    if (group.kind == KVARENA_GROUP_STATE) continue;
    const LayerShape shape{num_q_heads, group.num_kv_heads, group.head_dim_k,
                           group.head_dim_v == 0 ? group.head_dim_k : group.head_dim_v,
                           group.value_in_key != 0};
    for (const kvarena_group_layer& layer : groups.layers[i]) shapes[layer.layer] = shape;
  }
  return shapes;
}

void bind_groups(nb::module_& module) {
  nb::borrow<nb::class_<Cache>>(module.attr("Cache"))
      .def("pages", &pages_of)
      .def("parts", &parts_of)
      .def("state_view", &state_view, nb::arg("layer"))
      .def("create_sequence_from", &create_from, nb::arg("length"), nb::arg("parts"), nb::kw_only(),
           nb::arg("cross_tokens") = 0, nb::arg("salt") = 0, nb::arg("extra_keys") = nb::tuple(),
           nb::arg("max_length") = 0, nb::arg("owner") = 0);
  nb::borrow<nb::class_<Sequence>>(module.attr("Sequence"))
      .def("restorable_length", &restorable_length, nb::arg("length"))
      .def("group_blocks", &group_blocks, nb::arg("part"))
      .def("checkpoint", &checkpoint)
      .def_prop_ro("checkpoints", &checkpoints_of)
      .def("state_blocks", &state_blocks, nb::arg("length"), nb::arg("part"));
}

}  // namespace kvarena::python
