#pragma once

/// @file
/// What a backend's options come to in bytes. Pure functions, which plan a backend and which the
/// backend itself is made with.

#include "cache/backend.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/device.hpp"
#include "step/device_tables.hpp"

namespace kvarena {

/// Windows that a step's layers may have: none, and window_tokens.
constexpr std::int32_t num_windows(const BackendOptions& options) noexcept {
  return options.window_tokens == 0 ? 1 : 2;
}

/// The largest step of a host backend; `kv` is any layer's.
AttentionLimits host_limits(const BackendOptions& options, const KvLayerView& kv) noexcept;
/// The shape of a CUDA backend's steps; `kv` is any layer's.
cuda::AttentionShape cuda_shape(const BackendOptions& options, const KvLayerView& kv) noexcept;
/// A CUDA backend's block tables.
DeviceTablesOptions tables_options(const BackendOptions& options) noexcept;

/// The attention workspaces: on the host one for each step in flight and window, on CUDA one for
/// each window, and none where no layer takes decode attention. `kv` is a layer that is aligned as
/// the pool's will be; nothing is read. Returns what `validate`, attention_workspace_bytes or
/// cuda::workspace_bytes say of options that attention cannot serve.
Result<WorkspacePlan> plan_workspaces(DeviceKind kind, const BackendOptions& options,
                                      const KvLayerView& kv) noexcept;

}  // namespace kvarena
