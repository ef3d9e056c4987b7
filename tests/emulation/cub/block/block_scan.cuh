#pragma once

/// @file
/// cub::BlockScan for emulated thread blocks: found in place of CUB's.

#include "emulation/intrinsics.hpp"

namespace cub {

template <class T, int kThreads>
class BlockScan {
 public:
  struct TempStorage {
    T value[kThreads];
    T before[kThreads];
    T all;
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

  void ExclusiveSum(T value, T& before, T& all) {
    kvarena::test::begin_emulated_use(&storage_);
    storage_.value[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      T sum = 0;
      for (int i = 0; i < kThreads; ++i) {
        storage_.before[i] = sum;
        sum += storage_.value[i];
      }
      storage_.all = sum;
    }
    __syncthreads();
    before = storage_.before[threadIdx.x];
    all = storage_.all;
    kvarena::test::end_emulated_use(&storage_);
  }
  void InclusiveSum(T value, T& with, T& all) {
    ExclusiveSum(value, with, all);
    with += value;
  }
  void ExclusiveSum(T value, T& before) {
    T all;
    ExclusiveSum(value, before, all);
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
