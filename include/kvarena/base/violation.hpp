#pragma once

/// @file
/// Programmer errors: double release, stale handle, count underflow, failed integrity check. They
/// are found in release builds too. The library calls the installed handler. When the handler
/// returns, the call is refused with the same Status and nothing has changed. Thread-safe.

#include "kvarena/base/export.hpp"
#include "kvarena/base/status.hpp"

namespace kvarena {

/// Receives the violation's status, the name of the refused call (a static string), and the name of
/// the object that reported it, such as KvCacheOptions::name; "" when it has none. The object's
/// name is valid during the call. The handler may abort. It must not throw, and must not call back
/// into the object that reported.
using ViolationHandler = void (*)(const Status& status, const char* call, const char* object);

/// Installs `handler` and returns the handler before it. nullptr restores the default, which logs
/// at level `critical` and returns.
KVARENA_EXPORT ViolationHandler set_violation_handler(ViolationHandler handler) noexcept;

/// Reports `status` to the installed handler and returns `status`, for `return
/// report_violation(...)`.
KVARENA_EXPORT Status report_violation(const Status& status, const char* call,
                                       const char* object = "") noexcept;

}  // namespace kvarena
