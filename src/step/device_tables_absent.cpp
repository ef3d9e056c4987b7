// Device tables in a build without CUDA. There is no CudaDevice, so create always fails.

#include "step/device_tables.hpp"

namespace kvarena {

struct DeviceTables::Impl {
  DeviceStepView view;
};

Result<DeviceTables> DeviceTables::create(CudaDevice&, const DeviceTablesOptions&) {
  return unsupported(Resource::device);
}

DeviceTables::DeviceTables(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
DeviceTables::~DeviceTables() = default;
DeviceTables::DeviceTables(DeviceTables&&) noexcept = default;

const DeviceStepView& DeviceTables::view() const noexcept { return impl_->view; }
Status DeviceTables::stage(BlockTables&, const AppendResult&) {
  return unsupported(Resource::device);
}
Status DeviceTables::launch(StreamId) { return unsupported(Resource::device); }
Status DeviceTables::record(StreamId) { return unsupported(Resource::device); }
Status DeviceTables::expect(StreamId) { return unsupported(Resource::device); }
void DeviceTables::advance() noexcept {}
void DeviceTables::withdraw(BlockTables&) noexcept {}
void DeviceTables::resync(BlockTables&) noexcept {}
std::uint64_t DeviceTables::staged_serial() const noexcept { return 0; }
std::uint64_t DeviceTables::taken_serial() const noexcept { return 0; }
std::uint64_t DeviceTables::misses() const noexcept { return 0; }

}  // namespace kvarena
