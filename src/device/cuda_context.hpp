#pragma once

/// @file
/// The context in which calls to one GPU run.
///
/// `CudaContext` holds the GPU's primary context, which the CUDA runtime and other libraries of the
/// process share. Each call makes the context current on its thread and restores the previous one.
/// It uses the driver's stack of contexts for that: cudaSetDevice with the previous device would
/// create a context there that nobody asked for. `call` also handles sticky errors: it reports one
/// once, and refuses every call after it.

#include "device/cuda_errors.hpp"

#include "kvarena/base/result.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

struct CUctx_st;

namespace kvarena {

struct CudaDriverFunctions;

/// The primary context of one GPU. Thread-safe.
class CudaContext {
 public:
  /// Retains the context of GPU `ordinal`, and creates it when there is none. Returns
  /// invalid_argument (ordinal) when there is no such GPU, or device_error (device).
  static Result<std::unique_ptr<CudaContext>> open(std::int32_t ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// The GPU's number.
  std::int32_t ordinal() const noexcept { return ordinal_; }
  /// Whether the GPU uses the machine's memory.
  bool is_integrated() const noexcept { return facts_.is_integrated; }
  /// Whether a stream can write 64 bits at once (cuStreamWriteValue64).
  bool writes_64_bits() const noexcept { return facts_.writes_64_bits; }
  /// The sticky error that a call has seen. 0: none.
  std::int32_t lost_to() const noexcept { return lost_to_.load(std::memory_order_relaxed); }

  /// The driver's functions, for a body of `call`.
  const CudaDriverFunctions& driver() const noexcept { return driver_; }

  /// Runs `body`, which returns a cudaError_t, with this GPU current. A failure is about `resource`
  /// with id `subject`. Refuses the call without running it when the GPU is lost
  /// (failed_precondition (device)) or on a thread that runs a host function (failed_precondition
  /// (stream)).
  template <class Body>
  Status call(Resource resource, std::uint64_t subject, Body body) const {
    if (Status refused = refusal(subject); !refused) return refused;
    const Current current(*this);
    const std::int32_t error =
        current.error() != 0 ? current.error() : static_cast<std::int32_t>(body());
    return error == 0 ? Status{} : failure(error, resource, subject);
  }
  /// Does the same for a query. The answer cudaErrorNotReady becomes false.
  template <class Body>
  Result<bool> query(Resource resource, std::uint64_t subject, Body body) const {
    bool is_ready = true;
    const Status status = call(resource, subject, [&] {
      const std::int32_t error = static_cast<std::int32_t>(body());
      is_ready = !is_not_ready(error);
      return is_ready ? error : 0;
    });
    if (!status) return status;
    return is_ready;
  }
  /// Returns the status of a CUDA call that failed. Remembers a sticky error, and clears the
  /// thread's last error.
  Status failure(std::int32_t cuda_error, Resource resource, std::uint64_t subject) const;

  /// Whether this thread runs a host function. CUDA forbids every call there.
  static bool runs_host_function() noexcept;
  /// Marks this thread as running a host function, during its lifetime.
  class InHostFunction {
   public:
    InHostFunction() noexcept;
    ~InHostFunction();
    InHostFunction(const InHostFunction&) = delete;
    InHostFunction& operator=(const InHostFunction&) = delete;
  };

 private:
  /// Makes the context current on this thread, during its lifetime.
  class Current {
   public:
    explicit Current(const CudaContext& context) noexcept;
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    std::int32_t error() const noexcept { return error_; }

   private:
    const CudaDriverFunctions& driver_;
    std::int32_t error_ = 0;
    bool pushed_ = false;
  };

  /// Facts of the GPU, asked of the driver once.
  struct Facts {
    bool is_integrated = false;
    bool writes_64_bits = false;
  };

  CudaContext(const CudaDriverFunctions& driver, std::int32_t ordinal, Facts facts,
              std::int32_t device, CUctx_st* context) noexcept;
  Status refusal(std::uint64_t subject) const noexcept;
  static bool is_not_ready(std::int32_t cuda_error) noexcept;

  const CudaDriverFunctions& driver_;
  const std::int32_t ordinal_;
  const Facts facts_;
  const std::int32_t device_;  // the driver's handle
  CUctx_st* const context_;
  mutable std::atomic<std::int32_t> lost_to_{0};
};

}  // namespace kvarena
