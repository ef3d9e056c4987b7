#include "base/log_internal.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

namespace kvarena {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::critical: return spdlog::level::critical;
    case LogLevel::off: break;
  }
  return spdlog::level::off;
}

LogLevel from_spdlog(spdlog::level::level_enum level) noexcept {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug: return LogLevel::debug;
    case spdlog::level::info: return LogLevel::info;
    case spdlog::level::warn: return LogLevel::warning;
    case spdlog::level::err: return LogLevel::error;
    default: return LogLevel::critical;
  }
}

/// Passes spdlog's lines to the engine's function. The mutex of base_sink serialises the calls.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_function(LogSink function) {
    const std::lock_guard lock(mutex_);
    function_ = std::move(function);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    if (function_) {
      function_(from_spdlog(line.level),
                std::string_view(line.payload.data(), line.payload.size()));
    }
  }
  void flush_() override {}

 private:
  LogSink function_;
};

/// Lies outside Logging, so that a program without a sink can ask for the level without any memory.
constinit std::atomic<LogLevel> minimum_level{LogLevel::off};

/// spdlog's logger and the sink that it writes to.
struct Logging {
  std::shared_ptr<FunctionSink> sink = std::make_shared<FunctionSink>();
  spdlog::logger logger{"kvarena", sink};

  Logging() { logger.set_level(spdlog::level::trace); }
};

/// Made by the first sink. Never destroyed, so that objects that outlive main can still log.
Logging& logging() {
  static Logging& instance = *new Logging;
  return instance;
}

}  // namespace

void set_log_sink(LogSink sink, LogLevel minimum) noexcept try {
  Logging& log = logging();
  minimum_level.store(sink ? minimum : LogLevel::off);
  log.sink->set_function(std::move(sink));
} catch (const std::bad_alloc&) {
  minimum_level.store(LogLevel::off);
}

bool log_enabled(LogLevel level) noexcept {
  return level >= minimum_level.load(std::memory_order_relaxed);
}

void log_text(LogLevel level, std::string_view message) noexcept {
  logging().logger.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace kvarena
