#include "step/device_tables_memory.hpp"

#include "blocktable/sequence_table.hpp"

namespace kvarena {
namespace {

/// The kernel counts in 32 bits, and past the end by what it takes at a time.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
constexpr std::int64_t kMaxSequences = SequenceTable::kMaxSlots;
constexpr std::int64_t kMaxStepsInFlight = 64;
constexpr std::int64_t kMaxBlockSize = 65536;
constexpr std::int64_t kAlignment = 256;
/// A table row begins a cache line.
constexpr std::int64_t kRowEntries = 32;

constexpr std::int64_t rounded_up(std::int64_t value, std::int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// Places arrays one after another.
class Places {
 public:
  template <class T>
  std::int64_t take(std::int64_t count) noexcept {
    const std::int64_t place = end_;
    end_ = rounded_up(end_ + count * static_cast<std::int64_t>(sizeof(T)), kAlignment);
    return place;
  }
  std::int64_t end() const noexcept { return end_; }

 private:
  std::int64_t end_ = 0;
};

}  // namespace

Status check_options(const DeviceTablesOptions& o) noexcept {
  const struct {
    Resource name;
    std::int64_t value;
    std::int64_t largest;
  } options[] = {
      {Resource::event, o.limits.steps_in_flight, kMaxStepsInFlight},
      {Resource::num_sequences, o.limits.max_rows, kMaxSequences},
      {Resource::num_tokens, o.limits.max_tokens, kMaxCount},
      {Resource::table_page, o.limits.max_blocks, kMaxCount},
      {Resource::num_sequences, o.max_sequences, kMaxSequences},
      {Resource::num_blocks, o.max_sequence_blocks, kMaxCount},
      {Resource::block_size, o.block_size_tokens, kMaxBlockSize},
  };
  for (const auto& option : options) {
    if (option.value >= 1 && option.value <= option.largest) continue;
    return invalid_argument(option.name, option.value, 1, option.largest);
  }
  return {};
}

DeviceTablesMemory plan_memory(const DeviceTablesOptions& o) noexcept {
  DeviceTablesMemory plan;
  plan.shape = {.steps_in_flight = o.limits.steps_in_flight,
                .max_rows = o.limits.max_rows,
                .max_tokens = static_cast<std::int32_t>(o.limits.max_tokens),
                .max_changes = static_cast<std::int32_t>(o.limits.max_blocks),
                .max_sequences = o.max_sequences,
                .max_blocks_a_row = o.max_sequence_blocks,
                .block_size = o.block_size_tokens,
                .table_stride = rounded_up(o.max_sequence_blocks, kRowEntries)};
  const std::int64_t rows = o.limits.max_rows;
  Places device;
  plan.block_tables = device.take<BlockId>(o.max_sequences * plan.shape.table_stride);
  plan.row_slots = device.take<std::int32_t>(rows);
  plan.slots = device.take<std::int64_t>(o.limits.max_tokens);
  plan.copies = device.take<BlockCopy>(rows);
  plan.zeros = device.end();
  plan.row_offsets = device.take<std::int64_t>(rows);
  plan.seq_lens = device.take<std::int32_t>(rows);
  plan.num_blocks = device.take<std::int32_t>(rows);
  plan.q_offsets = device.take<std::int64_t>(rows + 1);
  plan.state = device.take<kernels::ScatterState>(1);
  plan.device_bytes = device.end();
  Places staging;
  staging.take<std::uint64_t>(1);
  plan.ring = staging.take<std::byte>(plan.shape.steps_in_flight * plan.shape.slot_bytes());
  plan.staging_bytes = staging.end();
  return plan;
}

kernels::ScatterStepParams place_arrays(const DeviceTablesMemory& plan, std::byte* device,
                                        std::byte* staging) noexcept {
  return {.shape = plan.shape,
          .ring = staging + plan.ring,
          .state = reinterpret_cast<kernels::ScatterState*>(device + plan.state),
          .misses = reinterpret_cast<std::uint64_t*>(staging),
          .block_tables = reinterpret_cast<BlockId*>(device + plan.block_tables),
          .row_slots = reinterpret_cast<std::int32_t*>(device + plan.row_slots),
          .row_offsets = reinterpret_cast<std::int64_t*>(device + plan.row_offsets),
          .seq_lens = reinterpret_cast<std::int32_t*>(device + plan.seq_lens),
          .num_blocks = reinterpret_cast<std::int32_t*>(device + plan.num_blocks),
          .q_offsets = reinterpret_cast<std::int64_t*>(device + plan.q_offsets),
          .slots = reinterpret_cast<std::int64_t*>(device + plan.slots),
          .copies = reinterpret_cast<BlockCopy*>(device + plan.copies)};
}

std::uint64_t DeviceTables::device_bytes(const DeviceTablesOptions& options) noexcept {
  return check_options(options) ? static_cast<std::uint64_t>(plan_memory(options).device_bytes) : 0;
}

std::uint64_t DeviceTables::staging_bytes(const DeviceTablesOptions& options) noexcept {
  return check_options(options) ? static_cast<std::uint64_t>(plan_memory(options).staging_bytes)
                                : 0;
}

}  // namespace kvarena
