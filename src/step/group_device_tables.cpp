#include "step/group_device_tables.hpp"

#include "base/out_of_memory.hpp"
#include "kernels/scatter_step/scatter_step.h"
#include "step/group_staging.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

/// Owns an allocation of device memory.
class Allocation {
 public:
  Allocation(Device& device, void* pointer) noexcept : device_(&device), pointer_(pointer) {}
  ~Allocation() {
    if (pointer_ != nullptr) static_cast<void>(device_->free(pointer_));
  }
  Allocation(Allocation&& other) noexcept
      : device_(other.device_), pointer_(std::exchange(other.pointer_, nullptr)) {}
  Allocation& operator=(Allocation&&) = delete;
  std::byte* bytes() const noexcept { return static_cast<std::byte*>(pointer_); }

 private:
  Device* device_;
  void* pointer_;
};

/// Fills the arrays with their empty values and waits.
Status clear_arrays(Device& device, const GroupTablesMemory& plan, std::byte* memory) {
  const Result<StreamId> stream = device.create_stream();
  if (!stream) return stream.status();
  const auto zeros = static_cast<std::uint64_t>(plan.zeros);
  const std::uint64_t rest = static_cast<std::uint64_t>(plan.device_bytes) - zeros;
  Status status = device.fill(memory, 0xff, zeros, *stream);
  if (status) status = device.fill(memory + plan.zeros, 0, rest, *stream);
  if (status) status = device.synchronize(*stream);
  const Status destroyed = device.destroy_stream(*stream);
  return status ? destroyed : status;
}

}  // namespace

struct GroupDeviceTables::Impl {
  Impl(CudaDevice& its_device, const GroupTablesOptions& options, const GroupTablesMemory& plan,
       Allocation its_memory, Allocation its_staging)
      : device(its_device),
        memory(std::move(its_memory)),
        staging_memory(std::move(its_staging)),
        expected_word(memory.bytes() + plan.expected_word),
        cross_slots(reinterpret_cast<std::int64_t*>(memory.bytes() + plan.cross_slots)),
        staging(options, plan, staging_memory.bytes()) {
    for (std::size_t part = 0; part < plan.parts.size(); ++part) {
      const bool is_cross = options.parts[part].table.kind == PagedKind::cross;
      const kernels::ScatterStepParams p =
          place_arrays(plan, part, !is_cross, memory.bytes(), staging_memory.bytes());
      params.push_back(p);
      views.push_back(
          {.block_tables = p.block_tables,
           .table_stride = kernels::StepShape::kGranule,
           .row_slots = p.row_slots,
           .row_offsets = p.row_offsets,
           .seq_lens = p.seq_lens,
           .num_blocks = p.num_blocks,
           .q_offsets = p.q_offsets,
           .slots = reinterpret_cast<const std::int64_t*>(memory.bytes() + plan.parts[part].slots),
           .copies = p.copies});
    }
  }

  Status launch(StreamId stream, bool is_recorded) const;

  CudaDevice& device;
  Allocation memory;
  Allocation staging_memory;
  std::byte* expected_word;  // the word that captured launches read, for all parts
  std::int64_t* cross_slots;
  std::vector<kernels::ScatterStepParams> params;  // by part, of a captured launch
  std::vector<DeviceStepView> views;
  GroupStaging staging;
};

Result<GroupDeviceTables> GroupDeviceTables::create(CudaDevice& device,
                                                    const GroupTablesOptions& options) try {
  if (Status status = check_options(options); !status) return status;
  const GroupTablesMemory plan = plan_memory(options);
  const Result<void*> arrays =
      device.allocate({.bytes = static_cast<std::uint64_t>(plan.device_bytes),
                       .purpose = MemoryPurpose::intermediate_buffers,
                       .description = "block tables of the step"});
  if (!arrays) return arrays.status();
  Allocation memory(device, *arrays);
  const Result<void*> slots =
      device.allocate({.bytes = static_cast<std::uint64_t>(plan.staging_bytes),
                       .purpose = MemoryPurpose::intermediate_buffers,
                       .kind = MemoryKind::pinned_staging,
                       .description = "staging ring of the step"});
  if (!slots) return slots.status();
  Allocation staging(device, *slots);
  std::memset(*slots, 0, static_cast<std::size_t>(plan.staging_bytes));
  if (Status status = clear_arrays(device, plan, memory.bytes()); !status) return status;
  return GroupDeviceTables(
      std::make_unique<Impl>(device, options, plan, std::move(memory), std::move(staging)));
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

/// Launches the scatter of a step, up to kMostParts parts at a time. A CUDA error goes through the
/// device, which notices a lost GPU. Without a graph the step word travels in the parameters.
Status GroupDeviceTables::Impl::launch(StreamId stream, bool is_recorded) const {
  const Result<void*> native = device.native_stream(stream);
  if (!native) return native.status();
  kernels::ScatterPartsParams all{};
  for (std::size_t first = 0; first < params.size();) {
    std::size_t count = 0;
    for (; count < std::size(all.parts) && first + count < params.size(); ++count) {
      kernels::ScatterStepParams& its = all.parts[count];
      its = params[first + count];
      if (is_recorded) continue;
      its.expected_word = nullptr;
      its.expected = staging.expected();
    }
    const Status launched = kernels::launch_scatter_parts(all, static_cast<std::int32_t>(count),
                                                          static_cast<cudaStream_t>(*native));
    if (!launched) {
      return launched.code == StatusCode::device_error
                 ? device.check(launched.native, Resource::stream)
                 : launched;
    }
    first += count;
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
  return taken;
}

std::uint64_t GroupDeviceTables::misses() const noexcept {
  return std::atomic_ref(impl_->params[0].report->misses).load(std::memory_order_acquire);
}

}  // namespace kvarena
