#pragma once

/// @file
/// A step from its staging slot to the arrays that its kernels read, in plain loops.

#include "kernels/params.h"

#include "kvarena/base/export.hpp"

namespace kvarena::kernels::reference {

/// As launch_scatter_step; every pointer is host memory.
KVARENA_EXPORT void scatter_step(const ScatterStepParams& params);

}  // namespace kvarena::kernels::reference
