#pragma once

/// @file
/// The Failure of verify/failure.hpp for replays, and functions that make the failures of a replay.

#include "trace/trace_request.hpp"
#include "verify/failure.hpp"

#include <string>

namespace kvarena::replay {

using trace::TraceRequest;
using verify::MaybeFailure;
using verify::unexpected;
using ReplayFailure = verify::Failure;
using ReplayEnd = verify::RunEnd;

/// Makes the failure for virtual time that does not fit into 63 bits of nanoseconds.
inline ReplayFailure time_overflow(const TraceRequest& request) {
  return {
      ReplayEnd::bad_options,
      {.found = "request " + std::to_string(request.index) + " ends past 2^63 ns of virtual time",
       .expected = "times that fit",
       .advice = "lower the costs of tokens and steps"}};
}

/// Makes the failure of a replay that was asked to stop.
inline ReplayFailure interrupted() {
  return {ReplayEnd::interrupted,
          {.found = "the replay was interrupted: the figures are of what it had done"}};
}

/// Makes the failure for a request that fits an empty pool but cannot run although no other request
/// runs.
inline ReplayFailure lost_blocks(const TraceRequest& request, const std::string& explanation) {
  return {ReplayEnd::check_failed,
          {.found = "request " + std::to_string(request.index) +
                    " cannot run although nothing else does: blocks were lost\n" + explanation,
           .expected = "every block free when nothing runs",
           .advice = "this is a bug in kvarena; please report it"}};
}

}  // namespace kvarena::replay
