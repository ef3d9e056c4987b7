#pragma once

/// @file
/// Scattering a staged step to the arrays that its kernels read, in plain loops.

#include "kernels/params.h"
#include "kernels/scatter_step/staged_states.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// Does what launch_scatter_step does. Every pointer is host memory.
KVARENA_EXPORT void scatter_step(const ScatterStepParams& params);
/// Does what launch_scatter_parts does for one group of states. Every pointer is host memory.
KVARENA_EXPORT void scatter_states(const ScatterStatesParams& params);

}  // namespace kvarena::kernels::reference
