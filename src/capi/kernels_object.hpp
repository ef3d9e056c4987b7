#pragma once

/// @file
/// What stands behind the handles of kernels: the workspaces of one shape, the workers of the host,
/// and the schedules of the present step.

#include "capi/objects.hpp"

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvarena::capi {

/// The schedule of a step: without a window, or with it.
struct ScheduledStep {
  std::byte* workspace = nullptr;
  AttentionArgs args;                 ///< of all layers
  std::optional<AttentionPlan> plan;  ///< host
  cuda::AttentionStep step;           ///< CUDA
  bool is_made = false;
  std::vector<std::int32_t> num_blocks;  ///< host: of each row
};

/// The kernels of one shape and their workspaces.
class KernelsObject {
 public:
  static Result<std::shared_ptr<KernelsObject>> create(std::shared_ptr<DeviceObject> device,
                                                       const kvarena_kernels_options& given);
  ~KernelsObject();

  std::int64_t workspace_bytes() const noexcept { return bytes_ * (window_tokens_ > 0 ? 2 : 1); }
  Status schedule(const kvarena_tables& tables, bool windowed, void* stream);
  Status write(const AppendArgs& args, bool overlap, void* stream);
  Status attend(AttentionArgs args, bool windowed, bool overlap, void* stream);
  Status check_tables(bool windowed, void* stream);

  bool is_cuda() const noexcept { return device_->cuda() != nullptr; }
  /// Returns the schedule, or failed_precondition (step) or invalid_argument (window).
  Result<ScheduledStep*> scheduled(bool windowed, bool must_be_made);

 private:
  KernelsObject() = default;
  Status take_rows(const kvarena_tables& tables, bool windowed, AttentionArgs& args);
  Status schedule_on_host(ScheduledStep& step);
  Status schedule_on_cuda(ScheduledStep& step, const kvarena_tables& tables, void* stream);
  Status create_on_host(std::int32_t num_threads);
  Status create_on_cuda();
  Status allocate(std::uint64_t alignment_bytes);
  Status prepare_workspaces();

  std::shared_ptr<DeviceObject> device_;
  cuda::AttentionShape shape_;
  cuda::RowClasses classes_;
  AttentionLimits limits_;
  std::optional<CpuWorkers> workers_;
  std::int32_t window_tokens_ = 0;
  std::int64_t bytes_ = 0;
  std::array<ScheduledStep, 2> steps_;
  void* scratch_ = nullptr;
};

template <>
inline constexpr Kind kKindOf<KernelsObject> = Kind::kernels;

}  // namespace kvarena::capi
