#include "unit/cache/cuda_calls.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace kvarena::test {
namespace {

std::mutex mutex;
std::vector<CudaCall> calls;         // guarded by mutex
std::vector<std::string> functions;  // guarded by mutex
std::atomic<bool> lies{false};

cudaError_t note(cudaError_t error, CudaCall::Kind kind, const char* function, void* pointer,
                 std::uint64_t bytes) {
  const std::scoped_lock lock(mutex);
  if (error == cudaSuccess && pointer != nullptr) calls.push_back({kind, function, pointer, bytes});
  return error;
}

}  // namespace

std::vector<CudaCall> take_cuda_calls() {
  const std::scoped_lock lock(mutex);
  return std::exchange(calls, {});
}

std::vector<std::string> driver_functions_looked_up() {
  const std::scoped_lock lock(mutex);
  return functions;
}

void lie_about_device_memory(bool lie) { lies = lie; }

}  // namespace kvarena::test

using kvarena::test::CudaCall;
using kvarena::test::note;

// The linker sends calls of cudaX to __wrap_cudaX, and __real_cudaX to the runtime.
#define DECLARE(function, parameters)                  \
  extern "C" cudaError_t __real_##function parameters; \
  extern "C" cudaError_t __wrap_##function parameters; \
  extern "C" cudaError_t __wrap_##function parameters
/// A call that gives `*result` of `bytes` bytes.
#define ALLOCATES(function, parameters, arguments, result, bytes)                    \
  DECLARE(function, parameters) {                                                    \
    const cudaError_t error = __real_##function arguments;                           \
    return note(error, CudaCall::Kind::allocate, #function,                          \
                error == cudaSuccess ? static_cast<void*>(result) : nullptr, bytes); \
  }
/// A call that gives `pointer` back.
#define FREES(function, parameters, arguments, pointer)                       \
  DECLARE(function, parameters) {                                             \
    return note(__real_##function arguments, CudaCall::Kind::free, #function, \
                static_cast<void*>(pointer), 0);                              \
  }

extern "C" cudaError_t __real_cudaMallocManaged(void**, size_t, unsigned int);
extern "C" cudaError_t __real_cudaMalloc(void**, size_t);
extern "C" cudaError_t __wrap_cudaMalloc(void** p, size_t n);
extern "C" cudaError_t __wrap_cudaMalloc(void** p, size_t n) {
  const cudaError_t error = kvarena::test::lies
                                ? __real_cudaMallocManaged(p, n, cudaMemAttachGlobal)
                                : __real_cudaMalloc(p, n);
  return note(error, CudaCall::Kind::allocate, "cudaMalloc", error == cudaSuccess ? *p : nullptr,
              n);
}
ALLOCATES(cudaMallocHost, (void** p, size_t n), (p, n), *p, n)
ALLOCATES(cudaHostAlloc, (void** p, size_t n, unsigned int f), (p, n, f), *p, n)
ALLOCATES(cudaMallocManaged, (void** p, size_t n, unsigned int f), (p, n, f), *p, n)
ALLOCATES(cudaMallocPitch, (void** p, size_t* s, size_t w, size_t h), (p, s, w, h), *p, *s* h)
ALLOCATES(cudaMalloc3D, (cudaPitchedPtr * p, cudaExtent e), (p, e), p->ptr, e.width)
ALLOCATES(cudaMallocArray,
          (cudaArray_t * a, const cudaChannelFormatDesc* d, size_t w, size_t h, unsigned int f),
          (a, d, w, h, f), *a, w)
ALLOCATES(cudaMalloc3DArray,
          (cudaArray_t * a, const cudaChannelFormatDesc* d, cudaExtent e, unsigned int f),
          (a, d, e, f), *a, e.width)
ALLOCATES(cudaMallocMipmappedArray,
          (cudaMipmappedArray_t * a, const cudaChannelFormatDesc* d, cudaExtent e, unsigned int l,
           unsigned int f),
          (a, d, e, l, f), *a, e.width)
ALLOCATES(cudaMallocAsync, (void** p, size_t n, cudaStream_t s), (p, n, s), *p, n)
ALLOCATES(cudaMallocFromPoolAsync, (void** p, size_t n, cudaMemPool_t m, cudaStream_t s),
          (p, n, m, s), *p, n)
ALLOCATES(cudaMemPoolCreate, (cudaMemPool_t * m, const cudaMemPoolProps* q), (m, q), *m, 1)
ALLOCATES(cudaHostRegister, (void* p, size_t n, unsigned int f), (p, n, f), p, n)
ALLOCATES(cudaGraphAddMemAllocNode,
          (cudaGraphNode_t * o, cudaGraph_t g, const cudaGraphNode_t* d, size_t k,
           cudaMemAllocNodeParams* q),
          (o, g, d, k, q), q->dptr, q->bytesize)
FREES(cudaFree, (void* p), (p), p)
FREES(cudaFreeHost, (void* p), (p), p)
FREES(cudaFreeAsync, (void* p, cudaStream_t s), (p, s), p)
FREES(cudaFreeArray, (cudaArray_t a), (a), a)
FREES(cudaFreeMipmappedArray, (cudaMipmappedArray_t a), (a), a)
FREES(cudaHostUnregister, (void* p), (p), p)
FREES(cudaMemPoolDestroy, (cudaMemPool_t m), (m), m)
FREES(cudaGraphAddMemFreeNode,
      (cudaGraphNode_t * o, cudaGraph_t g, const cudaGraphNode_t* d, size_t k, void* p),
      (o, g, d, k, p), p)

DECLARE(cudaGetDriverEntryPoint, (const char* symbol, void** f, unsigned long long flags,
                                  cudaDriverEntryPointQueryResult* r)) {
  {
    const std::scoped_lock lock(kvarena::test::mutex);
    kvarena::test::functions.emplace_back(symbol);
  }
  return __real_cudaGetDriverEntryPoint(symbol, f, flags, r);
}
DECLARE(cudaGetDriverEntryPointByVersion,
        (const char* symbol, void** f, unsigned int version, unsigned long long flags,
         cudaDriverEntryPointQueryResult* r)) {
  {
    const std::scoped_lock lock(kvarena::test::mutex);
    kvarena::test::functions.emplace_back(symbol);
  }
  return __real_cudaGetDriverEntryPointByVersion(symbol, f, version, flags, r);
}
