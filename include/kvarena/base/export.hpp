#pragma once

/// @file
/// Macros for declarations. A symbol is hidden unless its declaration carries KVARENA_EXPORT.

/// Makes a declaration visible to users of the shared library.
#define KVARENA_EXPORT __attribute__((visibility("default")))

/// Marks a function that both host and device code call. Empty when no CUDA compiler runs.
#ifdef __CUDACC__
#define KVARENA_HOST_DEVICE __host__ __device__
#else
#define KVARENA_HOST_DEVICE
#endif
