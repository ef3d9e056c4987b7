#include "step/device_tables.hpp"

#include "kernels/scatter_step/scatter_step.h"
#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace kvarena {

struct DeviceTables::Impl {
  /// Takes ownership of both allocations, which the caller has made.
  Impl(CudaDevice& its_device, const DeviceTablesMemory& plan, std::byte* its_memory,
       std::byte* its_staging)
      : device(its_device),
        memory(its_memory),
        staging(its_staging),
        params(place_arrays(plan, memory, staging)),
        expected_word(memory + plan.expected_word),
        view{.block_tables = params.block_tables,
             .table_stride = kernels::StepShape::kGranule,
             .row_slots = params.row_slots,
             .row_offsets = params.row_offsets,
             .seq_lens = params.seq_lens,
             .num_blocks = params.num_blocks,
             .q_offsets = params.q_offsets,
             .slots = params.slots,
             .copies = params.copies},
        ring(staging + plan.ring, plan.shape) {}
  ~Impl() {
    static_cast<void>(device.free(memory));
    static_cast<void>(device.free(staging));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status launch(const kernels::ScatterStepParams& its_params, StreamId stream) const;

  CudaDevice& device;
  std::byte* memory;
  std::byte* staging;
  kernels::ScatterStepParams params;  // of a captured launch
  std::byte* expected_word;           // the word that captured launches read
  DeviceStepView view;
  StagingRing ring;
};

namespace {

/// Owns an allocation of device memory until keep is called.
class Allocation {
 public:
  Allocation(Device& device, void* pointer) noexcept : device_(device), pointer_(pointer) {}
  ~Allocation() {
    if (pointer_ != nullptr) static_cast<void>(device_.free(pointer_));
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  std::byte* bytes() const noexcept { return static_cast<std::byte*>(pointer_); }
  void keep() noexcept { pointer_ = nullptr; }

 private:
  Device& device_;
  void* pointer_;
};

/// Fills the arrays with their empty values and waits.
Status clear_arrays(Device& device, const DeviceTablesMemory& plan, std::byte* memory) {
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

Result<DeviceTables> DeviceTables::create(CudaDevice& device, const DeviceTablesOptions& options) {
  if (Status status = check_options(options); !status) return status;
  const DeviceTablesMemory plan = plan_memory(options);
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
  try {
    auto impl = std::make_unique<Impl>(device, plan, memory.bytes(), staging.bytes());
    memory.keep();
    staging.keep();
    return DeviceTables(std::move(impl));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, sizeof(Impl), 0);
  }
}

DeviceTables::DeviceTables(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
DeviceTables::~DeviceTables() = default;
DeviceTables::DeviceTables(DeviceTables&&) noexcept = default;

const DeviceStepView& DeviceTables::view() const noexcept { return impl_->view; }

Status DeviceTables::stage(BlockTables& tables, const AppendResult& appended) {
  return impl_->ring.stage(tables, appended);
}

/// Launches the scatter of a step. A CUDA error goes through the device, which notices a lost GPU.
Status DeviceTables::Impl::launch(const kernels::ScatterStepParams& its_params,
                                  StreamId stream) const {
  const Result<void*> native = device.native_stream(stream);
  if (!native) return native.status();
  const Status launched =
      kernels::launch_scatter_step(its_params, static_cast<cudaStream_t>(*native));
  if (launched.code != StatusCode::device_error) return launched;
  return device.check(launched.native, Resource::stream);
}

/// The step word travels in the parameters, so the word on the device does not matter here.
Status DeviceTables::launch(StreamId stream) {
  kernels::ScatterStepParams direct = impl_->params;
  direct.expected_word = nullptr;
  direct.expected = impl_->ring.expected();
  return impl_->launch(direct, stream);
}

Status DeviceTables::record(StreamId stream) { return impl_->launch(impl_->params, stream); }

Status DeviceTables::expect(StreamId stream) {
  return impl_->device.write_value(impl_->expected_word, impl_->ring.expected(), stream);
}

void DeviceTables::advance() noexcept { impl_->ring.advance(); }
void DeviceTables::withdraw(BlockTables& tables) noexcept { impl_->ring.withdraw(tables); }
void DeviceTables::resync(BlockTables& tables) noexcept {
  impl_->ring.resync(tables, taken_serial());
}

std::uint64_t DeviceTables::staged_serial() const noexcept { return impl_->ring.staged_serial(); }

std::uint64_t DeviceTables::taken_serial() const noexcept {
  return std::atomic_ref(impl_->params.report->taken).load(std::memory_order_acquire);
}

std::uint64_t DeviceTables::misses() const noexcept {
  return std::atomic_ref(impl_->params.report->misses).load(std::memory_order_acquire);
}

}  // namespace kvarena
