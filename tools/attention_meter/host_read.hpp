#pragma once

/// @file
/// The read bandwidth of a machine: several loops that only read, for one thread, and all workers
/// of a set reading together. Which loop is fastest depends on the machine.

#include "kvarena/attention/cpu_workers.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena::meter {

inline constexpr std::int64_t kReadUnit = 512;  ///< bytes that every loop divides

/// Reads `bytes` bytes, a multiple of kReadUnit. Returns a value that depends on all of them.
using ReadKernel = std::uint64_t (*)(const std::byte* from, std::int64_t bytes);

/// The loops that this machine can run. Static.
std::span<const ReadKernel> read_kernels();

/// Reads `bytes` at `from` once, an equal share for each worker. A share is rounded up to whole
/// units, so up to one unit a worker is read past the end. Returns the bytes read.
std::int64_t read_together(CpuWorkers& workers, ReadKernel kernel, const std::byte* from,
                           std::int64_t bytes);

}  // namespace kvarena::meter
