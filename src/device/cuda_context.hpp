#pragma once

/// @file
/// How calls reach one GPU.
///
/// `CudaContext` holds the GPU's primary context, the one that the CUDA runtime and other libraries
/// of the process share. A call makes it current on its thread and puts back what was there: with
/// the driver's own stack of contexts, because cudaSetDevice, given the previous device, would make
/// a context there that nobody asked for. `call` also keeps order among errors: a sticky one is
/// reported once, everything after it is refused.

#include "device/cuda_errors.hpp"

#include "kvarena/base/result.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

struct CUctx_st;

namespace kvarena {

struct CudaDriverFunctions;

/// One GPU's primary context. Thread-safe.
class CudaContext {
 public:
  /// Retains the context of GPU `ordinal`, made if there is none. Returns invalid_argument
  /// (ordinal) for an ordinal that is none, or device_error (device).
  static Result<std::unique_ptr<CudaContext>> open(std::int32_t ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// The GPU's number.
  std::int32_t ordinal() const noexcept { return ordinal_; }
  /// Whether its memory is the machine's.
  bool is_integrated() const noexcept { return facts_.is_integrated; }
  /// Whether a stream writes 64 bits at once (cuStreamWriteValue64).
  bool writes_64_bits() const noexcept { return facts_.writes_64_bits; }
  /// The sticky error that was seen; 0: none.
  std::int32_t lost_to() const noexcept { return lost_to_.load(std::memory_order_relaxed); }

  /// For a body of `call`.
  const CudaDriverFunctions& driver() const noexcept { return driver_; }

  /// Runs `body`, which returns a cudaError_t, with this GPU current; a failure is about `resource`
  /// `subject`. Refuses without running it: failed_precondition (device) when the GPU is lost, or
  /// (stream) on a thread that runs a host function.
  template <class Body>
  Status call(Resource resource, std::uint64_t subject, Body body) const {
    if (Status refused = refusal(subject); !refused) return refused;
    const Current current(*this);
    const std::int32_t error =
        current.error() != 0 ? current.error() : static_cast<std::int32_t>(body());
    return error == 0 ? Status{} : failure(error, resource, subject);
  }
  /// As call for a query, where cudaErrorNotReady is an answer: false.
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
  /// The status of a CUDA call that failed; notes a sticky error, clears the thread's last error.
  Status failure(std::int32_t cuda_error, Resource resource, std::uint64_t subject) const;

  /// Whether this thread runs a host function, where CUDA forbids every call.
  static bool runs_host_function() noexcept;
  /// While it lives, this thread runs a host function.
  class InHostFunction {
   public:
    InHostFunction() noexcept;
    ~InHostFunction();
    InHostFunction(const InHostFunction&) = delete;
    InHostFunction& operator=(const InHostFunction&) = delete;
  };

 private:
  /// While it lives, the context is current on this thread.
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

  /// What the driver says of the GPU, once.
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
