#pragma once

/// @file
/// `ReplayFailure`: why a replay cannot go on, for a person. Replay's own functions return an
/// optional one: nothing means all is well.

#include "replay/replay_report.hpp"
#include "replay/trace_request.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <optional>
#include <string>

namespace kvarena::replay {

/// What happened, what was expected, what to do.
struct ReplayFailure {
  ReplayEnd end = ReplayEnd::environment;
  std::string happened;
  std::string expected;
  std::string advice;
};

/// Nothing, or why not.
using MaybeFailure = std::optional<ReplayFailure>;

/// A Status that cannot occur unless kvarena has a defect, with the call that returned it.
inline ReplayFailure unexpected(const char* call, const Status& status) {
  return {ReplayEnd::environment, std::string(call) + " failed: " + describe_cuda(status), "",
          "this is a bug in kvarena; please report it with the command line"};
}

/// Virtual time does not fit 63 bits of nanoseconds.
inline ReplayFailure time_overflow(const TraceRequest& request) {
  return {ReplayEnd::bad_options,
          "request " + std::to_string(request.index) + " ends past 2^63 ns of virtual time",
          "times that fit", "lower --prefill-us, --decode-us or --step-us"};
}

/// A request that fits an empty pool cannot run although nothing else does.
inline ReplayFailure lost_blocks(const TraceRequest& request, const std::string& explanation) {
  return {ReplayEnd::check_failed,
          "request " + std::to_string(request.index) +
              " cannot run although nothing else does: blocks were lost\n" + explanation,
          "every block free when nothing runs", "this is a bug in kvarena; please report it"};
}

}  // namespace kvarena::replay
