#include "device/allocation_failure.hpp"

#include "base/log_internal.hpp"
#include "device/memory_report.hpp"

#include <utility>

namespace kvarena {

Status AllocationFailure::keep(const Status& status, const AllocationRequest& request,
                               const MemoryInfo& memory, const MemoryBreakdown& breakdown) {
  const std::scoped_lock lock(mutex_);
  status_ = status;
  explanation_.clear();
  purpose_ = request.purpose;
  description_ = request.description;
  memory_ = memory;
  breakdown_ = breakdown;
  if (log_enabled(LogLevel::warning)) log_text(LogLevel::warning, describe_locked(status));
  return status;
}

Status AllocationFailure::keep(const Status& status, std::string explanation) {
  const std::scoped_lock lock(mutex_);
  status_ = status;
  explanation_ = std::move(explanation);
  log_text(LogLevel::error, explanation_);
  return status;
}

std::string AllocationFailure::describe(const Status& status, const MemoryBreakdown& now) const {
  const std::scoped_lock lock(mutex_);
  std::string text = describe_locked(status);
  if (status.code == StatusCode::insufficient_vram && status != status_) {
    text += "\nin use now:\n" + to_string(now);
  }
  return text;
}

std::string AllocationFailure::describe_locked(const Status& status) const {
  std::string text = kvarena::describe(status);
  if (status.is_ok() || status != status_) return text;
  if (!explanation_.empty()) return text + '\n' + explanation_ + '\n';
  text += fmt::format("\nrequested: {} for {} \"{}\"\ndevice: {} free of {}\n",
                      bytes_text(status.required), name_of(purpose_), description_,
                      bytes_text(memory_.free_bytes), bytes_text(memory_.total_bytes));
  text += "in use at the failure:\n" + to_string(breakdown_);
  if (memory_.free_bytes >= status.required) {
    text += fmt::format(
        "The free memory of {} would have sufficed: it is fragmented, or another process took it "
        "in between. Allocate the pool before anything else, in one piece, or ask for less.\n",
        bytes_text(memory_.free_bytes));
  } else {
    text += fmt::format("Missing: {}. Ask for at most {}, or free some of the above first.\n",
                        bytes_text(status.required - memory_.free_bytes),
                        bytes_text(memory_.free_bytes));
  }
  return text;
}

}  // namespace kvarena
