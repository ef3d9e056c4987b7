#pragma once

/// @file
/// cub::BlockReduce for emulated thread blocks: found in place of CUB's.

#include "emulation/intrinsics.hpp"

#include <numeric>

namespace cub {

template <class T, int kThreads>
class BlockReduce {
 public:
  struct TempStorage {
    T value[kThreads];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  /// Thread 0 gets the sum; the others get -1, as what they get does not matter.
  T Sum(T value) {
    kvarena::test::begin_emulated_use(&storage_);
    storage_.value[threadIdx.x] = value;
    __syncthreads();
    T sum = -1;
    if (threadIdx.x == 0) sum = std::accumulate(storage_.value, storage_.value + kThreads, T{0});
    kvarena::test::end_emulated_use(&storage_);
    return sum;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
