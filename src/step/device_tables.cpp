#include "step/device_tables.hpp"

#include "kernels/scatter_step/scatter_step.h"
#include "step/device_tables_memory.hpp"
#include "step/staging_ring.hpp"
#include "step/step_memory.hpp"

#include <atomic>
#include <new>
#include <utility>

namespace kvarena {

struct DeviceTables::Impl {
  Impl(CudaDevice& its_device, const DeviceTablesMemory& plan, StepMemory its_memory)
      : device(its_device),
        memory(std::move(its_memory)),
        params(place_arrays(plan, memory.arrays(), memory.staging())),
        expected_word(memory.arrays() + plan.expected_word),
        view{.block_tables = params.block_tables,
             .num_table_entries = params.shape.table_entries,
             .table_stride = kernels::StepShape::kGranule,
             .row_slots = params.row_slots,
             .row_offsets = params.row_offsets,
             .seq_lens = params.seq_lens,
             .num_blocks = params.num_blocks,
             .q_offsets = params.q_offsets,
             .slots = params.slots,
             .copies = params.copies},
        ring(memory.staging() + plan.ring, plan.shape) {}

  Status launch(const kernels::ScatterStepParams& its_params, StreamId stream) const;

  CudaDevice& device;
  StepMemory memory;
  kernels::ScatterStepParams params;  // of a captured launch
  std::byte* expected_word;           // the word that captured launches read
  DeviceStepView view;
  StagingRing ring;
};

Result<DeviceTables> DeviceTables::create(CudaDevice& device, const DeviceTablesOptions& options) {
  if (Status status = check_options(options); !status) return status;
  const DeviceTablesMemory plan = plan_memory(options);
  Result<StepMemory> memory = StepMemory::create(
      device,
      {.device_bytes = plan.device_bytes, .ones = plan.zeros, .staging_bytes = plan.staging_bytes});
  if (!memory) return memory.status();
  try {
    return DeviceTables(std::make_unique<Impl>(device, plan, std::move(*memory)));
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
