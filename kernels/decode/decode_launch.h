#pragma once

/// @file
/// What decode.cu knows of an instance of the decode kernel. decode_launch.cuh has the bodies.

#include "kernels/decode/decode.h"
#include "kernels/decode/decode_workspace.h"

#include <cuda_runtime_api.h>

namespace kvarena::kernels::decode {

using LaunchInstance = cudaError_t (*)(const DecodeParams&, const DecodeWorkspace&, int turns,
                                       bool overlap, cudaStream_t stream);
using LoadInstance = Status (*)() noexcept;

/// Launches the decode kernel of one instance: T is the type of q and out, S that of K and V.
/// `turns` work items are done at once.
template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands>
cudaError_t launch_instance(const DecodeParams& params, const DecodeWorkspace& workspace, int turns,
                            bool overlap, cudaStream_t stream);

/// Loads the kernels of one instance. Returns device_error.
template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands>
Status load_instance() noexcept;

}  // namespace kvarena::kernels::decode
