#pragma once

/// @file
/// Why a replay cannot go on: the words of verify/failure.hpp, and two failures of its own.

#include "trace/trace_request.hpp"
#include "verify/failure.hpp"

#include <string>

namespace kvarena::replay {

using trace::TraceRequest;
using verify::MaybeFailure;
using verify::unexpected;
using ReplayFailure = verify::Failure;
using ReplayEnd = verify::RunEnd;

/// Virtual time does not fit 63 bits of nanoseconds.
inline ReplayFailure time_overflow(const TraceRequest& request) {
  return {ReplayEnd::bad_options,
          "request " + std::to_string(request.index) + " ends past 2^63 ns of virtual time",
          "times that fit", "lower the costs of tokens and steps"};
}

/// Somebody asked the replay to stop.
inline ReplayFailure interrupted() {
  return {ReplayEnd::interrupted, "the replay was interrupted: the figures are of what it had done",
          "", ""};
}

/// A request that fits an empty pool cannot run although nothing else does.
inline ReplayFailure lost_blocks(const TraceRequest& request, const std::string& explanation) {
  return {ReplayEnd::check_failed,
          "request " + std::to_string(request.index) +
              " cannot run although nothing else does: blocks were lost\n" + explanation,
          "every block free when nothing runs", "this is a bug in kvarena; please report it"};
}

}  // namespace kvarena::replay
