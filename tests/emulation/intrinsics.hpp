#pragma once

/// @file
/// The names of CUDA that device code uses, for the host: included before the header of a kernel.
/// Variables in shared memory are static, because one thread block runs at a time. Only masks of
/// all lanes are known.

#include "emulation/thread_block.hpp"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef __shared__
#define __shared__ static

/// An index of a thread, or a number of thread blocks, along the only axis in use.
struct EmulatedIndex {
  unsigned x = 0;
};
extern EmulatedIndex threadIdx;
extern EmulatedIndex blockIdx;
extern EmulatedIndex gridDim;
extern EmulatedIndex clusterDim;  ///< thread blocks of a cluster

using kvarena::test::CallSite;

/// Gives a value to the warp, waits, and returns take() of the values that it was given.
template <class T, class Take>
auto exchange_emulated(const CallSite& site, T value, Take&& take) {
  using kvarena::test::EmulatedWait;
  static_assert(sizeof(T) <= 8);
  const unsigned first = threadIdx.x / 32 * 32;
  std::uint64_t& own = kvarena::test::emulated_value(threadIdx.x);
  own = 0;
  std::memcpy(&own, &value, sizeof(T));
  kvarena::test::wait_emulated(EmulatedWait::warp, site);
  const auto of_lane = [&](unsigned lane) {
    T its;
    std::memcpy(&its, &kvarena::test::emulated_value(first + lane), sizeof(T));
    return its;
  };
  const auto result = take(of_lane);
  kvarena::test::wait_emulated(EmulatedWait::warp, site);  // all have read
  return result;
}
/// Returns the values of all lanes, put together by put(sum, value).
template <class T, class Put>
T reduce_emulated(const CallSite& site, T value, Put&& put) {
  return exchange_emulated(site, value, [&](const auto& of_lane) {
    T sum = of_lane(0);
    for (unsigned lane = 1; lane < 32; ++lane) sum = put(sum, of_lane(lane));
    return sum;
  });
}

inline void __syncthreads(const CallSite& site = CallSite::current()) {
  kvarena::test::wait_emulated(kvarena::test::EmulatedWait::block, site);
}
inline void __syncwarp(const CallSite& site = CallSite::current()) {
  kvarena::test::wait_emulated(kvarena::test::EmulatedWait::warp, site);
}
/// For thread blocks of 1,024 threads.
inline int __syncthreads_count(int value, const CallSite& site = CallSite::current()) {
  using namespace kvarena::test;
  emulated_value(threadIdx.x) = value != 0 ? 1 : 0;
  wait_emulated(EmulatedWait::block, site);
  int count = 0;
  for (unsigned thread = 0; thread < 1024; ++thread) count += emulated_value(thread) != 0 ? 1 : 0;
  wait_emulated(EmulatedWait::block, site);
  return count;
}
inline int __syncthreads_and(int value, const CallSite& site = CallSite::current()) {
  return __syncthreads_count(value, site) == 1024 ? 1 : 0;
}
inline int __syncthreads_or(int value, const CallSite& site = CallSite::current()) {
  return __syncthreads_count(value, site) > 0 ? 1 : 0;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane, const CallSite& site = CallSite::current()) {
  return exchange_emulated(
      site, value, [&](const auto& of_lane) { return of_lane(static_cast<unsigned>(lane) % 32); });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, const CallSite& site = CallSite::current()) {
  const unsigned lane = (threadIdx.x % 32) ^ static_cast<unsigned>(mask);
  return exchange_emulated(site, value, [&](const auto& of_lane) { return of_lane(lane); });
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta, const CallSite& site = CallSite::current()) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned from = lane >= delta ? lane - delta : lane;
  return exchange_emulated(site, value, [&](const auto& of_lane) { return of_lane(from); });
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, const CallSite& site = CallSite::current()) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned from = lane + delta < 32 ? lane + delta : lane;
  return exchange_emulated(site, value, [&](const auto& of_lane) { return of_lane(from); });
}
template <class T>
unsigned __match_any_sync(unsigned, T value, const CallSite& site = CallSite::current()) {
  return exchange_emulated(site, value, [&](const auto& of_lane) {
    unsigned same = 0;
    for (unsigned lane = 0; lane < 32; ++lane) same |= of_lane(lane) == value ? 1U << lane : 0U;
    return same;
  });
}
template <class T>
T __reduce_min_sync(unsigned, T value, const CallSite& site = CallSite::current()) {
  return reduce_emulated(site, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
T __reduce_add_sync(unsigned, T value, const CallSite& site = CallSite::current()) {
  return reduce_emulated(site, value, [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T>
T __reduce_max_sync(unsigned, T value, const CallSite& site = CallSite::current()) {
  return reduce_emulated(site, value, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_or_sync(unsigned, unsigned value,
                                 const CallSite& site = CallSite::current()) {
  return reduce_emulated(site, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __ballot_sync(unsigned, bool value, const CallSite& site = CallSite::current()) {
  return exchange_emulated(site, value, [](const auto& of_lane) {
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane) ballot |= of_lane(lane) ? 1U << lane : 0U;
    return ballot;
  });
}
inline bool __any_sync(unsigned mask, bool value, const CallSite& site = CallSite::current()) {
  return __ballot_sync(mask, value, site) != 0;
}
inline bool __all_sync(unsigned mask, bool value, const CallSite& site = CallSite::current()) {
  return __ballot_sync(mask, value, site) == ~0U;
}

/// One thread runs at a time.
template <class T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicMin(T* to, T value) {
  const T old = *to;
  if (value < old) *to = value;
  return old;
}
template <class T>
T atomicMax(T* to, T value) {
  const T old = *to;
  if (old < value) *to = value;
  return old;
}
template <class T>
T atomicCAS(T* to, T expected, T value) {
  const T old = *to;
  if (old == expected) *to = value;
  return old;
}

inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __popc(unsigned value) { return std::popcount(value); }
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class A, class B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
