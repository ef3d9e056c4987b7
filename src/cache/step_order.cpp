#include "cache/step_order.hpp"

#include "kvarena/blocktable/sequences.hpp"
#include "step/ticket_events.hpp"

#include <spdlog/fmt/fmt.h>

#include <string_view>

namespace kvarena {
namespace {

/// The call's name, for messages.
std::string_view name_of(StepCall call) noexcept {
  switch (call) {
    case StepCall::begin_step: return "begin_step";
    case StepCall::append: return "append";
    case StepCall::write_kv: return "write_kv";
    case StepCall::attend: return "attend";
    case StepCall::end_step: return "end_step";
    case StepCall::abort_step: return "abort_step";
    case StepCall::publish: return "publish";
    case StepCall::begin_recording: return "begin_recording";
    case StepCall::end_recording: return "end_recording";
    case StepCall::device_batch: return "device_batch";
    case StepCall::import_sequence: return "import_sequence";
    case StepCall::register_tokens: return "register_tokens";
    case StepCall::write_index: return "write_index";
  }
  return "the call";
}

/// The place of a step and the calls that may come next, for messages.
std::string place_of(StepPhase phase, std::uint64_t step) {
  switch (phase) {
    case StepPhase::between: return "outside a step; begin_step comes first";
    case StepPhase::begun:
      return fmt::format("in step {} before its append; append, end_step or abort_step comes next",
                         step);
    case StepPhase::planned:
      return fmt::format(
          "in step {} after its append; write_kv, attend, end_step or abort_step comes next", step);
    case StepPhase::replaying:
      return fmt::format("in step {}, which a graph runs; end_step or abort_step comes next", step);
    case StepPhase::recording:
      return "inside a recording; write_kv, attend or end_recording comes next";
  }
  return "out of order";
}

}  // namespace

std::string describe_order(const Status& status) {
  if (static_cast<StepCall>(status.required) == StepCall::end_recording) {
    return "end_recording was called outside a recording; begin_recording comes first";
  }
  return fmt::format("{} was called {}", name_of(static_cast<StepCall>(status.required)),
                     place_of(static_cast<StepPhase>(status.available), status.subject));
}

std::string describe_loss(const Status& status) {
  const std::string steps = status.subject == status.required
                                ? fmt::format("step {}", status.subject)
                                : fmt::format("steps {} to {}", status.subject, status.required);
  return fmt::format(
      "{} did not run on the device: the graph of step {} was not launched, or a launch failed. "
      "The sequences of these steps have tokens that nobody wrote; destroy them, or truncate them "
      "to their lengths of before, then go on",
      steps, status.subject);
}

std::string describe_layer(const Status& status) {
  switch (static_cast<WantedLayer>(status.native)) {
    case WantedLayer::with_kv:
      return fmt::format(
          "invalid layer: layer {} has no K and V: a layer of an attention group "
          "was expected",
          status.subject);
    case WantedLayer::of_tokens:
      return fmt::format(
          "invalid layer: layer {} is of a cross group, whose K and V are an "
          "encoder's: write them with write_cross",
          status.subject);
    case WantedLayer::of_encoder:
      return fmt::format(
          "invalid layer: layer {} is of no cross group: write its K and V with "
          "write_kv",
          status.subject);
    case WantedLayer::unwindowed:
      return fmt::format(
          "invalid layer: layer {} has the window of its group: leave `windowed` "
          "unset in a cache with groups",
          status.subject);
    case WantedLayer::with_index:
      return fmt::format(
          "invalid layer: layer {} has no sparse-attention index of its own: a layer of a group "
          "with index_dim was expected",
          status.subject);
  }
  return kvarena::describe(status);
}

std::string describe_unwritten(const Status& status) {
  if (status.required != 0) {
    return fmt::format(
        "K and V of the encoder of sequence {} have not been written in layer {}: call write_cross "
        "first, or set AttendArgs::kv_is_written when kernels of your own wrote them",
        status.required, status.subject);
  }
  return fmt::format(
      "K and V of layer {} have not been written in this step: call write_kv first, or set "
      "AttendArgs::kv_is_written when kernels of your own wrote them",
      status.subject);
}

std::string describe_account(const Status& status) {
  return fmt::format(
      "salt {} still has sequences or registered blocks: end its sequences and call forget_salt "
      "first",
      status.subject);
}

std::string describe_import(const Status& status) {
  switch (static_cast<ImportState>(status.required)) {
    case ImportState::filling:
      return fmt::format(
          "sequence {} is an import whose tokens have not been published: call publish_import when "
          "they are written, or destroy it",
          status.subject);
    case ImportState::failed:
      return fmt::format("the import of sequence {} has failed: destroy it", status.subject);
    case ImportState::none: break;
  }
  return fmt::format("sequence {} is no import that waits to be published", status.subject);
}

std::string describe_ticket(const Status& status) {
  if (status.required == kTicketOfStep) {
    return fmt::format(
        "ticket {} is a step's: begin_step or publish retires it; open_ticket gives one that "
        "you retire",
        status.subject);
  }
  return fmt::format("ticket {} cannot be retired yet: work is under way on its stream",
                     status.subject);
}

}  // namespace kvarena
