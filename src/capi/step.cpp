// Steps and recordings of a cache, and tickets.

#include "capi/convert.hpp"
#include "capi/objects.hpp"
#include "capi/prefix.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

Result<RecordedStep> shape_of(const kvarena_recorded_step* shape) noexcept {
  kvarena_recorded_step given;
  if (Status s = read_struct(shape, given); !s) return s;
  RecordedStep result;
  result.num_rows = given.num_rows;
  if (given.tokens_per_row != 0) result.tokens_per_row = given.tokens_per_row;
  result.shares_prefixes = given.shares_prefixes != 0;
  result.row_tokens = given.row_tokens;
  return result;
}

/// Reads the options; NULL means all defaults. The stream is remembered by the device.
Result<StepOptions> step_of(const kvarena_step_options* options, CacheObject& object) {
  kvarena_step_options given;
  if (Status s = read_optional_struct(options, given); !s) return s;
  StepOptions step;
  if (given.stream == nullptr) return step;
  const Result<StreamId> id = object.device->id_of(given.stream);
  if (!id) return id.status();
  step.stream = *id;
  return step;
}

/// Copies the demands to the room of the cache. Returns invalid_argument (urgency).
Status read_demands(const kvarena_demand* demands, std::size_t count, CacheObject& object) {
  if (Status s = check_array(demands, count); !s) return s;
  object.demands.clear();
  for (const kvarena_demand& demand : std::span(demands, count)) {
    AppendDemand& row = object.demands.emplace_back();
    row.sequence = SequenceId(demand.sequence);
    row.num_tokens = demand.num_tokens;
    if (demand.urgency == KVARENA_URGENCY_DEFAULT) continue;
    const Result<Urgency> urgency = urgency_from_c(demand.urgency, Urgency::growth);
    if (!urgency) return urgency.status();
    row.urgency = *urgency;
  }
  return {};
}

/// Gives each demand in the room of the cache its tokens. Returns invalid_argument (span_size).
Status read_tokens(std::span<const std::int32_t> tokens, CacheObject& object) noexcept {
  std::size_t at = 0;
  for (AppendDemand& row : object.demands) {
    const auto count = static_cast<std::size_t>(std::max(row.num_tokens, 0));
    if (count > tokens.size() - at) return too_small(tokens.size(), at + count);
    if (count > 0 && tokens[at] >= 0) row.tokens = tokens.subspan(at, count);
    at += count;
  }
  if (at == tokens.size()) return {};
  const auto needed = static_cast<std::int64_t>(at);
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(tokens.size()), needed,
                          needed);
}

kvarena_device_batch to_c(const DeviceBatch& batch) noexcept {
  kvarena_device_batch result{};
  result.block_tables = reinterpret_cast<const std::int32_t*>(batch.block_tables);
  result.table_stride = batch.table_stride;
  result.row_slots = batch.row_slots;
  result.row_offsets = batch.row_offsets;
  result.lengths = batch.lengths;
  result.num_blocks = batch.num_blocks;
  result.q_offsets = batch.q_offsets;
  result.slots = batch.slots;
  result.num_tokens = batch.num_tokens;
  result.num_rows = batch.num_rows;
  result.max_length_tokens = batch.max_length_tokens;
  result.max_new_tokens = batch.max_new_tokens;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t stride = std::max<std::int64_t>(batch.table_stride, 1);
  result.num_table_slots =
      static_cast<std::int32_t>(std::min(kMost, batch.num_table_entries / stride));
  return result;
}

void write_batch(const StepBatch& batch, kvarena_batch* target) noexcept {
  kvarena_batch result{};
  result.slots = batch.slots.empty() ? nullptr : batch.slots.data();
  result.device_slots = batch.device_slots;
  result.num_tokens = batch.num_tokens;
  result.num_copies = batch.num_copies;
  result.new_blocks = batch.new_blocks;
  write_struct(result, target);
}

Status write_appended(const Result<StepBatch>& appended, CacheObject& object,
                      kvarena_batch* batch) noexcept {
  if (!appended) return appended.status();
  object.states = appended->states;
  object.device_states = appended->device_states;
  write_batch(*appended, batch);
  return {};
}

/// Appends by `append(cache, demands, urgency)`.
template <class Append>
kvarena_status append_by(kvarena_cache* cache, const kvarena_demand* demands, std::size_t count,
                         std::int32_t urgency, kvarena_batch* batch, Append&& append) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(batch); !s) return s;
    const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
    if (!chosen) return chosen.status();
    if (Status s = read_demands(demands, count, object); !s) return s;
    const Result<StepBatch> appended =
        append(object.get(), std::span<const AppendDemand>(object.demands), *chosen);
    return write_appended(appended, object, batch);
  });
}

}  // namespace

kvarena_status kvarena_step_begin(kvarena_cache* cache, const kvarena_step_options* options) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const Result<StepOptions> step = step_of(options, object);
    if (!step) return step.status();
    const Status begun = object.get().begin_step(*step);
    return step->stream == StreamId{} ? begun : by_handle(begun, step->stream, options->stream);
  });
}

kvarena_status kvarena_step_append(kvarena_cache* cache, const kvarena_demand* demands,
                                   size_t count, int32_t urgency, kvarena_batch* batch) {
  return append_by(cache, demands, count, urgency, batch,
                   [](KvCache& c, std::span<const AppendDemand> rows, Urgency chosen) {
                     return c.append(rows, chosen);
                   });
}

kvarena_status kvarena_step_append_recorded(kvarena_cache* cache,
                                            const kvarena_recorded_step* shape,
                                            const kvarena_demand* demands, size_t count,
                                            int32_t urgency, kvarena_batch* batch) {
  return append_by(
      cache, demands, count, urgency, batch,
      [&](KvCache& c, std::span<const AppendDemand> rows, Urgency chosen) -> Result<StepBatch> {
        const Result<RecordedStep> given = shape_of(shape);
        if (!given) return given.status();
        return c.append_recorded(*given, rows, chosen);
      });
}

kvarena_status kvarena_step_append_tokens(kvarena_cache* cache, const kvarena_recorded_step* shape,
                                          const kvarena_demand* demands, size_t count,
                                          const int32_t* tokens, size_t num_tokens, int32_t urgency,
                                          kvarena_batch* batch) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(batch); !s) return s;
    const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
    if (!chosen) return chosen.status();
    if (Status s = read_demands(demands, count, object); !s) return s;
    const auto told = tokens_from_c(tokens, num_tokens);
    if (!told) return told.status();
    if (Status s = read_tokens(*told, object); !s) return s;
    const std::span<const AppendDemand> rows(object.demands);
    if (shape == nullptr) return write_appended(object.get().append(rows, *chosen), object, batch);
    const Result<RecordedStep> recorded = shape_of(shape);
    if (!recorded) return recorded.status();
    return write_appended(object.get().append_recorded(*recorded, rows, *chosen), object, batch);
  });
}

kvarena_status kvarena_step_failed_demand(kvarena_cache* cache, int64_t* index) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (index == nullptr) return refused_null();
    *index = object.get().failed_demand();
    return {};
  });
}

kvarena_status kvarena_step_device_batch(kvarena_cache* cache, kvarena_device_batch* batch) {
  return kvarena_step_group_batch(cache, 0, batch);
}

kvarena_status kvarena_step_group_batch(kvarena_cache* cache, int32_t part,
                                        kvarena_device_batch* batch) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(batch); !s) return s;
    const Result<DeviceBatch> found = object.get().device_batch(part);
    if (found) write_struct(to_c(*found), batch);
    return found.status();
  });
}

kvarena_status kvarena_step_write(kvarena_cache* cache, const kvarena_write_args* args) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_write_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<DType> dtype = dtype_from_c(given.dtype);
    if (!dtype) return dtype.status();
    WriteKvArgs write;
    write.layer = given.layer;
    write.key = given.key;
    write.value = given.value;
    write.dtype = *dtype;
    write.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    write.key_token_stride_bytes = given.key_token_stride_bytes;
    write.value_token_stride_bytes = given.value_token_stride_bytes;
    return object.get().write_kv(write);
  });
}

kvarena_status kvarena_step_attend(kvarena_cache* cache, const kvarena_attend_args* args) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    kvarena_attend_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<DType> q_dtype = dtype_from_c(given.q_dtype);
    if (!q_dtype) return q_dtype.status();
    const Result<DType> out_dtype = dtype_from_c(given.out_dtype);
    if (!out_dtype) return out_dtype.status();
    AttendArgs attend;
    attend.layer = given.layer;
    attend.q = given.q;
    attend.q_dtype = *q_dtype;
    attend.out = given.out;
    attend.out_dtype = *out_dtype;
    attend.lse = given.lse;
    attend.scale = given.scale;
    attend.soft_cap = given.soft_cap;
    attend.windowed = given.windowed != 0;
    attend.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    attend.sinks = given.sinks;
    attend.tree_mask = given.tree_mask;
    attend.kv_is_written = given.kv_is_written != 0;
    attend.q_token_stride_bytes = given.q_token_stride_bytes;
    attend.out_token_stride_bytes = given.out_token_stride_bytes;
    return object.get().attend(attend);
  });
}

kvarena_status kvarena_step_end(kvarena_cache* cache) {
  return enter<CacheObject>(cache, [](CacheObject& object) { return object.get().end_step(); });
}

kvarena_status kvarena_step_abort(kvarena_cache* cache) {
  return enter<CacheObject>(cache, [](CacheObject& object) { return object.get().abort_step(); });
}

kvarena_status kvarena_recording_begin(kvarena_cache* cache, const kvarena_recorded_step* shape,
                                       const kvarena_step_options* options, kvarena_batch* batch) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(batch); !s) return s;
    const Result<RecordedStep> recorded = shape_of(shape);
    if (!recorded) return recorded.status();
    const Result<StepOptions> step = step_of(options, object);
    if (!step) return step.status();
    const Result<StepBatch> padded = object.get().begin_recording(*recorded, *step);
    if (!padded) return padded.status();
    object.states = {};
    object.device_states = padded->device_states;
    write_batch(*padded, batch);
    return {};
  });
}

kvarena_status kvarena_recording_end(kvarena_cache* cache) {
  return enter<CacheObject>(cache,
                            [](CacheObject& object) { return object.get().end_recording(); });
}

kvarena_status kvarena_cache_publish(kvarena_cache* cache) {
  return enter<CacheObject>(cache, [](CacheObject& object) { return object.get().publish(); });
}

kvarena_status kvarena_cache_synchronize(kvarena_cache* cache) {
  return enter<CacheObject>(cache, [](CacheObject& object) { return object.get().synchronize(); });
}

kvarena_status kvarena_cache_stream(kvarena_cache* cache, void** stream) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (stream == nullptr) return refused_null();
    const Result<void*> found = object.device->name_of(object.get().stream());
    if (found) *stream = *found;
    return found.status();
  });
}

// ---- tickets ------------------------------------------------------------------------------------

kvarena_status kvarena_ticket_fence(kvarena_cache* cache, void* stream, kvarena_ticket* ticket) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (ticket == nullptr) return refused_null();
    const Result<StreamId> other = object.device->id_of(stream);
    if (!other) return other.status();
    const Result<Ticket> opened = object.get().fence(*other);
    if (opened) *ticket = opened->value;
    return by_handle(opened.status(), *other, stream);
  });
}

kvarena_status kvarena_ticket_open(kvarena_cache* cache, void* stream, kvarena_ticket* ticket) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (ticket == nullptr) return refused_null();
    if (stream == nullptr) {
      const Result<Ticket> opened = object.get().open_ticket();
      if (opened) *ticket = opened->value;
      return opened.status();
    }
    const Result<StreamId> other = object.device->id_of(stream);
    if (!other) return other.status();
    const Result<Ticket> opened = object.get().open_ticket(*other);
    if (opened) *ticket = opened->value;
    return by_handle(opened.status(), *other, stream);
  });
}

kvarena_status kvarena_ticket_retire(kvarena_cache* cache, kvarena_ticket ticket) {
  return enter<CacheObject>(
      cache, [&](CacheObject& object) { return object.get().retire(Ticket(ticket)); });
}
