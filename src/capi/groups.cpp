// Caches whose layers keep different data, in one pool of pages.

#include "capi/convert.hpp"
#include "capi/json.hpp"
#include "capi/objects.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

constexpr std::int64_t kMostLayers = 4096;

static_assert(KVARENA_GROUP_WINDOW == static_cast<int>(PagedKind::window));
static_assert(KVARENA_GROUP_CHUNK == static_cast<int>(PagedKind::chunk));
static_assert(KVARENA_GROUP_STATE == static_cast<int>(PagedKind::state));
static_assert(KVARENA_STATE_READ_WRITE == static_cast<int>(StateMode::read_write));
static_assert(KVARENA_GROUP_CROSS == static_cast<int>(PagedKind::cross));

Result<DType> type_of(std::int32_t number) noexcept {
  const Result<DType> dtype = dtype_from_c(number);
  return dtype ? dtype : invalid_option(Option::dtype, number, 0, KVARENA_LATENT_FP8);
}

Status read_planes(const kvarena_layer_group& given, std::vector<StatePlane>& planes) {
  constexpr auto kMost = static_cast<std::int64_t>(StateView::kMaxPlanes);
  if (given.num_planes < 0 || given.num_planes > kMost) {
    return invalid_option(Option::planes, given.num_planes, 0, kMost);
  }
  if (given.planes == nullptr && given.num_planes > 0) return refused_null();
  for (const kvarena_state_plane& plane :
       std::span(given.planes, static_cast<std::size_t>(given.num_planes))) {
    const Result<DType> dtype = type_of(plane.dtype);
    if (!dtype) return dtype.status();
    planes.push_back({.dtype = *dtype, .num_dims = plane.num_dims});
    std::copy_n(plane.shape, StatePlane::kMaxDims, planes.back().shape.begin());
  }
  return {};
}

/// Reads a group. Its layers and planes are copied, and borrowed from there.
Result<LayerGroup> group_of(const kvarena_layer_group& given, std::vector<GroupLayer>& layers,
                            std::vector<StatePlane>& planes) {
  if (given.num_layers < 0 || given.num_layers > kMostLayers) {
    return invalid_option(Option::num_layers, given.num_layers, 1, kMostLayers);
  }
  if (given.layers == nullptr && given.num_layers > 0) return refused_null();
  if (given.kind < 0 || given.kind > KVARENA_GROUP_CROSS) {
    return invalid_option(Option::kind, given.kind, 0, KVARENA_GROUP_CROSS);
  }
  const Result<DType> dtype = type_of(given.dtype);
  if (!dtype) return dtype.status();
  std::optional<DType> dtype_v;
  if (given.has_dtype_v != 0) {
    const Result<DType> own = type_of(given.dtype_v);
    if (!own) return own.status();
    dtype_v = *own;
  }
  for (const kvarena_group_layer& layer :
       std::span(given.layers, static_cast<std::size_t>(given.num_layers))) {
    layers.push_back(
        {layer.layer, layer.reads_layer == layer.layer ? std::int32_t{-1} : layer.reads_layer});
  }
  if (Status s = read_planes(given, planes); !s) return s;
  if (given.state_mode < 0 || given.state_mode > KVARENA_STATE_READ_WRITE) {
    return invalid_option(Option::mode, given.state_mode, 0, KVARENA_STATE_READ_WRITE);
  }
  LayerGroup group;
  group.planes = planes;
  group.mode = static_cast<StateMode>(given.state_mode);
  group.keeps_for_undo = given.loses_on_abort == 0;
  group.kind = static_cast<PagedKind>(given.kind);
  group.layers = layers;
  group.num_kv_heads = given.num_kv_heads;
  group.head_dim_k = given.head_dim_k;
  group.head_dim_v = given.head_dim_v;
  group.dtype = *dtype;
  group.dtype_v = dtype_v;
  group.value_in_key = given.value_in_key != 0;
  if (given.block_size_tokens != 0) group.block_size_tokens = given.block_size_tokens;
  group.limit_tokens = given.limit_tokens;
  group.rollback_tokens = given.rollback_tokens;
  if (given.has_token_scales != 0) group.scale = ScaleKind::per_token_head;
  group.index_dim = given.index_dim;
  return group;
}

}  // namespace

Status capi::check_part(const KvCache& cache, std::int32_t part) noexcept {
  const std::int64_t parts = std::ssize(cache.manager().groups());
  if (part >= 0 && part < parts) return {};
  return invalid_argument(Resource::num_groups, part, 0, parts - 1);
}

Status capi::groups_from_c(const kvarena_cache_options& options, GroupOptions& groups) {
  const std::int64_t count = options.num_groups;
  if (count < 0 || count > static_cast<std::int64_t>(kMaxBlockGroups)) {
    return invalid_argument(Resource::num_groups, count, 0, kMaxBlockGroups);
  }
  if (count == 0) return {};
  if (options.groups == nullptr) return refused_null();
  groups.layers.resize(static_cast<std::size_t>(count));
  groups.planes.resize(groups.layers.size());
  for (std::size_t i = 0; i < groups.layers.size(); ++i) {
    kvarena_layer_group given;
    if (Status s = read_entry(options.groups, i, given); !s) return s;
    const Result<LayerGroup> group = group_of(given, groups.layers[i], groups.planes[i]);
    if (!group) return group.status();
    groups.groups.push_back(*group);
  }
  return {};
}

Json capi::json_of(const LayerGroup& group) {
  Json layers = Json::array();
  for (const GroupLayer& layer : group.layers) {
    layers.push_back({layer.layer, layer.reads_layer < 0 ? layer.layer : layer.reads_layer});
  }
  Json json{{"kind", name_of(group.kind)}, {"layers", layers}};
  if (group.kind == PagedKind::state) {
    for (const StatePlane& plane : group.planes) {
      json["planes"].push_back(
          {{"dtype", name_of(plane.dtype)},
           {"shape", std::span(plane.shape).first(static_cast<std::size_t>(plane.num_dims))}});
    }
    json["mode"] = group.mode == StateMode::in_place ? "in_place" : "read_write";
    json["rollback_tokens"] = group.rollback_tokens;
    return json;
  }
  json.update({{"limit_tokens", group.limit_tokens},
               {"num_kv_heads", group.num_kv_heads},
               {"head_dim_k", group.head_dim_k},
               {"head_dim_v", group.head_dim_v},
               {"dtype", name_of(group.dtype)},
               {"dtype_v", name_of(group.dtype_v.value_or(group.dtype))},
               {"value_in_key", group.value_in_key},
               {"block_size_tokens", group.block_size_tokens},
               {"rollback_tokens", group.rollback_tokens},
               {"has_token_scales", group.scale == ScaleKind::per_token_head},
               {"index_dim", group.index_dim}});
  return json;
}

kvarena_status kvarena_step_write_cross(kvarena_cache* cache,
                                        const kvarena_write_cross_args* args) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_write_cross_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<DType> dtype = dtype_from_c(given.dtype);
    if (!dtype) return dtype.status();
    WriteCrossArgs write;
    write.layer = given.layer;
    write.sequence = SequenceId(given.sequence);
    write.key = given.key;
    write.value = given.value;
    write.dtype = *dtype;
    write.key_token_stride_bytes = given.key_token_stride_bytes;
    write.value_token_stride_bytes = given.value_token_stride_bytes;
    write.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    return object.get().write_cross(write);
  });
}

kvarena_status kvarena_step_write_index(kvarena_cache* cache,
                                        const kvarena_write_index_args* args) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_write_index_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<DType> dtype = dtype_from_c(given.dtype);
    if (!dtype) return dtype.status();
    return object.get().write_index({.layer = given.layer,
                                     .key = given.key,
                                     .dtype = *dtype,
                                     .key_token_stride_bytes = given.key_token_stride_bytes});
  });
}

kvarena_status kvarena_cache_pages(kvarena_cache* cache, kvarena_page_stats* stats) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    const KvCache& its = object.get();
    const PageStats found = its.manager().page_stats();
    kvarena_page_stats result{};
    result.page_bytes = its.arena().bytes() / its.arena().num_blocks();
    result.num_pages = found.num_pages;
    result.free = found.free;
    result.of_groups = found.of_groups;
    result.offline = found.offline;
    result.evictable = found.evictable;
    result.reserved = found.reserved;
    result.watermark = found.watermark;
    result.peak_used = found.peak_used;
    result.turned = found.turned;
    write_struct(result, stats);
    return {};
  });
}

kvarena_status kvarena_cache_num_parts(kvarena_cache* cache, int32_t* num_parts) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (num_parts == nullptr) return refused_null();
    *num_parts = static_cast<std::int32_t>(object.get().manager().groups().size());
    return {};
  });
}

kvarena_status kvarena_cache_part(kvarena_cache* cache, int32_t part, kvarena_part_stats* stats) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    if (Status s = check_part(object.get(), part); !s) return s;
    const GroupLayout& layout = *object.get().arena().groups();
    const auto index = static_cast<std::size_t>(part);
    const std::size_t with_tokens = layout.parts().size();
    const GroupStats found = object.get().manager().group_stats(part);
    kvarena_part_stats result{};
    if (index < with_tokens) {
      result.group = layout.parts()[index].group;
      result.block_size_tokens = layout.parts()[index].layout.block_size();
    } else {
      result.group = layout.states()[index - with_tokens].group;
    }
    result.block_bytes = found.block_bytes;
    result.blocks_per_page = found.blocks_per_page;
    result.pages = found.pages;
    result.free = found.free;
    result.referenced = found.referenced;
    result.fenced = found.fenced;
    result.evictable = found.evictable;
    result.offline = found.offline;
    result.stranded = found.stranded;
    write_struct(result, stats);
    return {};
  });
}
