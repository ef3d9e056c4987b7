#pragma once

/// @file
/// A model with recurrent layers in a pool on a GPU, as a CudaStatesEngine plays it.

#include "kvarena/cache/kv_cache.hpp"
#include "unit/cache/toy_recurrence.hpp"

#include <cstdint>
#include <ostream>
#include <string>

namespace kvarena::test {

/// One model and one pool.
struct CudaStatesCase {
  std::string name;
  Recurrence kind = Recurrence::gated_delta;
  StateMode mode = StateMode::in_place;
  bool keeps = true;
  std::int32_t rollback = 0;
  std::int64_t every = 16;
  std::int64_t num_pages = 60;
  std::int32_t steps_in_flight = 2;
  std::int32_t max_decode_tokens = 1;
  bool states_first = false;  ///< the group of states comes before that of attention
  bool prefix_cache = false;  ///< preempted sequences begin with what is cached of them
};

inline void PrintTo(const CudaStatesCase& its, std::ostream* out) { *out << its.name; }

}  // namespace kvarena::test
