// What a step put on the device, and what only some layers write.

#include <algorithm>

#include "explain.hpp"
#include "layer_args.hpp"
#include "step.hpp"

namespace kvarena::python {

namespace {

/// Entries of the array of block tables.
std::int64_t table_entries(const kvarena_device_batch& batch) {
  return batch.num_table_slots * batch.table_stride;
}

}  // namespace

nb::object slots_of(const Step& step) {
  require_open(step, "slots");
  if (step.batch.slots == nullptr) return nb::none();
  auto* const slots = new std::int64_t[static_cast<std::size_t>(step.batch.num_tokens)];
  const nb::capsule owner(
      slots, [](void* memory) noexcept { delete[] static_cast<std::int64_t*>(memory); });
  std::copy_n(step.batch.slots, step.batch.num_tokens, slots);
  return array_of(slots, kInt64, {}, {step.batch.num_tokens}, owner);
}

nb::object device_batch(const Step& step, std::int32_t part) {
  require_open(step, "device_batch");
  auto batch = sized<kvarena_device_batch>();
  check(kvarena_step_group_batch(step.cache->handle(), part, &batch), step.witness());
  const Place place = step.place();
  const nb::object owner = step.cache->memory_owner();
  const auto array = [&](const void* data, dlpack::DataType dtype, std::int64_t count) {
    return array_of(const_cast<void*>(data), dtype, place, {count}, owner);
  };
  nb::dict values;
  values["block_tables"] = array(batch.block_tables, kInt32, table_entries(batch));
  values["table_stride"] = batch.table_stride;
  values["row_slots"] = array(batch.row_slots, kInt32, batch.num_rows);
  values["row_offsets"] = array(batch.row_offsets, kInt64, batch.num_rows);
  values["lengths"] = array(batch.lengths, kInt32, batch.num_rows);
  values["num_blocks"] = array(batch.num_blocks, kInt32, batch.num_rows);
  values["q_offsets"] = array(batch.q_offsets, kInt64, std::int64_t{batch.num_rows} + 1);
  values["slots"] = array(batch.slots, kInt64, batch.num_tokens);
  values["num_rows"] = batch.num_rows;
  values["num_tokens"] = batch.num_tokens;
  values["max_length"] = batch.max_length_tokens;
  values["max_new_tokens"] = batch.max_new_tokens;
  return make_record("DeviceBatch", values);
}

nb::object states_of(const Step& step, std::int32_t index) {
  require_open(step, "states");
  auto slots = sized<kvarena_state_slots>();
  check(kvarena_step_states(step.cache->handle(), index, &slots), step.witness());
  const auto list = [](const std::int32_t* first, std::int32_t count) {
    nb::list values;
    for (std::int32_t i = 0; i < count; ++i) values.append(first[i]);
    return values;
  };
  const Place place = step.place();
  const nb::object owner = step.cache->memory_owner();
  const auto array = [&](const std::int32_t* first, std::vector<std::int64_t> shape) {
    return array_of(const_cast<std::int32_t*>(first), kInt32, place, std::move(shape), owner);
  };
  const std::int32_t num_host_rows = slots.read == nullptr ? 0 : slots.num_rows;
  const auto rows = [&](const std::int32_t* first, std::int32_t count) {
    nb::list values;
    for (std::int32_t i = 0; i < count; ++i) {
      values.append(list(first + std::ptrdiff_t{i} * slots.num_parts, slots.num_parts));
    }
    return values;
  };
  nb::dict values;
  values["read"] = rows(slots.read, num_host_rows);
  values["write"] = rows(slots.write, num_host_rows);
  values["extra_offsets"] =
      list(slots.extra_offsets, slots.read == nullptr ? 0 : num_host_rows + 1);
  values["extra_tokens"] = list(slots.extra_tokens, slots.num_extras);
  values["extra_slots"] = rows(slots.extra_slots, slots.num_extras);
  values["part"] = slots.part;
  values["device_read"] = array(slots.device_read, {slots.num_rows, slots.num_parts});
  values["device_write"] = array(slots.device_write, {slots.num_rows, slots.num_parts});
  values["device_extra_offsets"] = array(slots.device_extra_offsets, {slots.num_rows + 1});
  values["device_extra_tokens"] = array(slots.device_extra_tokens, {slots.max_extras});
  values["device_extra_slots"] =
      array(slots.device_extra_slots, {slots.max_extras, slots.num_parts});
  return make_record("StateSlots", values);
}

void write_index(Step& step, std::int32_t layer, nb::handle key) {
  require_open(step, "write_index");
  const std::uint64_t changes = step.cache->changes;
  Cache& cache = *step.cache;
  auto plane = sized<kvarena_plane>();
  check(kvarena_cache_plane(cache.handle(), layer, KVARENA_INDEX, &plane), cache.witness());
  const Tensor taken("key", key, step.place());
  taken.require_shape({step.batch.num_tokens, plane.head_dim}, "[num_tokens, index_dim]");
  taken.require_dense(1, "the elements of a token without gaps");
  auto args = sized<kvarena_write_index_args>();
  args.key = taken.data();
  args.dtype = taken.float_dtype();
  args.key_token_stride_bytes = taken.token_stride_bytes();
  args.layer = layer;
  require_unchanged(step, changes);
  check(without_gil(kvarena_step_write_index, cache.handle(), &args), cache.witness());
  hold(step, key);
}

void write_cross(Step& step, std::int32_t layer, const Sequence& sequence, nb::handle key,
                 nb::handle value, nb::handle key_scale, nb::handle value_scale) {
  require_open(step, "write_cross");
  const std::uint64_t changes = step.cache->changes;
  if (sequence.cache.get() != step.cache.get()) {
    raise_value("sequence", "one of another cache", "a sequence of the step");
  }
  const Place place = step.place();
  const std::int64_t tokens = Tensor("key", key, place).shape(0);
  const WriteCall call(step.cache->shape_of(layer), tokens, place, layer, key, value, key_scale,
                       value_scale);
  require_unchanged(step, changes);
  auto args = sized<kvarena_write_cross_args>();
  args.sequence = sequence.id;
  args.key = call.args.key;
  args.value = call.args.value;
  args.key_token_stride_bytes = call.args.key_token_stride_bytes;
  args.value_token_stride_bytes = call.args.value_token_stride_bytes;
  args.layer = layer;
  args.dtype = call.args.dtype;
  args.key_scale = call.args.key_scale;
  args.value_scale = call.args.value_scale;
  args.scale_per_head = call.args.scale_per_head;
  Cache& cache = *step.cache;
  check(without_gil(kvarena_step_write_cross, cache.handle(), &args), cache.witness());
  for (const nb::handle used : {key, value, key_scale, value_scale}) hold(step, used);
}

}  // namespace kvarena::python
