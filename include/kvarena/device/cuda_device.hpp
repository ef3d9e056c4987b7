#pragma once

/// @file
/// The CUDA device: a Device in the memory of one NVIDIA GPU. Device memory comes from cudaMalloc
/// only, staging memory from cudaHostAlloc. This header needs no CUDA and links in builds without
/// CUDA, where create returns unsupported. kvarena never uses the host in a GPU's place by itself.
///
/// Every call works whatever device is current on the calling thread, leaves it current, and uses
/// neither the legacy nor the per-thread default stream.
/// - Copies between pageable host memory and the device go through a small pinned buffer of the
///   stream, so that queueing never waits for the work; copies between pinned and device memory are
///   faster and are what a captured stream can hold.
/// - A stream whose host function failed skips later host functions, and whatever is queued once
///   the failure has happened. Copies, fills and kernels queued before that do run: CUDA cannot
///   take them back. Events and streams behind the failure fail as Device says.
/// - Host functions of different streams may share a thread: none may wait for another.
/// - Creating and destroying (memory, streams, events) may wait for the device; nothing else does.
/// - After a sticky error (an illegal access in a kernel) the device is lost: the call that sees it
///   first returns device_error, every later one is refused with failed_precondition (device), both
///   with the error as `native`. What is given back to a lost device leaves its accounts. Only a
///   new process gets the GPU back.

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {

/// Options of a CUDA device.
struct CudaDeviceOptions {
  std::int32_t ordinal = 0;        ///< which GPU, counted as CUDA_VISIBLE_DEVICES shows them
  std::uint32_t max_streams = 64;  ///< 1 .. 4096; create_stream: exhausted past this
  std::uint32_t max_host_functions = 1024;  ///< 1 .. 2^20 that a stream holds; more block
  std::uint64_t bounce_bytes = 256 << 10;  ///< 4 KiB .. 64 MiB pinned a stream, for pageable copies
  /// What allocate and register_memory accept; allow_host is logged at warning.
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
  /// Its memory is the machine's: never resident, so vram_only refuses every allocation.
  bool is_integrated = false;
  std::string pci_bus_id;  ///< "0000:1b:00.0", by which NVML knows it
  Status status;           ///< why the device cannot be used
};

/// What there is, or why there is nothing.
struct CudaDeviceList {
  bool cuda_built = false;              ///< whether this build has its CUDA half
  std::vector<CudaDeviceInfo> devices;  ///< by ordinal
  Status status;                        ///< why there is no device; ok when there is one
  std::string error;                    ///< the same in one line: what is missing, what to do
};

/// Whether this build has its CUDA half.
KVARENA_EXPORT bool is_built_with_cuda() noexcept;
/// Lists the GPUs. Asking for free memory makes a CUDA context on each of them, which stays for as
/// long as others of the process use it. Throws only when host memory is out.
KVARENA_EXPORT CudaDeviceList list_devices();
/// The same without a CUDA context, so that it takes nothing of a GPU and works when one is full:
/// `memory` stays zero. Throws only when host memory is out.
KVARENA_EXPORT CudaDeviceList identify_devices();
/// kvarena::describe(status), then CUDA's own words for `native` and what to do about it.
KVARENA_EXPORT std::string describe_cuda(const Status& status) noexcept;

/// A Device on one GPU.
class KVARENA_EXPORT CudaDevice : public Device {
 public:
  /// Returns invalid_argument when an option is out of range (ordinal: no such GPU),
  /// device_error (device) when driver or GPU are missing or unusable, or unsupported (device) in a
  /// build without CUDA; describe_cuda says what to do.
  static Result<std::unique_ptr<CudaDevice>> create(const CudaDeviceOptions& options = {});

  /// The GPU's number.
  virtual std::int32_t ordinal() const noexcept = 0;
  /// What list_devices says of this GPU.
  virtual CudaDeviceInfo info() const = 0;
  /// CudaDeviceOptions::bounce_bytes: what each stream holds in pinned memory.
  virtual std::uint64_t bounce_bytes() const noexcept = 0;

  /// The cudaStream_t behind `stream`, for launching kernels and capturing. Valid until the stream
  /// is destroyed. Returns not_found (stream).
  virtual Result<void*> native_stream(StreamId stream) const = 0;
  /// The cudaEvent_t behind `event`. An event that is recorded natively knows of no failed host
  /// function. Returns not_found (event).
  virtual Result<void*> native_event(EventId event) const = 0;
  /// Makes a stream of the caller's, a cudaStream_t of this GPU, known here. It stays the caller's:
  /// destroy_stream waits for its work and forgets it. Returns invalid_argument (pointer) for
  /// the default streams, unsupported (device) for a stream of another GPU, else as create_stream.
  virtual Result<StreamId> adopt_stream(void* native_stream) = 0;
  /// Queues the write of a 64-bit number to device memory, `target` 8-byte aligned: one that needs
  /// no source to stay alive, and no kernel. What is queued behind it on the stream reads the whole
  /// number. Skipped on a failed stream, as copies are. Returns invalid_argument (pointer,
  /// alignment), not_found (stream), failed_precondition (stream) while the stream is captured,
  /// device_error (stream).
  virtual Status write_value(void* target, std::uint64_t value, StreamId stream) = 0;
  /// Passes on the outcome of a native call about `resource`, such as cudaGetLastError after a
  /// launch: ok for 0, else device_error with `native`; a sticky one makes the device lost.
  virtual Status check(std::int32_t cuda_error, Resource resource) const = 0;
};

}  // namespace kvarena
