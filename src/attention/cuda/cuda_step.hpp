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

/// The classes of rows that a step or a layer has, and which kernels serve them.
struct StepKernels {
  RowClasses classes;            ///< of the rows
  bool has_decode = false;       ///< decode attention has rows
  bool has_columns = false;      ///< attention with many query columns has rows
  bool has_prefixes = false;     ///< rows may read leading blocks together
  std::int32_t min_prompt = 1;   ///< fewest query tokens of prefill's rows
  std::int32_t num_prompts = 0;  ///< rows of prefill
};

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
  std::int32_t* shared_tokens = nullptr;
  std::byte* prefixes = nullptr;
  std::int64_t prefixes_bytes = 0;
  std::int64_t needed = 0;  ///< bytes that the workspace must have
};

/// What all launches of a call share. It points to the step.
struct StepPlan {
  const AttentionStep& step;
  bool counts_items;  ///< the kernel for prompts needs counters
  kernels::DecodeLimits decode;
  kernels::ColumnsLimits columns;
  WorkspaceParts parts;
  StepKernels kernels;  ///< of layers like the shape's
};

/// Plans a step of a valid shape with `num_rows` rows.
StepPlan plan_step(const AttentionStep& step, std::int32_t num_rows,
                   std::int32_t window_tokens) noexcept;
/// Returns the kernels of a layer: plan.kernels, or prefill for all rows of a layer whose pointers
/// or types suit no other kernel.
StepKernels layer_kernels(const StepPlan& plan, const AttentionArgs& args) noexcept;

/// Return the parameters of the schedules and of the kernels.
kernels::FindPrefixesParams find_prefixes(const StepPlan& plan, const AttentionArgs& args) noexcept;
kernels::DecodeScheduleParams decode_schedule(const StepPlan& plan,
                                              const AttentionArgs& args) noexcept;
kernels::ColumnsScheduleParams columns_schedule(const StepPlan& plan,
                                                const AttentionArgs& args) noexcept;
kernels::DecodeParams decode_params(const StepPlan& plan, const AttentionArgs& args) noexcept;
kernels::ColumnsParams columns_params(const StepPlan& plan, const AttentionArgs& args) noexcept;
kernels::PrefillParams prefill_params(const StepPlan& plan, const AttentionArgs& args,
                                      const StepKernels& kernels) noexcept;

}  // namespace kvarena::cuda
