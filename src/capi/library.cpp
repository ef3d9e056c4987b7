// Calls that need no object: versions, names, logs, violations, time.

#include "capi/convert.hpp"
#include "capi/structs.hpp"

#include "kvarena/base/clock.hpp"
#include "kvarena/base/log.hpp"
#include "kvarena/base/option.hpp"
#include "kvarena/base/version.hpp"
#include "kvarena/base/violation.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <mutex>
#include <string>
#include <string_view>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

struct Violations {
  std::mutex mutex;
  kvarena_violation_function function = nullptr;
  void* user = nullptr;
};

/// Never destroyed, so that objects that outlive main can still report.
Violations& violations() {
  static Violations& instance = *new Violations;
  return instance;
}

void on_violation(const Status& status, const char* call, const char* object) {
  Violations& installed = violations();
  std::unique_lock lock(installed.mutex);
  const kvarena_violation_function function = installed.function;
  void* const user = installed.user;
  lock.unlock();
  const kvarena_status given = to_c(status);
  if (function != nullptr) function(user, &given, call, object);
}

/// The names are C strings in the library's tables; a number without one is "unknown".
const char* c_string(std::string_view name, bool is_known) noexcept {
  return is_known ? name.data() : "unknown";
}

}  // namespace

const char* kvarena_version(void) { return KVARENA_VERSION_STRING; }

uint32_t kvarena_abi(void) { return KVARENA_ABI; }

bool kvarena_has_cuda(void) { return is_built_with_cuda(); }

int64_t kvarena_now_ns(void) { return steady_clock().now_ns(); }

const char* kvarena_name_of_code(uint8_t code) {
  return c_string(name_of(static_cast<StatusCode>(code)), code <= KVARENA_LIMIT_EXCEEDED);
}

const char* kvarena_name_of_resource(uint8_t resource) {
  return c_string(name_of(static_cast<Resource>(resource)), resource <= KVARENA_RESOURCE_PAGE);
}

const char* kvarena_name_of_option(uint16_t option) {
  const bool is_known = option <= static_cast<std::uint16_t>(kLastOption);
  return c_string(is_known ? name_of(static_cast<Option>(option)) : "", is_known);
}

size_t kvarena_describe(const kvarena_status* status, char* out, size_t size) {
  return write_text(status == nullptr ? "no status was given" : describe(from_c(*status)), out,
                    size);
}

kvarena_status kvarena_set_log(kvarena_log_function function, void* user, int32_t minimum_level) {
  return guarded([&]() -> Status {
    const Result<LogLevel> level = enumerator_of(minimum_level, LogLevel::off, Resource::none);
    if (!level) return level.status();
    if (function == nullptr) {
      set_log_sink({});
      return {};
    }
    LogSink sink = [function, user](LogLevel line_level, std::string_view message) {
      const std::string line(message);
      function(user, static_cast<std::int32_t>(line_level), line.c_str(), line.size());
    };
    set_log_sink(std::move(sink), *level);
    return {};
  });
}

void kvarena_set_violation(kvarena_violation_function function, void* user) {
  Violations& installed = violations();
  const std::lock_guard lock(installed.mutex);
  installed.function = function;
  installed.user = user;
  if (function == nullptr) {
    set_violation_handler(nullptr);
  } else {
    set_violation_handler(&on_violation);
  }
}
