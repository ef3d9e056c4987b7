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

kvarena_status kvarena_step_states(kvarena_cache* cache, int32_t index,
                                   kvarena_state_slots* slots) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(slots); !s) return s;
    if (const Result<DeviceBatch> batch = object.get().device_batch(); !batch) {
      return batch.status();
    }
    const auto count = std::ssize(object.states);
    if (index < 0 || index >= count) {
      return invalid_argument(Resource::num_groups, index, 0, count - 1);
    }
    const StateSlots& found = object.states[static_cast<std::size_t>(index)];
    kvarena_state_slots result{};
    result.read = found.read.data();
    result.write = found.write.data();
    result.extra_offsets = found.extra_offsets.data();
    result.extra_tokens = found.extra_tokens.data();
    result.extra_slots = found.extra_slots.data();
    result.num_rows = static_cast<std::int32_t>(found.extra_offsets.size()) - 1;
    result.num_extras = static_cast<std::int32_t>(found.extra_tokens.size());
    result.num_parts = found.num_parts;
    result.part = found.group;
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
