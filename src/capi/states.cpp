// States of recurrent layers.

#include "capi/convert.hpp"
#include "capi/objects.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

using namespace kvarena;
using namespace kvarena::capi;

kvarena_status kvarena_sequence_checkpoint(kvarena_cache* cache, kvarena_sequence sequence) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return object.get().checkpoint(SequenceId(sequence)); });
}

kvarena_status kvarena_sequence_checkpoints(kvarena_cache* cache, kvarena_sequence sequence,
                                            int64_t* lengths, size_t room, size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (count == nullptr || (lengths == nullptr && room > 0)) return refused_null();
    const Result<std::int64_t> found =
        object.get().tables().checkpoints_of(SequenceId(sequence), {lengths, room});
    if (found) {
      *count = static_cast<std::size_t>(*found);
    } else if (found.status().resource == Resource::span_size) {
      *count = found.status().required;
    }
    return found.status();
  });
}

kvarena_status kvarena_sequence_state_blocks(kvarena_cache* cache, kvarena_sequence sequence,
                                             int64_t length_tokens, int32_t part, int32_t* blocks,
                                             uint32_t* generations, size_t room, size_t* count) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const bool has_arrays = blocks != nullptr && generations != nullptr;
    if (count == nullptr || (!has_arrays && room > 0)) return refused_null();
    if (Status s = check_part(object.get(), part); !s) return s;
    static_assert(sizeof(BlockId) == sizeof(std::int32_t));
    static_assert(sizeof(Generation) == sizeof(std::uint32_t));
    const Result<std::int64_t> found = object.get().tables().state_blocks(
        SequenceId(sequence), length_tokens, part, {reinterpret_cast<BlockId*>(blocks), room},
        {reinterpret_cast<Generation*>(generations), room});
    if (found) {
      *count = static_cast<std::size_t>(*found);
    } else if (found.status().resource == Resource::span_size) {
      *count = found.status().required;
    }
    return found.status();
  });
}

namespace {

/// The lists in host memory; a recording has none.
void write_host_slots(const StateSlots& found, kvarena_state_slots& result) noexcept {
  result.read = found.read.data();
  result.write = found.write.data();
  result.extra_offsets = found.extra_offsets.data();
  result.extra_tokens = found.extra_tokens.data();
  result.extra_slots = found.extra_slots.data();
  result.num_rows = static_cast<std::int32_t>(found.extra_offsets.size()) - 1;
  result.num_extras = static_cast<std::int32_t>(found.extra_tokens.size());
}

}  // namespace

kvarena_status kvarena_step_states(kvarena_cache* cache, int32_t index,
                                   kvarena_state_slots* slots) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(slots); !s) return s;
    const Result<DeviceBatch> batch = object.get().device_batch();
    if (!batch) return batch.status();
    const auto count = std::ssize(object.device_states);
    if (index < 0 || index >= count) {
      return invalid_argument(Resource::num_groups, index, 0, count - 1);
    }
    const auto at = static_cast<std::size_t>(index);
    const DeviceStateSlots& on_device = object.device_states[at];
    kvarena_state_slots result{};
    result.num_rows = batch->num_rows;
    if (at < object.states.size()) write_host_slots(object.states[at], result);
    result.num_parts = on_device.num_parts;
    result.part = on_device.group;
    result.device_read = on_device.read;
    result.device_write = on_device.write;
    result.device_extra_offsets = on_device.extra_offsets;
    result.device_extra_tokens = on_device.extra_tokens;
    result.device_extra_slots = on_device.extra_slots;
    result.max_extras = static_cast<std::int32_t>(on_device.max_extras);
    write_struct(result, slots);
    return {};
  });
}

kvarena_status kvarena_cache_state_view(kvarena_cache* cache, int32_t layer,
                                        kvarena_state_view* view) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(view); !s) return s;
    const Result<StateView> found = object.get().state_view(layer);
    if (!found) return found.status();
    kvarena_state_view result{};
    result.base = found->base;
    result.slot_stride_bytes = found->slot_stride;
    result.num_slots = found->num_slots;
    result.index = found->group;
    result.part = found->part;
    result.num_planes = static_cast<std::int32_t>(found->num_planes);
    for (std::size_t i = 0; i < found->num_planes; ++i) {
      const StatePlaneView& plane = found->planes[i];
      result.offsets[i] = plane.offset;
      result.planes[i].num_dims = plane.plane.num_dims;
      result.planes[i].dtype = capi::to_c(plane.plane.dtype);
      std::ranges::copy(plane.plane.shape, result.planes[i].shape);
    }
    write_struct(result, view);
    return {};
  });
}
