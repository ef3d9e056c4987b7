#include "effects/step_world.hpp"

#include "effects/step_device.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvarena::test {
namespace {

enum Kind : std::uint32_t {
  kCreate,
  kFork,
  kDestroy,
  kTruncate,
  kReserve,
  kStep,
  kLostStep,
  kRepeatedStep,
  kForgottenEnd,
  kLaunchedTwice,
  kWithdrawnStep,
  kLaunchWithoutStep,
  kRunLaunches,
  kUndo,
  kResync,
};
constexpr std::array<KindWeight, 15> kWeights = {{{kCreate, 6},
                                                  {kFork, 5},
                                                  {kDestroy, 5},
                                                  {kTruncate, 5},
                                                  {kReserve, 2},
                                                  {kStep, 30},
                                                  {kLostStep, 2},
                                                  {kRepeatedStep, 2},
                                                  {kForgottenEnd, 1},
                                                  {kLaunchedTwice, 1},
                                                  {kWithdrawnStep, 4},
                                                  {kLaunchWithoutStep, 1},
                                                  {kRunLaunches, 10},
                                                  {kUndo, 2},
                                                  {kResync, 3}}};

DeviceTablesOptions options_of(const Program& program) {
  const auto& setup = program.setup;
  const auto max_sequences = static_cast<std::int32_t>(4 + setup[2] % 6);
  return {.limits = {.steps_in_flight = static_cast<std::int32_t>(1 + setup[3] % 4),
                     .max_rows = static_cast<std::int32_t>(2 + setup[4] % 4),
                     .max_tokens = 16,
                     .max_blocks = 4 + setup[5] % 29},
          .max_sequences = max_sequences,
          .max_sequence_blocks = static_cast<std::int32_t>(4 + setup[6] % 13),
          .block_size_tokens = static_cast<std::int32_t>(1 + setup[1] % 8)};
}

/// The host's side of steps.
class StepHost {
 public:
  StepHost(const Program& program, Story& story)
      : story_(story),
        options_(options_of(program)),
        manager_(BlockManager::create({.num_blocks = 8 + program.setup[0] % 57,
                                       .max_holders = options_.max_sequences})
                     .value()),
        tables_(BlockTables::create(manager_, {.block_size_tokens = options_.block_size_tokens,
                                               .max_sequences = options_.max_sequences,
                                               .max_append_tokens = 256,
                                               .report_rows = true,
                                               .can_undo = true})
                    .value()),
        device_(options_, story) {}

  void play(const Operation& operation);
  void finish() { device_.run_all(); }
  const std::optional<Failure>& failure() const noexcept { return device_.failure(); }

 private:
  using Numbers = std::array<std::uint32_t, 4>;

  std::uint32_t length_of(SequenceId id) const {
    return static_cast<std::uint32_t>(tables_.info(id).value().length_tokens);
  }
  void create_sequence();
  void fork(const Numbers& n);
  void truncate(const Numbers& n);
  void undo(bool copies_are_made);
  void resync(const Numbers& n);
  void play_step(const Operation& operation);
  void withdraw(const Numbers& n, const StagedContent& step);
  void launch(std::uint32_t kind, const StagedContent& step, Naming naming);
  std::optional<StagedContent> append_and_stage(const Numbers& n);
  StagedContent content_of(const AppendResult& appended, std::span<const SequenceId> rows);

  Story& story_;
  DeviceTablesOptions options_;
  BlockManager manager_;
  BlockTables tables_;
  StepDevice device_;
  std::vector<SequenceId> sequences_;
  std::uint64_t num_steps_ = 0;
};

void StepHost::create_sequence() {
  const auto id = tables_.create_sequence();
  if (!id) return;
  sequences_.push_back(*id);
  story_.tell("a sequence is created");
}

void StepHost::fork(const Numbers& n) {
  const SequenceId parent = sequences_[n[0] % sequences_.size()];
  const std::uint32_t length = n[1] % (length_of(parent) + 1);
  const auto id = tables_.fork(parent, length);
  if (!id) return;
  sequences_.push_back(*id);
  story_.tell("sequence ", n[0] % (sequences_.size() - 1), " is forked at ", length);
}

void StepHost::truncate(const Numbers& n) {
  const SequenceId id = sequences_[n[0] % sequences_.size()];
  const std::uint32_t length = n[1] % (length_of(id) + 1);
  static_cast<void>(tables_.truncate(id, length));
  story_.tell("sequence ", n[0] % sequences_.size(), " is truncated to ", length);
}

void StepHost::play(const Operation& operation) {
  const Numbers& n = operation.numbers;
  switch (operation.kind % kWeights.size()) {
    case kCreate: return create_sequence();
    case kLaunchWithoutStep: return device_.launch_without_step();
    case kRunLaunches:
      for (std::uint32_t i = 0; i <= n[0] % 4 && device_.run_one(); ++i) {
      }
      return;
    case kUndo: return undo(n[0] % 2 == 1);
    case kResync: return resync(n);
    default: break;
  }
  if (sequences_.empty()) return;
  switch (operation.kind % kWeights.size()) {
    case kFork: return fork(n);
    case kTruncate: return truncate(n);
    case kReserve:
      static_cast<void>(tables_.reserve_capacity(sequences_[n[0] % sequences_.size()], n[1] % 64));
      return;
    case kDestroy: {
      const std::size_t chosen = n[0] % sequences_.size();
      story_.tell("sequence ", chosen, " is destroyed");
      static_cast<void>(tables_.destroy(sequences_[chosen]));
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(chosen));
      return;
    }
    default: return play_step(operation);
  }
}

/// What a step's kernels must read, from the tables as they are now.
StagedContent StepHost::content_of(const AppendResult& appended, std::span<const SequenceId> rows) {
  StagedContent step{.number = num_steps_ + 1, .content = {}};
  StepContent& content = step.content;
  content.slots.assign(appended.slots.begin(), appended.slots.end());
  for (const BlockCopy& copy : appended.copies) {
    content.copies.emplace_back(copy.source.value, copy.target.value);
  }
  std::sort(content.copies.begin(), content.copies.end());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const AppendedRow& row = appended.rows[i];
    StepRow& expected =
        content.rows.emplace_back(StepRow{row.slot, row.length_tokens, row.num_new_tokens, {}});
    for (std::int32_t token = 0; token < row.length_tokens; token += options_.block_size_tokens) {
      expected.blocks.push_back(
          tables_.lookup(rows[i], token / options_.block_size_tokens).value().value);
    }
  }
  return step;
}

/// Grows sequences and stages the step; none when one of the two was refused.
std::optional<StagedContent> StepHost::append_and_stage(const Numbers& n) {
  std::vector<AppendDemand> demands;
  std::vector<SequenceId> rows;
  const std::size_t count = std::min<std::size_t>(1 + n[1] % 4, sequences_.size());
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(sequences_[(n[0] + i) % sequences_.size()]);
    demands.push_back({rows.back(), static_cast<std::int32_t>(n[2] % 3 == 2 ? n[2] % 8 : 1)});
  }
  const auto appended = tables_.append(demands);
  if (!appended) return std::nullopt;
  StagedContent step = content_of(*appended, rows);
  if (!device_.ring().stage(tables_, *appended)) return std::nullopt;  // too large for the device
  return step;
}

void StepHost::undo(bool copies_are_made) {
  if (tables_.undo_append(copies_are_made)) story_.tell("the last append is taken back");
}

void StepHost::resync(const Numbers& n) {
  device_.wait_for_slot();
  if (n[3] % 2 == 1 && !sequences_.empty()) {  // with a step staged that nobody launches
    if (auto step = append_and_stage(n)) device_.lose(*step);
    ++num_steps_;
  }
  device_.resync(tables_);
  story_.tell("the host goes on from what the device took last");
}

/// The staged step is not launched, or too late. Its append may be taken back.
void StepHost::withdraw(const Numbers& n, const StagedContent& step) {
  const bool is_late = n[3] / 8 % 2 == 1;
  story_.tell("step ", step.number, " of ", step.content.rows.size(), " row(s) from sequence ",
              n[0] % sequences_.size(), " is staged and withdrawn",
              is_late ? ", and launched late" : "");
  if (is_late) device_.name_step();
  if (n[3] % 4 == 1) undo(n[3] / 4 % 2 == 1);
  device_.ring().withdraw(tables_);
  if (n[3] % 4 == 2) undo(n[3] / 4 % 2 == 1);
  if (!is_late) return;
  device_.launch_in_vain(Naming::by_stream);
  device_.launch_in_vain(Naming::by_launch);
  device_.wait_for_late_launches();
}

void StepHost::play_step(const Operation& operation) {
  const Numbers& n = operation.numbers;
  device_.wait_for_slot();
  std::optional<StagedContent> step = append_and_stage(n);
  if (!step) return;
  if (operation.kind == kRepeatedStep) {  // the last one staged counts
    if (auto again = append_and_stage(n)) step = std::move(again);
  }
  ++num_steps_;
  if (operation.kind == kWithdrawnStep) return withdraw(n, *step);
  story_.tell("step ", step->number, " of ", step->content.rows.size(), " row(s) from sequence ",
              n[0] % sequences_.size(), " is staged and ",
              operation.kind == kLostStep ? "its launch is LOST" : "launched");
  launch(operation.kind, *step, n[3] % 2 == 0 ? Naming::by_stream : Naming::by_launch);
}

void StepHost::launch(std::uint32_t kind, const StagedContent& step, Naming naming) {
  kind == kLostStep ? device_.lose(step) : device_.launch(step, naming);
  if (kind == kLaunchedTwice) device_.launch_in_vain(naming);
  if (kind == kForgottenEnd) {
    device_.run_all();
    device_.forget_end();
  } else {
    device_.ring().advance();
    device_.mark_end();
  }
}

std::optional<Failure> play_steps(const Program& program, std::string* story) {
  Story told(story);
  StepHost host(program, told);
  for (const Operation& operation : program.operations) {
    host.play(operation);
    if (host.failure()) return host.failure();
  }
  host.finish();
  return host.failure();
}

}  // namespace

const World& step_world() {
  static const World kWorld{"steps", kWeights, &play_steps};
  return kWorld;
}

}  // namespace kvarena::test
