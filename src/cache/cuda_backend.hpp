#pragma once

/// @file
/// The CUDA backend of a KvCache. It mirrors changes of the block tables on the device, launches
/// kernels on the step's stream, and can record steps in a graph.

#include "cache/backend.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/device/device.hpp"

#include <memory>
#include <span>

namespace kvarena {

/// Loads the code of every kernel that a CUDA backend for this layout launches
/// (kernels/common/load_kernel.h). Nothing of the layout is checked. Returns unsupported (device)
/// as create_cuda_backend does, or device_error.
Status load_cuda_backend(Device& device, const UniformLayoutOptions& layout) noexcept;
/// Does the same for the backend of a cache with these groups.
Status load_cuda_backend(Device& device, std::span<const LayerGroup> groups) noexcept;

/// Makes a CUDA backend. Returns unsupported (device) for a device that is not a CudaDevice and in
/// a build without CUDA, or what DeviceTables::create and Device::allocate return.
Result<std::unique_ptr<Backend>> create_cuda_backend(Device& device, const Arena& arena,
                                                     StreamId stream,
                                                     const BackendOptions& options);
/// Makes a CUDA backend for an arena of pages. Returns the same, or unsupported (draft_trees) when
/// a group that keeps all tokens, or a window of them, has no kernel that masks draft trees.
Result<std::unique_ptr<Backend>> create_cuda_group_backend(Device& device, const Arena& arena,
                                                           StreamId stream,
                                                           const BackendOptions& options);

}  // namespace kvarena
