#pragma once

/// @file
/// The CUDA device: a Device in the memory of one NVIDIA GPU. Device memory comes only from
/// cudaMalloc, and staging memory only from cudaHostAlloc. This header needs no CUDA. It links in
/// builds without CUDA, where create returns unsupported. kvarena never uses the host in place of a
/// GPU by itself.
///
/// Every call works with any current device of the calling thread and leaves that device current.
/// Only calls for an adopted default stream use the legacy or the per-thread default stream.
/// - Copies between pageable host memory and the device go through a small pinned buffer of the
///   stream. Queueing therefore never waits for the work. Copies between pinned and device memory
///   are faster, and a captured stream can hold only those.
/// - When a host function of a stream fails, the stream skips later host functions and everything
///   that is queued after the failure. Copies, fills and kernels that were queued before the
///   failure still run, because CUDA cannot take them back. Events and streams behind the failure
///   fail as Device says.
/// - Host functions of different streams may share a thread, so none may wait for another.
/// - Creating and destroying memory, streams and events may wait for the device. No other call
///   does.
/// - After a sticky error (an illegal access in a kernel) the device is lost. The call that sees
///   the error first returns device_error. Every later call is refused with failed_precondition
///   (device). Both have the error as `native`. Memory that is given back to a lost device leaves
///   its accounts. Only a new process can use the GPU again.

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {

/// Options of a CUDA device.
struct CudaDeviceOptions {
  std::int32_t ordinal = 0;        ///< the GPU, as CUDA_VISIBLE_DEVICES numbers them
  std::uint32_t max_streams = 64;  ///< 1 .. 4096; past this create_stream returns exhausted
  std::uint32_t max_host_functions = 1024;  ///< 1 .. 2^20 queued on a stream; queueing more blocks
  std::uint64_t bounce_bytes = 256 << 10;   ///< 4 KiB .. 64 MiB of pinned memory a stream, for
                                            ///< pageable copies
  /// The memory that allocate and register_memory accept. allow_host is logged as a warning.
  ResidencyPolicy policy = ResidencyPolicy::vram_only;
};

/// One GPU as this process sees it.
struct CudaDeviceInfo {
  std::int32_t ordinal = 0;  ///< for CudaDeviceOptions
  std::string name;          ///< "NVIDIA H200"
  MemoryInfo memory;         ///< all zero when `status` failed
  std::int32_t major = 0;    ///< compute capability
  std::int32_t minor = 0;    ///< compute capability
  std::int32_t num_sms = 0;  ///< streaming multiprocessors
  /// True when the GPU uses the machine's memory. Such memory is never resident, so vram_only
  /// refuses every allocation.
  bool is_integrated = false;
  std::string pci_bus_id;  ///< "0000:1b:00.0", the name that NVML uses
  Status status;           ///< ok, or why the device cannot be used
};

/// The GPUs of the machine, or why there are none.
struct CudaDeviceList {
  bool cuda_built = false;              ///< whether this build contains the CUDA code
  std::vector<CudaDeviceInfo> devices;  ///< by ordinal
  Status status;                        ///< ok when there is a device, else why there is none
  std::string error;                    ///< `status` in one line: what is missing and what to do
};

/// Returns whether this build contains the CUDA code.
KVARENA_EXPORT bool is_built_with_cuda() noexcept;
/// Lists the GPUs. Reading the free memory creates a CUDA context on each GPU, which stays while
/// other users in the process need it. Throws only when host memory is out.
KVARENA_EXPORT CudaDeviceList list_devices();
/// Lists the GPUs without creating a CUDA context. It takes no GPU memory and works when a GPU is
/// full. `memory` stays zero. Throws only when host memory is out.
KVARENA_EXPORT CudaDeviceList identify_devices();
/// Returns kvarena::describe(status), then CUDA's own text for `native` and what to do about it.
KVARENA_EXPORT std::string describe_cuda(const Status& status) noexcept;

/// A Device on one GPU.
class KVARENA_EXPORT CudaDevice : public Device {
 public:
  /// Opens a GPU. Returns invalid_argument when an option is out of range (ordinal: no such GPU),
  /// device_error (device) when the driver or the GPU is missing or unusable, or unsupported
  /// (device) in a build without CUDA. describe_cuda says what to do.
  static Result<std::unique_ptr<CudaDevice>> create(const CudaDeviceOptions& options = {});

  /// The GPU's number, as in CudaDeviceOptions.
  virtual std::int32_t ordinal() const noexcept = 0;
  /// Returns what list_devices returns for this GPU.
  virtual CudaDeviceInfo info() const = 0;
  /// CudaDeviceOptions::bounce_bytes: the pinned memory that each stream holds.
  virtual std::uint64_t bounce_bytes() const noexcept = 0;

  /// Returns the cudaStream_t of `stream`, for launching kernels and capturing. It is valid until
  /// the stream is destroyed. Returns not_found (stream).
  virtual Result<void*> native_stream(StreamId stream) const = 0;
  /// Returns the cudaEvent_t of `event`. An event that is recorded natively does not carry the
  /// failure of a host function. Returns not_found (event).
  virtual Result<void*> native_event(EventId event) const = 0;
  /// Registers a stream of the caller's, a cudaStream_t of this GPU, and returns its id: the same
  /// id for the same stream while it is registered. The stream stays the caller's. destroy_stream
  /// undoes one adoption; the one that undoes the last waits for the stream's work and forgets the
  /// stream. nullptr is cudaStreamLegacy, the default stream of code that is not compiled for
  /// per-thread default streams. cudaStreamPerThread is the calling thread's: other threads may
  /// only destroy it, and are otherwise refused with failed_precondition (stream). Returns
  /// unsupported (device) for a stream of another GPU, else what create_stream returns. A stream
  /// that is being captured cannot be asked for its GPU: the caller answers for it.
  virtual Result<StreamId> adopt_stream(void* native_stream) = 0;
  /// Returns whether the stream is being captured into a graph, not_found (stream), or device_error
  /// (stream).
  virtual Result<bool> is_captured(StreamId stream) const = 0;
  /// Queues the write of a 64-bit number to device memory. `target` is 8-byte aligned. The write
  /// needs no kernel and no source that must stay alive. Work that is queued behind it on the
  /// stream reads the whole number. A failed stream skips the write, as it skips copies. Returns
  /// invalid_argument (pointer, alignment), not_found (stream), failed_precondition (stream) while
  /// the stream is captured, or device_error (stream).
  virtual Status write_value(void* target, std::uint64_t value, StreamId stream) = 0;
  /// Converts the result of a native call about `resource`, such as cudaGetLastError after a
  /// launch. Returns ok for 0, else device_error with `native`. A sticky error makes the device
  /// lost.
  virtual Status check(std::int32_t cuda_error, Resource resource) const = 0;
};

}  // namespace kvarena
