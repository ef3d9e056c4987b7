#pragma once

/// @file
/// Marks on declarations. Every symbol is hidden unless its declaration carries KVARENA_EXPORT.

/// Marks what a shared library shows to its users.
#define KVARENA_EXPORT __attribute__((visibility("default")))

/// Marks a function that device code calls too. Nothing where no CUDA compiler is at work.
#ifdef __CUDACC__
#define KVARENA_HOST_DEVICE __host__ __device__
#else
#define KVARENA_HOST_DEVICE
#endif
