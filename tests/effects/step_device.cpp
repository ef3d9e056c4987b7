#include "effects/step_device.hpp"

#include "kernels/reference/scatter_step.hpp"

#include <algorithm>
#include <cstring>

namespace kvarena::test {
namespace {

constexpr std::size_t kAlignment = 256;

std::vector<std::byte> memory_of(std::int64_t bytes) {
  return std::vector<std::byte>(static_cast<std::size_t>(bytes) + kAlignment);
}

std::byte* aligned(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
}

std::string to_text(const StepContent& content) {
  std::ostringstream text;
  for (const StepRow& row : content.rows) {
    text << " row slot " << row.slot << " length " << row.length << " new " << row.num_new
         << " blocks";
    for (const std::int32_t block : row.blocks) text << " " << block;
    text << ";";
  }
  text << " token slots";
  for (const std::int64_t slot : content.slots) text << " " << slot;
  return text.str();
}

}  // namespace

StepDevice::StepDevice(const DeviceTablesOptions& options, Story& story)
    : story_(story),
      plan_(plan_memory(options)),
      device_(memory_of(plan_.device_bytes)),
      staging_(memory_of(plan_.staging_bytes)),
      params_(place_arrays(plan_, aligned(device_), aligned(staging_))),
      ring_(aligned(staging_) + plan_.ring, plan_.shape) {
  std::memset(aligned(device_), 0xff, static_cast<std::size_t>(plan_.zeros));
}

void StepDevice::wait_for_slot() {
  if (waits_for_all_) run_all();
  waits_for_all_ = false;
  const auto in_flight = static_cast<std::size_t>(plan_.shape.steps_in_flight);
  if (ends_.size() < in_flight) return;
  while (num_run_ < ends_[ends_.size() - in_flight] && run_one()) {
  }
  while (ends_.size() > in_flight) ends_.pop_front();
}

void StepDevice::name_step() { queue_.push_back({.task = Task::name, .word = ring_.expected()}); }

void StepDevice::launch(const StagedContent& step, Naming naming) {
  if (naming == Naming::by_stream) name_step();
  queue_.push_back({.task = naming == Naming::by_stream ? Task::replay : Task::launch,
                    .word = ring_.expected(),
                    .serial = ring_.staged_serial(),
                    .step = step});
}

void StepDevice::launch_in_vain(Naming naming) {
  queue_.push_back({.task = naming == Naming::by_stream ? Task::replay : Task::launch,
                    .word = ring_.expected()});
}

void StepDevice::lose(const StagedContent& step) {
  lost_.push_back(step);
  may_skip_ = true;
}

bool StepDevice::run_one() {
  if (num_run_ == queue_.size()) return false;
  carry_out(queue_[num_run_++]);
  return true;
}

void StepDevice::carry_out(const Entry& entry) {
  if (entry.task == Task::name) {
    std::memcpy(aligned(device_) + plan_.expected_word, &entry.word, sizeof(entry.word));
    return;
  }
  kernels::ScatterStepParams params = params_;
  if (entry.task == Task::launch) {
    params.expected_word = nullptr;
    params.expected = entry.word;
  }
  const kernels::ScatterReport before = *params_.report;
  kernels::reference::scatter_step(params);
  story_.tell(entry.step.number == 0
                  ? std::string("a launch runs that no step was staged for")
                  : "the launch of step " + std::to_string(entry.step.number) + " runs");
  judge(entry.step.number, entry.step.content);
  judge_report(entry, before);
}

void StepDevice::run_all() {
  while (run_one()) {
  }
}

void StepDevice::launch_without_step() {
  run_all();
  launch_in_vain(Naming::by_stream);  // behind the naming of a step that has been taken
  launch_in_vain(Naming::by_launch);
  run_all();
}

void StepDevice::resync(BlockTables& tables) {
  run_all();
  ring_.resync(tables, params_.report->taken);
  may_skip_ = false;
}

/// A launch with rows says that its step was taken; one that skips them, that it missed.
void StepDevice::judge_report(const Entry& entry, const kernels::ScatterReport& before) {
  const kernels::ScatterReport& report = *params_.report;
  const bool has_rows = params_.row_slots[0] >= 0;
  const bool is_right = has_rows ? report.taken == entry.serial && report.misses == before.misses
                                 : report.taken == before.taken && report.misses > before.misses;
  if (failure_ || is_right) return;
  failure_ = Failure{"report", "the launch of step " + std::to_string(entry.step.number) +
                                   (has_rows ? " has rows" : " skips every row") + ", taken is " +
                                   std::to_string(report.taken) + " after " +
                                   std::to_string(before.taken) + ", its serial number " +
                                   std::to_string(entry.serial)};
}

StepRow StepDevice::row_at(std::int32_t row) const {
  StepRow content{
      .slot = params_.row_slots[row],
      .length = params_.seq_lens[row],
      .num_new = static_cast<std::int32_t>(params_.q_offsets[row + 1] - params_.q_offsets[row])};
  const BlockId* table = params_.block_tables + params_.row_offsets[row];
  for (std::int32_t i = 0; i < params_.num_blocks[row]; ++i) {
    content.blocks.push_back(table[i].value);
  }
  return content;
}

std::optional<StepContent> StepDevice::found() const {
  const kernels::StepShape& shape = plan_.shape;
  StepContent content;
  for (std::int32_t r = 0; r < shape.max_rows; ++r) {
    const bool is_skipped = params_.row_slots[r] < 0;
    const bool is_inside = params_.num_blocks[r] >= 0 &&
                           params_.num_blocks[r] <= shape.max_blocks_a_row &&
                           params_.row_slots[r] < shape.max_sequences;
    if (!is_inside || (!is_skipped && std::ssize(content.rows) != r)) return std::nullopt;
    if (!is_skipped) content.rows.push_back(row_at(r));
    if (is_skipped && (params_.seq_lens[r] != 0 || params_.num_blocks[r] != 0)) return std::nullopt;
  }
  const std::int64_t num_tokens = params_.q_offsets[shape.max_rows];
  for (std::int64_t i = 0; i < shape.max_tokens; ++i) {
    if ((params_.slots[i] >= 0) != (i < num_tokens)) return std::nullopt;
    if (i < num_tokens) content.slots.push_back(params_.slots[i]);
  }
  for (std::int32_t i = 0; i < shape.max_rows; ++i) {
    const BlockCopy& copy = params_.copies[i];
    if (copy.source != kNoBlock) {
      content.copies.emplace_back(copy.source.value, copy.target.value);
    }
  }
  std::sort(content.copies.begin(), content.copies.end());
  return content;
}

/// A launch that ran has exactly what its step was staged with; when another launch was lost before
/// it, it may skip every row instead.
void StepDevice::judge(std::uint64_t number, const StepContent& expected) {
  const std::optional<StepContent> content = found();
  if (failure_ || content == expected || (may_skip_ && content == StepContent{})) return;
  std::string text = number == 0 ? std::string("a launch without a step")
                                 : "the launch of step " + std::to_string(number);
  text += " was promised" + to_text(expected) + " and found";
  text += content ? to_text(*content) : std::string(" arrays that contradict one another");
  const char* kind = content == StepContent{} ? "skipped step" : "step";
  std::vector<StagedContent> others = lost_;
  for (const Entry& entry : queue_) others.push_back(entry.step);
  for (const StagedContent& other : others) {
    if (other.number == number || other.number == 0 || content != other.content) continue;
    kind = "another step's rows";
    text += ", as step " + std::to_string(other.number) + " was staged";
  }
  failure_ = Failure{kind, text};
}

}  // namespace kvarena::test
