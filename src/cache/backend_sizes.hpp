#pragma once

/// @file
/// The sizes that follow from a backend's options. Pure functions. The planner and the backend
/// itself both use them.

#include "cache/backend.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/device.hpp"
#include "step/device_tables.hpp"

namespace kvarena {

/// The number of windows that the layers of a step may have: no window, and window_tokens.
constexpr std::int32_t num_windows(const BackendOptions& options) noexcept {
  return options.window_tokens == 0 ? 1 : 2;
}

/// Returns the largest step of a host backend. `kv` is any layer.
AttentionLimits host_limits(const BackendOptions& options, const KvLayerView& kv) noexcept;
/// Returns the shape of a CUDA backend's steps. `kv` is any layer.
cuda::AttentionShape cuda_shape(const BackendOptions& options, const KvLayerView& kv) noexcept;
/// Returns whether a GPU of this compute capability (90: 9.0) has a kernel that masks draft trees.
bool has_tree_kernel(const BackendOptions& options, const KvLayerView& kv,
                     std::int32_t compute_capability) noexcept;
/// Returns the options of a CUDA backend's block tables.
DeviceTablesOptions tables_options(const BackendOptions& options) noexcept;

/// Plans the attention workspaces. The host has one for each step in flight and window. CUDA has
/// one for each window, and none when no layer takes decode attention. `kv` is a layer with the
/// alignment of the later pool; it is not read. For options that attention cannot serve, returns
/// what `validate`, attention_workspace_bytes or cuda::workspace_bytes returns.
Result<WorkspacePlan> plan_workspaces(DeviceKind kind, const BackendOptions& options,
                                      const KvLayerView& kv) noexcept;

}  // namespace kvarena
