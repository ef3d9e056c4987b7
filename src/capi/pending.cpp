#include "capi/pending.hpp"

#include "capi/convert.hpp"
#include "capi/json.hpp"

#include <algorithm>

namespace kvarena::capi {

Status set_inline_calls(std::int32_t inline_calls, HostDeviceOptions&) {
  return inline_calls == 0 ? Status{} : unsupported_option(Option::streams, 1);
}
Status set_cache_name(const std::string&, KvCacheOptions&) { return {}; }
Status set_max_pins(std::int32_t, KvCacheOptions&) { return {}; }
std::int32_t max_pins_of(const KvCacheOptions&) { return 0; }

Result<KvLayerView> view_of(const KvLayout& layout, BlockOrder order, std::int64_t num_blocks,
                            void* base, std::int32_t layer) {
  if (const Result<std::int64_t> bytes = layout.pool_bytes(num_blocks); !bytes) {
    return bytes.status();
  }
  if (layer < 0 || layer >= layout.num_layers()) {
    return invalid_argument(Resource::layer, layer, 0, layout.num_layers() - 1);
  }
  const auto plane = [&](PlaneKind kind) {
    const std::int32_t index = layout.plane_of(layer, kind);
    const PlaneSpec& spec = layout.planes()[static_cast<std::size_t>(index)];
    return PlaneView{static_cast<std::byte*>(base) + layout.plane_offset(index, order, num_blocks),
                     layout.block_stride(index, order),
                     layout.head_stride(index),
                     layout.token_stride(index),
                     spec.num_heads,
                     spec.head_dim,
                     spec.dtype,
                     layout.tile_order()};
  };
  return KvLayerView{plane(PlaneKind::key), plane(PlaneKind::value), layout.block_size(),
                     num_blocks};
}

Result<SequenceId> import_sequence(KvCache&, std::int64_t, const SequenceOptions&, Urgency) {
  return unsupported(Resource::sequence);
}
Status publish_import(KvCache&, SequenceId) { return unsupported(Resource::sequence); }
Status fail_import(KvCache&, SequenceId) { return unsupported(Resource::sequence); }
std::int32_t import_state_of(const KvCache&, SequenceId) { return KVARENA_IMPORT_NONE; }
Status set_deadline(KvCache&, SequenceId, std::int64_t) { return unsupported(Resource::sequence); }

Status copy_rows(const BlockTables& tables, std::span<const SequenceId> sequences,
                 std::int32_t* entries, std::size_t stride, std::int32_t* lengths) {
  for (const SequenceId id : sequences) {
    const Result<SequenceInfo> info = tables.info(id);
    if (!info) return info.status();
    if (static_cast<std::size_t>(info->num_blocks) > stride) {
      return too_small(stride, static_cast<std::size_t>(info->num_blocks));
    }
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::span row(reinterpret_cast<BlockId*>(entries) + i * stride, stride);
    std::ranges::fill(row, kNoBlock);
    if (Result<std::int64_t> copied = tables.blocks_of(sequences[i], row); !copied) {
      return copied.status();
    }
    if (lengths == nullptr) continue;
    lengths[i] = static_cast<std::int32_t>(tables.info(sequences[i])->length_tokens);
  }
  return {};
}

Result<HolderId> pin_blocks(CacheObject&, SequenceId, const kvarena_pin_options&) {
  return unsupported(Resource::holder);
}
Status blocks_of_pin(const KvCache&, const HolderReport&, std::span<BlockId>, std::size_t&) {
  return unsupported(Resource::holder);
}
Status unpin(KvCache&, HolderId, Ticket) { return unsupported(Resource::holder); }

Status set_deadline(BlockManager&, HolderId, std::int64_t) { return unsupported(Resource::holder); }
Status set_pool_name(const std::string&, BlockManagerOptions&) { return {}; }
std::string json_of(const BlockStats& blocks) {
  return to_text(Json{{"total", blocks.num_blocks}, {"free", blocks.free}});
}
std::string json_of(const HolderReport& holder) {
  return to_text(Json{{"holder", holder.holder.value}, {"references", holder.references}});
}
std::string json_of(const Explanation& explanation) {
  return to_text(Json{{"requested", explanation.requested}, {"fits", explanation.fits}});
}
Status set_urgency(std::int32_t urgency, HolderDemand&) {
  const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
  return chosen ? unsupported(Resource::urgency, static_cast<std::uint64_t>(urgency))
                : chosen.status();
}
Status set_urgency(std::int32_t urgency, AppendDemand&) {
  const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
  return chosen ? unsupported(Resource::urgency, static_cast<std::uint64_t>(urgency))
                : chosen.status();
}

Status begin_step(CacheObject& object, void* stream) {
  return stream == nullptr ? object.get().begin_step() : unsupported(Resource::stream);
}
Result<StepBatch> begin_recording(CacheObject& object, const RecordedStep& shape, void* stream) {
  if (stream != nullptr) return unsupported(Resource::stream);
  return object.get().begin_recording(shape);
}
StreamId stream_of(const KvCache& cache) { return cache.home_stream(); }
Result<kvarena_device_batch> device_batch(KvCache&) { return unsupported(Resource::device); }

Status set_strides(const kvarena_write_args& given, WriteKvArgs&) {
  const bool is_dense = given.key_token_stride_bytes == 0 && given.value_token_stride_bytes == 0;
  return is_dense ? Status{} : unsupported(Resource::alignment);
}
Status set_strides(const kvarena_attend_args& given, AttendArgs&) {
  const bool is_dense = given.q_token_stride_bytes == 0 && given.out_token_stride_bytes == 0;
  return is_dense ? Status{} : unsupported(Resource::alignment);
}

Status set_strides(const kvarena_write_args& given, AppendArgs&) {
  WriteKvArgs none;
  return set_strides(given, none);
}
Status set_strides(const kvarena_attend_args& given, AttentionArgs&) {
  AttendArgs none;
  return set_strides(given, none);
}

}  // namespace kvarena::capi
