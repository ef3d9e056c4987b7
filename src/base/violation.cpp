#include "kvarena/base/violation.hpp"

#include "base/log_internal.hpp"

#include <atomic>

namespace kvarena {
namespace {

/// The default handler.
void log_violation(const Status& status, const char* call, const char* object) {
  log_line(LogLevel::critical, "violation in {}{}: {}; the call was refused", call,
           OfObject{object}, describe(status));
}

std::atomic<ViolationHandler> handler{log_violation};

}  // namespace

ViolationHandler set_violation_handler(ViolationHandler replacement) noexcept {
  return handler.exchange(replacement == nullptr ? log_violation : replacement);
}

Status report_violation(const Status& status, const char* call, const char* object) noexcept {
  handler.load()(status, call, object);
  return status;
}

}  // namespace kvarena
