#pragma once

/// @file
/// The slots of recurrent layers in a staged step: what the host writes into a slot of their
/// staging ring, and the parameters of the launch that brings it to the device. A step is named,
/// found and missed as in staged_step.h. Plain memory, no CUDA.

#include "kernels/params.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// The begin of a slot. All zeros mean that nothing was ever staged here.
struct StagedStates {
  StagedHeader step;            ///< num_rows: rows of the batch; num_copies: copies of slots
  std::int64_t num_extras = 0;  ///< states beside those after the rows' last tokens
};

/// The sizes of a staging ring of states and of the arrays that receive a step. The lists of a slot
/// lie behind its header, each at a multiple of 16 bytes.
struct StateShape {
  std::int32_t steps_in_flight = 0;  ///< slots of the ring
  std::int32_t max_rows = 0;         ///< sequences of a step
  std::int32_t num_parts = 0;        ///< blocks of one state
  std::int32_t max_extras = 0;       ///< of a step

  static constexpr std::int64_t kReadOffset = 64;
  /// Bytes of a list of `count` numbers.
  KVARENA_HOST_DEVICE static constexpr std::int64_t list_bytes(std::int64_t count) noexcept {
    return (count * 4 + 15) / 16 * 16;
  }
  /// The numbers of `read` and of `write`, and the most copies.
  KVARENA_HOST_DEVICE constexpr std::int64_t num_slots() const noexcept {
    return std::int64_t{max_rows} * num_parts;
  }
  /// Bytes from the begin of a slot to its lists.
  KVARENA_HOST_DEVICE constexpr std::int64_t write_offset() const noexcept {
    return kReadOffset + list_bytes(num_slots());
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t extra_offsets_offset() const noexcept {
    return write_offset() + list_bytes(num_slots());
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t extra_tokens_offset() const noexcept {
    return extra_offsets_offset() + list_bytes(std::int64_t{max_rows} + 1);
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t extra_slots_offset() const noexcept {
    return extra_tokens_offset() + list_bytes(max_extras);
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t copies_offset() const noexcept {
    return extra_slots_offset() + list_bytes(std::int64_t{max_extras} * num_parts);
  }
  /// Bytes of a slot.
  KVARENA_HOST_DEVICE constexpr std::int64_t slot_bytes() const noexcept {
    return (copies_offset() + list_bytes(2 * num_slots()) + 127) / 128 * 128;
  }
};

/// The device's memory from step to step. It begins as all zeros.
struct TakenStates {
  ScatterState step;  ///< num_tokens is not used. num_copies: of the step's slots, for their kernel
  std::int64_t num_extras = 0;
};

/// Copies the slots of one group of states from a staging ring to the arrays that its kernels read.
/// Behind the step's rows, `read` and `write` are -1 and there are no extras.
struct ScatterStatesParams {
  StateShape shape;               ///< of the ring and the arrays
  const std::byte* ring;          ///< [steps_in_flight, slot_bytes] staging memory, 16-byte aligned
  const StepWord* expected_word;  ///< as in ScatterStepParams
  StepWord expected;              ///< as in ScatterStepParams
  TakenStates* state;             ///< on the device
  ScatterReport* report;          ///< staging memory
  // Arrays on the device, 16-byte aligned, with room for a multiple of four numbers.
  std::int32_t* read;           ///< [max_rows, num_parts] -1: none
  std::int32_t* write;          ///< [max_rows, num_parts] -1: none
  std::int32_t* extra_offsets;  ///< [max_rows + 1]
  std::int32_t* extra_tokens;   ///< [max_extras] -1: none
  std::int32_t* extra_slots;    ///< [max_extras, num_parts] -1: none
  BlockCopy* copies;            ///< [max_rows x num_parts] both -1: none
};

static_assert(sizeof(StagedStates) <= StateShape::kReadOffset);
static_assert(std::is_trivially_copyable_v<ScatterStatesParams> && sizeof(TakenStates) == 40);

}  // namespace kvarena::kernels
