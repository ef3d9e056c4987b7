#pragma once

/// @file
/// A step on CUDA as its kernels see it: the parts of its workspace, and the parameters of each
/// kernel. The functions compute; they launch nothing.

#include "kernels/columns/columns.h"
#include "kernels/columns/shared_prefixes.h"
#include "kernels/decode/decode.h"
#include "kernels/prefill/prefill.h"
#include "kvarena/attention/cuda_attention.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::cuda {

/// The classes of rows that a step has, and which kernels serve them. A layer whose pointers or
/// types suit no kernel but prefill has only prompts.
struct StepKernels {
  RowClasses classes;            ///< of the shape
  bool has_decode = false;       ///< decode attention has rows
  bool has_columns = false;      ///< attention with many query columns has rows
  bool has_prompts = false;      ///< prefill has rows
  bool has_prefixes = false;     ///< rows may read leading blocks together
  std::int32_t min_prompt = 1;   ///< fewest query tokens of prefill's rows
  std::int32_t num_prompts = 0;  ///< rows of prefill
};

/// Returns what a step needs.
StepKernels step_kernels(const AttentionStep& step, const AttentionArgs& args) noexcept;
/// Returns the same for a layer.
StepKernels layer_kernels(const AttentionStep& step, const AttentionArgs& args) noexcept;

/// The parts of a step's workspace. The counters of prompts come first. What each step writes
/// before it reads it comes last, so that it does not touch the counters of the parts between,
/// whose places depend on the step's shape. Null where a part is not needed or has no room.
struct WorkspaceParts {
  std::byte* counters = nullptr;
  std::byte* decode = nullptr;
  std::int64_t decode_bytes = 0;
  std::byte* columns = nullptr;
  std::int64_t columns_bytes = 0;
  std::byte* plan = nullptr;  ///< of prompts
  std::byte* shared_tokens = nullptr;
  std::byte* prefixes = nullptr;
  std::int64_t prefixes_bytes = 0;
  std::int64_t needed = 0;  ///< bytes that the workspace must have
};
WorkspaceParts parts_of(const AttentionStep& step, std::int32_t num_rows) noexcept;

/// Returns whether the kernel for prompts needs counters.
bool counts_items(const AttentionShape& shape) noexcept;

/// Returns the limits of decode attention in a step.
kernels::DecodeLimits decode_limits(const AttentionStep& step) noexcept;
/// Returns the limits of attention with many query columns in a step.
kernels::ColumnsLimits columns_limits(const AttentionStep& step) noexcept;

/// Return the parameters of the schedules and of the kernels.
kernels::FindPrefixesParams find_prefixes(const AttentionStep& step,
                                          const AttentionArgs& args) noexcept;
kernels::DecodeScheduleParams decode_schedule(const AttentionStep& step,
                                              const AttentionArgs& args) noexcept;
kernels::ColumnsScheduleParams columns_schedule(const AttentionStep& step,
                                                const AttentionArgs& args) noexcept;
kernels::DecodeParams decode_params(const AttentionStep& step, const AttentionArgs& args) noexcept;
kernels::ColumnsParams columns_params(const AttentionStep& step,
                                      const AttentionArgs& args) noexcept;
kernels::PrefillParams prefill_params(const AttentionStep& step, const AttentionArgs& args,
                                      const StepKernels& kernels) noexcept;

}  // namespace kvarena::cuda
