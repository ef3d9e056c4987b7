#pragma once

/// @file
/// `Failure`: why a run cannot go on, for a person. Functions of this room and of those above
/// return an optional one: nothing means all is well.

#include "kvarena/device/cuda_device.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena::verify {

/// How a run ended.
enum class RunEnd : std::uint8_t {
  completed,     ///< all was done, and every check held
  check_failed,  ///< verification or the accounts failed
  bad_options,   ///< the options contradict one another or the input
  does_not_fit,  ///< the pool or the device's memory is too small
  bad_input,     ///< a trace
  environment,   ///< the operating system, or a bug
  interrupted,   ///< somebody asked it to stop
};

/// "check_failed", ...
std::string_view name_of(RunEnd end) noexcept;

/// What happened, what was expected, what to do.
struct Failure {
  RunEnd end = RunEnd::environment;
  std::string happened;
  std::string expected;
  std::string advice;
};

/// Nothing, or why not.
using MaybeFailure = std::optional<Failure>;

/// A Status that cannot occur unless kvarena has a defect, with the call that returned it.
inline Failure unexpected(const char* call, const Status& status) {
  return {RunEnd::environment, std::string(call) + " failed: " + describe_cuda(status), "",
          "this is a bug in kvarena; please report it with the command line"};
}

}  // namespace kvarena::verify
