#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/neighbour.hpp"
#include "scenarios/suite.hpp"

#include "kvarena/device/memory_drift.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kPieces = 4;       // in which the neighbour takes its share
constexpr std::int64_t kMostPieces = 12;  // that it takes where others hide them

constexpr std::int64_t kLeastHostShare = std::int64_t{2} << 30;  // where the machine has it

/// What the device's memory looks like from here.
struct Moment {
  std::int64_t free_bytes = 0;  // by the driver
  MemoryDrift drift;
};

std::int64_t prompt_tokens(const ScenarioContext& context) {
  return 2 * std::int64_t{context.model().shape.block_size_tokens};
}

/// Three rounds: alone, beside the neighbour, and after it.
std::int64_t final_tokens(const ScenarioContext& context) {
  return prompt_tokens(context) + 3 * context.sizes().decode_steps;
}

/// All its memory is committed.
EngineOptions our_engine(const ScenarioContext& context) {
  const std::int64_t block = context.model().shape.block_size_tokens;
  return {.pool = {.num_blocks = (final_tokens(context) + block - 1) / block},
          .max_sequences = 4,
          .max_step_tokens = prompt_tokens(context),
          .touch_pool = true,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

class Neighbours {
 public:
  Neighbours(const ScenarioContext& context, ScenarioReport& report, Device& device,
             KvLayout layout)
      : context_(context),
        report_(report),
        device_(device),
        layout_(std::move(layout)),
        memory_({"neighbour_bytes"}) {}

  MaybeFailure run();

 private:
  MaybeFailure warm_up();
  MaybeFailure start_ours();
  MaybeFailure start_neighbour();
  MaybeFailure take();
  MaybeFailure refuse_creation();
  MaybeFailure free();
  MaybeFailure create_again();
  MaybeFailure decode_ours();
  MaybeFailure finish_ours();
  Result<Moment> read();
  void judge_drift(const MemoryDrift& before, const MemoryDrift& held);

  EngineOptions engine_of(std::int64_t num_blocks) const {
    EngineOptions options = our_engine(context_);
    options.pool = {.num_blocks = num_blocks};
    options.touch_pool = false;
    return options;
  }
  /// Two contexts may keep or give back meanwhile what a driver may. On a host others take and free
  /// memory, too; half the share is more than they are taken for.
  std::int64_t tolerance() const noexcept {
    return context_.on_gpu() ? driver_may_keep(context_) : share_bytes_ / 2;
  }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  Device& device_;
  KvLayout layout_;
  MemoryTable memory_;
  FigureTable drift_{{"neighbour_bytes", "driver_used_bytes", "tracked_bytes", "drift_bytes",
                      "overhead_bytes", "growth_bytes"},
                     {}};
  std::unique_ptr<CheckedEngine> ours_;
  Job* job_ = nullptr;
  std::unique_ptr<Neighbour> neighbour_;
  Moment both_there_;             // before it takes any
  std::int64_t share_bytes_ = 0;  // what it takes
  std::int64_t blocks_ = 0;       // of the cache that fits only while it has taken none
};

/// A row of both tables.
Result<Moment> Neighbours::read() {
  const Result<MemoryReading> reading = read_memory(device_);
  if (!reading) return reading.status();
  const Result<MemoryDrift> drift = measure_drift(device_);
  if (!drift) return drift.status();
  const std::int64_t held = neighbour_ ? neighbour_->held_bytes() : 0;
  memory_.add({held}, *reading);
  drift_.rows.push_back({held, static_cast<std::int64_t>(drift->driver_used_bytes),
                         static_cast<std::int64_t>(drift->tracked_bytes), drift->drift_bytes,
                         static_cast<std::int64_t>(drift->overhead_bytes), drift->growth_bytes});
  return Moment{reading->driver_free, *drift};
}

// ---- ours --------------------------------------------------------------------------------------

/// All its memory is committed before the neighbour comes.
MaybeFailure Neighbours::start_ours() {
  auto made = CheckedEngine::create(device_, context_.model(), our_engine(context_));
  if (!made) return not_created(device_, context_.model(), made.status());
  ours_ = std::move(made).value();
  const Result<Job*> job =
      ours_->add(prompt_tokens(context_), final_tokens(context_) - prompt_tokens(context_));
  if (!job) return unexpected("create_sequence", job.status());
  job_ = *job;
  ours_->verify_next();
  if (auto failure = ours_->extend(*job_, prompt_tokens(context_), StepWork::attend))
    return failure;
  return decode_ours();
}

/// Every step compared with the reference, and then all bytes so far.
MaybeFailure Neighbours::decode_ours() {
  for (std::int64_t i = 0; i < context_.sizes().decode_steps; ++i) {
    ours_->verify_next();
    if (auto failure = ours_->decode({&job_, 1}, 1, StepWork::attend)) return failure;
  }
  return ours_->check(*job_);
}

MaybeFailure Neighbours::finish_ours() {
  if (auto failure = decode_ours()) return failure;
  if (auto failure = ours_->finish(*job_)) return failure;
  expect_verified(report_, *ours_);
  return std::nullopt;
}

// ---- the neighbour -----------------------------------------------------------------------------

MaybeFailure Neighbours::start_neighbour() {
  const Result<Moment> alone = read();
  if (!alone) return unexpected("memory_info", alone.status());
  if (auto failure = Neighbour::start(context_.options.neighbour_command, &neighbour_)) {
    return failure;
  }
  const Result<Moment> together = read();
  const Result<MemoryInfo> limit = context_.device().memory_info();
  if (!together) return unexpected("memory_info", together.status());
  if (!limit) return unexpected("memory_info", limit.status());
  both_there_ = *together;
  const std::int64_t free_bytes = together->free_bytes;
  std::int64_t most = std::min(static_cast<std::int64_t>(limit->free_bytes), free_bytes) / 4;
  // On a host others take and free hundreds of megabytes meanwhile: the share must stand out.
  if (!context_.on_gpu()) most = std::max(most, std::min(kLeastHostShare, free_bytes / 8));
  share_bytes_ = std::min(context_.sizes().neighbour_bytes, most) / kPieces / kDriverPieceBytes *
                 kDriverPieceBytes * kPieces;
  // Halfway between what is free without its share and with it.
  blocks_ = (free_bytes - share_bytes_ / 2) / layout_.block_bytes();
  report_.add("neighbour_pid", std::int64_t{neighbour_->pid()});
  report_.add("neighbour_context_bytes", alone->free_bytes - free_bytes);
  report_.add("neighbour_share_bytes", share_bytes_);
  report_.add("creation_bytes", blocks_ * layout_.block_bytes());
  return std::nullopt;
}

MaybeFailure Neighbours::take() {
  Result<Moment> held = both_there_;
  std::int64_t pieces = 0;
  const auto fallen = [this, &held] { return both_there_.free_bytes - held->free_bytes; };
  // On a host others may have freed meanwhile, which hides what it takes: then it takes more.
  while (pieces < kPieces || (pieces < kMostPieces && fallen() < share_bytes_)) {
    if (auto failure = neighbour_->take(share_bytes_ / kPieces)) return failure;
    held = read();
    if (!held) return unexpected("memory_info", held.status());
    ++pieces;
  }
  report_.add("neighbour_taken_bytes", neighbour_->held_bytes());
  report_.expect_at_least("free bytes that the neighbour took, as we see it", share_bytes_,
                          fallen());
  judge_drift(both_there_.drift, held->drift);
  return std::nullopt;
}

/// What the neighbour took is nobody's in our records: drift, and by NVML another process's.
void Neighbours::judge_drift(const MemoryDrift& before, const MemoryDrift& held) {
  report_.expect_equal("tracked bytes while the neighbour takes",
                       static_cast<std::int64_t>(before.tracked_bytes),
                       static_cast<std::int64_t>(held.tracked_bytes));
  report_.expect_at_least("growth of drift that is not ours", share_bytes_ - tolerance(),
                          held.growth_bytes - before.growth_bytes);
  if (held.own_bytes) report_.add("nvml_own_bytes", static_cast<std::int64_t>(*held.own_bytes));
  if (!held.other_bytes || !before.other_bytes) return;
  const auto others = static_cast<std::int64_t>(*held.other_bytes - *before.other_bytes);
  report_.add("nvml_other_bytes", static_cast<std::int64_t>(*held.other_bytes));
  report_.expect_at_least("growth of other processes, by NVML", share_bytes_ - tolerance(), others);
}

MaybeFailure Neighbours::refuse_creation() {
  return expect_refused(
      report_, device_,
      {.name = "creation",
       .required_bytes = blocks_ * layout_.block_bytes(),
       .tolerance_bytes = tolerance()},
      [this] {
        return CheckedEngine::create(device_, context_.model(), engine_of(blocks_)).status();
      });
}

MaybeFailure Neighbours::free() {
  if (auto failure = neighbour_->free()) return failure;
  const Result<Moment> freed = read();
  if (!freed) return unexpected("memory_info", freed.status());
  report_.expect_at_most("free bytes that did not come back", tolerance(),
                         both_there_.free_bytes - freed->free_bytes);
  return std::nullopt;
}

/// The creation that was refused.
MaybeFailure Neighbours::create_again() {
  auto made = CheckedEngine::create(device_, context_.model(), engine_of(blocks_));
  report_.expect_same("the creation that was refused, after the neighbour freed", "works",
                      made ? "works" : device_.describe(made.status()));
  return made ? (*made)->warm_up() : std::nullopt;
}

/// What a process pays once is paid before the balance is read.
MaybeFailure Neighbours::warm_up() {
  auto made = CheckedEngine::create(device_, context_.model(), our_engine(context_));
  return made ? (*made)->warm_up() : not_created(device_, context_.model(), made.status());
}

MaybeFailure Neighbours::run() {
  if (auto failure = warm_up()) return failure;
  const Result<MemoryBalance> before = read_balance(device_);
  if (!before) return unexpected("memory_info", before.status());
  if (auto failure = start_ours()) return failure;
  if (auto failure = start_neighbour()) return failure;
  if (auto failure = take()) return failure;
  if (auto failure = refuse_creation()) return failure;
  if (auto failure = decode_ours()) return failure;
  if (auto failure = free()) return failure;
  if (auto failure = create_again()) return failure;
  if (auto failure = finish_ours()) return failure;
  if (auto failure = neighbour_->quit()) return failure;
  ours_.reset();
  report_.add("memory", memory_.table());
  report_.add("drift", drift_);
  const Result<MemoryBalance> after = read_balance(device_);
  if (!after) return unexpected("memory_info", after.status());
  expect_same(report_, "both gone", *before, *after, tolerance());
  return std::nullopt;
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  if (context.options.neighbour_command.empty()) {
    report.skipped = "there is no program to be the neighbour";
    return std::nullopt;
  }
  const Result<KvLayout> layout = KvLayout::create(context.model().shape);
  if (!layout) return unexpected("KvLayout::create", layout.status());
  // A host device with a limit would not notice: this one has all that the machine has available.
  std::unique_ptr<HostDevice> host;
  if (!context.on_gpu()) {
    auto made = HostDevice::create({.memory = context.options.machine});
    if (!made) return unexpected("HostDevice::create", made.status());
    host = std::move(made).value();
  }
  Device& device = host ? *host : context.device();
  return Neighbours(context, report, device, *layout).run();
}

/// Ours, the neighbour's context (as large as ours), and so much that the neighbour's share, a
/// quarter of it, is a piece of the driver's or more.
Result<std::int64_t> required_bytes(const ScenarioContext& context) {
  if (context.options.neighbour_command.empty()) return 0;
  const auto bytes =
      CheckedEngine::device_bytes(context.device(), context.model(), our_engine(context));
  if (!bytes) return bytes.status();
  return *bytes + static_cast<std::int64_t>(context.device().overhead_bytes()) +
         4 * kPieces * kDriverPieceBytes;
}

}  // namespace

Scenario neighbours() {
  return {"neighbours", "Another process takes and frees memory", run, required_bytes};
}

}  // namespace kvarena::scenarios
