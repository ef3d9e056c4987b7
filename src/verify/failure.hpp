#pragma once

/// @file
/// `Failure`: why a run cannot go on, a Finding for people and how the run ends. Functions of
/// verify, replay and scenarios return an optional Failure; nullopt means success.

#include "base/finding.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena::verify {

/// The end of a run.
enum class RunEnd : std::uint8_t {
  completed,     ///< all work was done, and every check held
  check_failed,  ///< verification or the accounts failed
  bad_options,   ///< the options contradict each other or the input
  does_not_fit,  ///< the pool or the device's memory is too small
  bad_input,     ///< a trace cannot be read or is not valid
  interrupted,   ///< a stop was requested; the finished part is complete
  environment,   ///< the operating system refused, or kvarena has a bug
};

/// Returns "check_failed" and so on.
std::string_view name_of(RunEnd end) noexcept;

/// The end of a run that cannot go on.
struct Failure {
  RunEnd end = RunEnd::environment;
  Finding why;
};

/// nullopt, or why a run cannot go on.
using MaybeFailure = std::optional<Failure>;

/// Makes a Failure from a Status that only a defect of kvarena can cause. `call` returned the
/// Status.
inline Failure unexpected(const char* call, const Status& status) {
  return {RunEnd::environment,
          {.found = std::string(call) + " failed: " + describe_cuda(status),
           .advice = "this is a bug in kvarena; please report it with the command line"}};
}

}  // namespace kvarena::verify
