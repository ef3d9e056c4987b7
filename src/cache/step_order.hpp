#pragma once

/// @file
/// The order of the calls of a step: the current phase of a step, and the message for a call out of
/// order.

#include "kvarena/base/status.hpp"

#include <cstdint>
#include <string>

namespace kvarena {

/// The phase of a step: the calls for which it waits.
enum class StepPhase : std::uint8_t {
  between,    ///< waits for begin_step
  begun,      ///< waits for append
  planned,    ///< waits for write_kv or attend
  replaying,  ///< waits for the end; a graph runs the layers
  recording,  ///< waits for write_kv, attend or end_recording; no step is active
};

/// The calls that have a place in the order.
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
  device_batch,
  import_sequence,
  register_tokens,
  write_index,
};

/// Returns failed_precondition (step): `call` came while step `step` was in `phase`.
constexpr Status out_of_order(StepCall call, StepPhase phase, std::uint64_t step) noexcept {
  return failed_precondition(Resource::step, step, static_cast<std::uint64_t>(call),
                             static_cast<std::uint64_t>(phase));
}
/// Describes a status of out_of_order: the call, the phase, and the next valid call.
std::string describe_order(const Status& status);

/// Returns device_error (step): the device did not take the steps `first` to `last`.
constexpr Status steps_lost(std::uint64_t first, std::uint64_t last) noexcept {
  return {StatusCode::device_error, Resource::step, Option::none, 0, first, last, 0};
}
/// Describes a status of steps_lost: the steps, the cause, and what to do.
std::string describe_loss(const Status& status);

/// What a call wants of a layer. It is Status::native of an invalid_argument (layer).
enum class WantedLayer : std::int32_t {
  with_kv = 1,  ///< K and V, its own or those of another layer
  of_tokens,    ///< K and V that are not an encoder's
  of_encoder,   ///< K and V of an encoder
  unwindowed,   ///< no group: the window of a layer is its group's
  with_index,   ///< a sparse-attention index of its own
};

/// Returns invalid_argument (layer) for a layer that exists and is of another kind.
constexpr Status wrong_layer(std::int32_t layer, std::int32_t last, WantedLayer wanted) noexcept {
  Status status = invalid_argument(Resource::layer, layer, 0, last);
  status.native = static_cast<std::int32_t>(wanted);
  return status;
}
/// Describes a status of wrong_layer: what the layer is, and the call for it.
std::string describe_layer(const Status& status);

/// Returns failed_precondition (layer), for attend.
constexpr Status kv_not_written(std::int32_t layer) noexcept {
  return failed_precondition(Resource::layer, static_cast<std::uint64_t>(layer));
}
/// Returns failed_precondition (layer), for attend over a layer of a cross group.
constexpr Status encoder_not_written(std::int32_t layer, std::uint64_t sequence) noexcept {
  return failed_precondition(Resource::layer, static_cast<std::uint64_t>(layer), sequence);
}
/// Describes a status of kv_not_written or encoder_not_written, and what to do.
std::string describe_unwritten(const Status& status);

/// Describes why an account of a salt cannot be closed: a failed_precondition (sequence) with the
/// option salt.
std::string describe_account(const Status& status);

/// Describes why an import forbids a call, or why there is none to end: a failed_precondition
/// (sequence) of BlockTables.
std::string describe_import(const Status& status);

/// Describes why a ticket was not retired: a failed_precondition (ticket) of TicketEvents::retire.
std::string describe_ticket(const Status& status);

}  // namespace kvarena
