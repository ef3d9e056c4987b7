#include "device/allocation_failure.hpp"

#include "base/excerpt.hpp"
#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "device/memory_report.hpp"

#include <new>
#include <utility>

namespace kvarena {
namespace {

bool is_out_of_memory(const Status& status) noexcept {
  return status.code == StatusCode::insufficient_vram ||
         (status.code == StatusCode::exhausted && status.resource == Resource::host_memory);
}

/// Why there is none although `free_bytes` would have sufficed, and what to do.
std::string remark_of(MemoryKind kind, std::uint64_t free_bytes) {
  if (kind == MemoryKind::pinned_staging) {
    return fmt::format(
        "The available memory of {} would have sufficed: a control group or the limit on locked "
        "memory (ulimit -l) allows this process less, or another took it in between. Raise that "
        "limit, or ask for less.\n",
        bytes_text(free_bytes));
  }
  return fmt::format(
      "The free memory of {} would have sufficed: it is fragmented, or another process took it "
      "in between. Allocate the pool before anything else, in one piece, or ask for less.\n",
      bytes_text(free_bytes));
}

std::string missing_text(const Status& status, MemoryKind kind, std::uint64_t free_bytes) {
  const bool is_staging = kind == MemoryKind::pinned_staging;
  const std::string most =
      free_bytes == 0 ? "Free" : fmt::format("Ask for at most {}, or free", bytes_text(free_bytes));
  return fmt::format("Missing: {}. {} some of the {} first.\n",
                     bytes_text(status.required - free_bytes), most,
                     is_staging ? "machine's memory" : "above");
}

}  // namespace

Status AllocationFailure::keep(const Status& status, const AllocationRequest& request,
                               const MemoryInfo& memory,
                               const MemoryBreakdown& breakdown) noexcept {
  const std::scoped_lock lock(mutex_);
  status_ = status;
  explanation_.clear();
  purpose_ = request.purpose;
  kind_ = request.kind;
  keep_description(request.description);
  memory_ = memory;
  breakdown_ = breakdown;
  log_made(LogLevel::warning,
           [&] { return fmt::format("allocation refused: {}", describe_locked(status)); });
  return status;
}

void AllocationFailure::keep_description(std::string_view description) noexcept {
  try {
    description_ = printable(description);
  } catch (const std::bad_alloc&) {
    description_.clear();
  }
}

Status AllocationFailure::keep(const Status& status, std::string explanation) noexcept {
  const std::scoped_lock lock(mutex_);
  status_ = status;
  explanation_ = std::move(explanation);
  log_text(LogLevel::error, explanation_);
  return status;
}

std::string AllocationFailure::describe(const Status& status,
                                        const MemoryBreakdown& now) const noexcept try {
  const std::scoped_lock lock(mutex_);
  std::string text = describe_locked(status);
  if (is_out_of_memory(status) && status != status_) {
    text += "\nin use now:\n" + to_string(now);
  }
  return text;
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

std::string AllocationFailure::describe_locked(const Status& status) const {
  std::string text = kvarena::describe(status);
  if (status.is_ok() || status != status_) return text;
  if (!explanation_.empty()) return text + '\n' + explanation_ + '\n';
  text += fmt::format("\nrequested: {} for {} \"{}\"\n", bytes_text(status.required),
                      name_of(purpose_), description_);
  if (kind_ == MemoryKind::pinned_staging) {
    text += fmt::format("machine: {} available\n", bytes_text(memory_.free_bytes));
  } else {
    text += fmt::format("device: {} free of {}\n", bytes_text(memory_.free_bytes),
                        bytes_text(memory_.total_bytes));
  }
  text += "in use at the failure:\n" + to_string(breakdown_);
  if (!is_out_of_memory(status)) return text;
  return text + (memory_.free_bytes >= status.required
                     ? remark_of(kind_, memory_.free_bytes)
                     : missing_text(status, kind_, memory_.free_bytes));
}

}  // namespace kvarena
