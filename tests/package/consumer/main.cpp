// Touches every public room, so that a header or symbol that was not installed fails the build.

#include <kvarena/allocator/arena.hpp>
#include <kvarena/allocator/block_manager.hpp>
#include <kvarena/base/layout.hpp>
#include <kvarena/base/version.hpp>
#include <kvarena/device/cuda_device.hpp>
#include <kvarena/device/host_device.hpp>

#include <array>
#include <cstdio>

int main() {
  const auto layout = kvarena::KvLayout::create(
      {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 64, .dtype = kvarena::DType::bf16});
  auto device = kvarena::HostDevice::create({.capacity_bytes = 1 << 26});
  if (!layout || !device) return 1;
  // With CUDA or without, with a GPU or without: there is a device, or a reason.
  const kvarena::CudaDeviceList gpus = kvarena::list_devices();
  if (gpus.devices.empty() == gpus.error.empty()) return 5;
  const auto arena = kvarena::Arena::create(**device, *layout, {.size = {.num_blocks = 8}});
  auto manager = kvarena::BlockManager::create({.num_blocks = 8});
  if (!arena || !manager) return 2;
  const auto holder = manager->register_holder({.purpose = "package test"});
  std::array<kvarena::BlockId, 3> ids;
  std::array<kvarena::Generation, 3> generations;
  if (!holder || !manager->allocate(*holder, ids, generations)) return 3;
  if (!manager->check_invariants() || manager->available_now() != 5) return 4;
  std::printf("kvarena %s: %lld bytes for %lld blocks, %s\n", KVARENA_VERSION_STRING,
              static_cast<long long>(arena->bytes()), static_cast<long long>(arena->num_blocks()),
              kvarena::describe(kvarena::exhausted(kvarena::Resource::block, 6, 5)).c_str());
  return 0;
}
