#include "step/group_device_tables.hpp"

#include "base/out_of_memory.hpp"
#include "kernels/scatter_step/scatter_step.h"
#include "step/group_staging.hpp"
#include "step/step_memory.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>
#include <vector>

namespace kvarena {
struct GroupDeviceTables::Impl {
  Impl(CudaDevice& its_device, const GroupTablesOptions& options, const GroupTablesMemory& plan,
       StepMemory its_memory)
      : device(its_device),
        memory(std::move(its_memory)),
        expected_word(memory.arrays() + plan.expected_word),
        cross_slots(reinterpret_cast<std::int64_t*>(memory.arrays() + plan.cross_slots)),
        staging(options, plan, memory.staging()) {
    for (std::size_t part = 0; part < plan.parts.size(); ++part) {
      const bool is_cross = options.parts[part].table.kind == PagedKind::cross;
      const kernels::ScatterStepParams p =
          place_arrays(plan, part, !is_cross, memory.arrays(), memory.staging());
      params.push_back(p);
      views.push_back(
          {.block_tables = p.block_tables,
           .num_table_entries = p.shape.table_entries,
           .table_stride = kernels::StepShape::kGranule,
           .row_slots = p.row_slots,
           .row_offsets = p.row_offsets,
           .seq_lens = p.seq_lens,
           .num_blocks = p.num_blocks,
           .q_offsets = p.q_offsets,
           .slots = reinterpret_cast<const std::int64_t*>(memory.arrays() + plan.parts[part].slots),
           .copies = p.copies});
    }
    for (std::size_t i = 0; i < plan.states.size(); ++i) {
      states.push_back(place_states(plan, i, memory.arrays(), memory.staging()));
    }
  }

  Status launch(StreamId stream, bool is_recorded) const;

  CudaDevice& device;
  StepMemory memory;
  std::byte* expected_word;  // the word that captured launches read, for all parts
  std::int64_t* cross_slots;
  std::vector<kernels::ScatterStepParams> params;    // by part, of a captured launch
  std::vector<kernels::ScatterStatesParams> states;  // by group of states, the same
  std::vector<DeviceStepView> views;
  GroupStaging staging;
};

Result<GroupDeviceTables> GroupDeviceTables::create(CudaDevice& device,
                                                    const GroupTablesOptions& options) try {
  if (Status status = check_options(options); !status) return status;
  const GroupTablesMemory plan = plan_memory(options);
  Result<StepMemory> memory = StepMemory::create(
      device,
      {.device_bytes = plan.device_bytes, .ones = plan.zeros, .staging_bytes = plan.staging_bytes});
  if (!memory) return memory.status();
  return GroupDeviceTables(std::make_unique<Impl>(device, options, plan, std::move(*memory)));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

GroupDeviceTables::GroupDeviceTables(std::unique_ptr<Impl> impl) noexcept
    : impl_(std::move(impl)) {}
GroupDeviceTables::~GroupDeviceTables() = default;
GroupDeviceTables::GroupDeviceTables(GroupDeviceTables&&) noexcept = default;

const DeviceStepView& GroupDeviceTables::view(std::size_t part) const noexcept {
  return impl_->views[part];
}
std::int32_t GroupDeviceTables::num_rows(std::size_t part) const noexcept {
  return impl_->staging.num_rows(part);
}
std::int32_t GroupDeviceTables::num_copies(std::size_t part) const noexcept {
  return impl_->staging.num_copies(part);
}
const kernels::ScatterStatesParams& GroupDeviceTables::states(std::size_t index) const noexcept {
  return impl_->states[index];
}
std::int32_t GroupDeviceTables::num_state_copies(std::size_t index) const noexcept {
  return impl_->staging.num_state_copies(index);
}
const BlockId* GroupDeviceTables::table_of(std::size_t part, std::int32_t slot) const noexcept {
  return impl_->params[part].block_tables +
         impl_->staging.first_granule(part, slot) * kernels::StepShape::kGranule;
}
std::int32_t GroupDeviceTables::num_cross_tokens(std::size_t part,
                                                 std::ptrdiff_t row) const noexcept {
  return impl_->staging.num_tokens(part, static_cast<std::size_t>(row));
}
std::int64_t* GroupDeviceTables::cross_slots() const noexcept { return impl_->cross_slots; }

Status GroupDeviceTables::stage(BlockTables& tables, const AppendResult& appended) {
  return impl_->staging.stage(tables, appended);
}

/// Launches the scatter of a step: up to kMostParts parts at a time, and up to kMostStates groups
/// of states with them. A CUDA error goes through the device, which notices a lost GPU. Without a
/// graph the step word travels in the parameters.
Status GroupDeviceTables::Impl::launch(StreamId stream, bool is_recorded) const {
  const Result<void*> native = device.native_stream(stream);
  if (!native) return native.status();
  kernels::ScatterPartsParams all{};
  // Copies up to `room` of `from`, beginning with number `first`; returns how many.
  const auto take = [&](const auto& from, std::size_t first, auto* to, std::size_t room) {
    const std::size_t count = std::min(room, from.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = from[first + i];
      if (is_recorded) continue;
      to[i].expected_word = nullptr;
      to[i].expected = staging.expected();
    }
    return count;
  };
  std::size_t first_states = 0;
  for (std::size_t first = 0; first < params.size() || first_states < states.size();) {
    const std::size_t count = take(params, first, all.parts, std::size(all.parts));
    const std::size_t with = take(states, first_states, all.states, std::size(all.states));
    const Status launched = kernels::launch_scatter_parts(all, static_cast<std::int32_t>(count),
                                                          static_cast<std::int32_t>(with),
                                                          static_cast<cudaStream_t>(*native));
    if (!launched) {
      return launched.code == StatusCode::device_error
                 ? device.check(launched.native, Resource::stream)
                 : launched;
    }
    first += count;
    first_states += with;
  }
  return {};
}

Status GroupDeviceTables::launch(StreamId stream) { return impl_->launch(stream, false); }
Status GroupDeviceTables::record(StreamId stream) { return impl_->launch(stream, true); }
Status GroupDeviceTables::expect(StreamId stream) {
  return impl_->device.write_value(impl_->expected_word, impl_->staging.expected(), stream);
}

void GroupDeviceTables::advance() noexcept { impl_->staging.advance(); }
void GroupDeviceTables::withdraw(BlockTables& tables) noexcept { impl_->staging.withdraw(tables); }
void GroupDeviceTables::resync(BlockTables& tables) noexcept {
  impl_->staging.resync(tables, taken_serial());
}

std::uint64_t GroupDeviceTables::staged_serial() const noexcept {
  return impl_->staging.staged_serial();
}

/// A launch takes a step in all parts or in none, once it has ended.
std::uint64_t GroupDeviceTables::taken_serial() const noexcept {
  std::uint64_t taken = ~std::uint64_t{0};
  for (const kernels::ScatterStepParams& its : impl_->params) {
    taken = std::min(taken, std::atomic_ref(its.report->taken).load(std::memory_order_acquire));
  }
  for (const kernels::ScatterStatesParams& its : impl_->states) {
    taken = std::min(taken, std::atomic_ref(its.report->taken).load(std::memory_order_acquire));
  }
  return taken;
}

std::uint64_t GroupDeviceTables::misses() const noexcept {
  return std::atomic_ref(impl_->params[0].report->misses).load(std::memory_order_acquire);
}

}  // namespace kvarena
