#pragma once

/// @file
/// The order of the calls of a step: where a step is, and what a call in the wrong place is told.

#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// What the calls of a step are waiting for.
enum class StepPhase : std::uint8_t {
  between,    ///< steps
  begun,      ///< an append
  planned,    ///< write_kv, attend
  replaying,  ///< the end: a graph has the layers
  recording,  ///< write_kv, attend, end_recording; no step
};

/// The calls that have a place in that order.
enum class StepCall : std::uint8_t {
  begin_step,
  append,
  write_kv,
  attend,
  end_step,
  abort_step,
  publish,
  begin_recording,
  end_recording,
};

/// failed_precondition (step): `call` came while step `step` was in `phase`.
constexpr Status out_of_order(StepCall call, StepPhase phase, std::uint64_t step) noexcept {
  return failed_precondition(Resource::step, step, static_cast<std::uint64_t>(call),
                             static_cast<std::uint64_t>(phase));
}
/// Which call, where the step is, and what comes next. Of a status of out_of_order.
std::string describe_order(const Status& status);

/// device_error (step): the device did not take steps `first` to `last`.
constexpr Status steps_lost(std::uint64_t first, std::uint64_t last) noexcept {
  return {StatusCode::device_error, Resource::step, Option::none, 0, first, last, 0};
}
/// Which steps, why, and what to do. Of a status of steps_lost.
std::string describe_loss(const Status& status);

/// failed_precondition (layer) of attend; and what to do about it.
constexpr Status kv_not_written(std::int32_t layer) noexcept {
  return failed_precondition(Resource::layer, static_cast<std::uint64_t>(layer));
}
std::string describe_unwritten(const Status& status);

/// Why a ticket was not retired: a failed_precondition (ticket) of TicketEvents::retire.
std::string describe_ticket(const Status& status);

}  // namespace kvarena
