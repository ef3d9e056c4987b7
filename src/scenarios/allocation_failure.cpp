#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/memory_reading.hpp"
#include "scenarios/suite.hpp"

#include "verify/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kSmallBlocks = 4;     // of the cache that shows that the process goes on
constexpr std::int64_t kMostInstances = 24;  // that fit; a small model's caches are larger for it

/// Instances until one was refused.
struct FullDevice {
  std::vector<ServedInstance> instances;
  Status refused;                      // of the one past the last
  std::int64_t first_free_bytes = 0;   // by the driver, before the first
  std::int64_t second_free_bytes = 0;  // and after it
};

EngineOptions engine_of(const ScenarioContext& context, std::int64_t num_blocks) {
  return {.pool = {.num_blocks = num_blocks},
          .max_sequences = 4,
          .max_step_tokens = 2 * std::int64_t{context.model().shape.block_size_tokens},
          .touch_pool = true,
          .num_threads = context.options.num_threads,
          .stop = context.options.stop};
}

class AllocationFailure {
 public:
  AllocationFailure(const ScenarioContext& context, ScenarioReport& report, KvLayout layout)
      : context_(context), report_(report), layout_(std::move(layout)) {}

  MaybeFailure run() {
    expect_small_cache("before anything is refused");
    if (auto failure = refuse_weights()) return failure;
    if (auto failure = refuse_sequence()) return failure;
    if (auto failure = refuse_arena()) return failure;
    if (auto failure = fill_with_instances()) return failure;
    expect_small_cache("after the instances are gone");
    return std::nullopt;
  }

 private:
  MaybeFailure refuse_weights();
  MaybeFailure refuse_sequence();
  MaybeFailure refuse_arena();
  MaybeFailure fill_with_instances();
  MaybeFailure fill_once(const EngineOptions& engine, std::string_view when,
                         std::int64_t* instances);

  MaybeFailure leave_free(std::int64_t bytes, verify::DeviceMemory& taken);
  MaybeFailure expect_refused(const ExpectedRefusal& expected, const std::function<Status()>& call);
  void expect_small_cache(std::string_view when);
  Result<FullDevice> load_until_refused(const EngineOptions& engine, MemoryTable& table);
  MaybeFailure check_full(FullDevice& full, std::string_view when);

  EngineOptions engine_of(std::int64_t num_blocks) const {
    return scenarios::engine_of(context_, num_blocks);
  }
  std::int64_t sequence_blocks() const noexcept { return context_blocks(context_.model()); }
  /// A driver keeps one piece or none for itself: an allocation that it refuses makes it give that
  /// back.
  std::int64_t tolerance() const noexcept { return context_.on_gpu() ? kDriverPieceBytes : 0; }
  /// A budget that is too small, but not by so much that a small cache would not fit.
  static std::int64_t too_small(std::int64_t bytes) noexcept { return bytes - bytes / 8; }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  KvLayout layout_;
};

// ---- what every refusal needs ------------------------------------------------------------------

/// Takes what is free past `bytes`.
MaybeFailure AllocationFailure::leave_free(std::int64_t bytes, verify::DeviceMemory& taken) {
  const Result<MemoryInfo> memory = context_.device().memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  const std::int64_t surplus = static_cast<std::int64_t>(memory->free_bytes) - bytes;
  if (surplus <= 0) return std::nullopt;
  auto made = verify::DeviceMemory::create(context_.device(), surplus, "scenario: past the budget");
  if (!made) return unexpected("allocate", made.status());
  taken = std::move(*made);
  return std::nullopt;
}

MaybeFailure AllocationFailure::expect_refused(const ExpectedRefusal& expected,
                                               const std::function<Status()>& call) {
  auto failure = scenarios::expect_refused(report_, context_.device(), expected, call);
  if (!failure) expect_small_cache("after " + expected.name);
  return failure;
}

/// The process goes on: a small cache is created, used, verified and destroyed.
void AllocationFailure::expect_small_cache(std::string_view when) {
  std::string seen = "works";
  if (auto made =
          CheckedEngine::create(context_.device(), context_.model(), engine_of(kSmallBlocks));
      !made) {
    seen = context_.device().describe(made.status());
  } else if (auto failure = (*made)->warm_up()) {
    seen = headline(failure->why);
  }
  report_.expect_same(fmt::format("a small cache {}", when), "works", seen);
}

// ---- the refusals ------------------------------------------------------------------------------

MaybeFailure AllocationFailure::refuse_weights() {
  const std::int64_t required = context_.model().weights_bytes;
  verify::DeviceMemory taken;
  if (auto failure = leave_free(too_small(required), taken)) return failure;
  return expect_refused(
      {.name = "weights", .required_bytes = required, .tolerance_bytes = tolerance()},
      [this] { return load_weights(context_.options).status(); });
}

/// Weights fit, and then the blocks of one sequence do not: the weights must go again.
MaybeFailure AllocationFailure::refuse_sequence() {
  const std::int64_t weights = context_.model().weights_bytes;
  const std::int64_t required = sequence_blocks() * layout_.block_bytes();
  verify::DeviceMemory taken;
  if (auto failure = leave_free(weights + too_small(required), taken)) return failure;
  return expect_refused(
      {.name = "sequence",
       .required_bytes = required,
       .held_bytes = weights,
       .tolerance_bytes = tolerance()},
      [this] {
        return ServedInstance::create(context_.options, engine_of(sequence_blocks())).status();
      });
}

/// One block more than the free memory holds, whatever the driver gives back.
MaybeFailure AllocationFailure::refuse_arena() {
  const Result<MemoryInfo> memory = context_.device().memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  const std::int64_t blocks =
      (static_cast<std::int64_t>(memory->free_bytes) + tolerance()) / layout_.block_bytes() + 1;
  return expect_refused({.name = "arena",
                         .required_bytes = blocks * layout_.block_bytes(),
                         .tolerance_bytes = tolerance()},
                        [this, blocks] {
                          return CheckedEngine::create(context_.device(), context_.model(),
                                                       engine_of(blocks))
                              .status();
                        });
}

// ---- instances ---------------------------------------------------------------------------------

Result<FullDevice> AllocationFailure::load_until_refused(const EngineOptions& engine,
                                                         MemoryTable& table) {
  FullDevice full;
  for (;;) {
    const Result<MemoryReading> reading = read_memory(context_.device());
    if (!reading) return reading.status();
    const auto loaded = static_cast<std::int64_t>(full.instances.size());
    table.add({loaded}, *reading);
    if (loaded == 0) full.first_free_bytes = reading->driver_free;
    if (loaded == 1) full.second_free_bytes = reading->driver_free;
    auto made = ServedInstance::create(context_.options, engine);
    if (!made) {
      full.refused = made.status();
      return full;
    }
    full.instances.push_back(std::move(made).value());
    context_.progress(fmt::format("instance {} loaded", loaded + 1));
  }
}

/// Not one more fits, and all are whole.
MaybeFailure AllocationFailure::check_full(FullDevice& full, std::string_view when) {
  const auto required = static_cast<std::int64_t>(full.refused.required);
  const auto available = static_cast<std::int64_t>(full.refused.available);
  const std::int64_t taken = full.first_free_bytes - full.second_free_bytes;
  const Result<MemoryInfo> memory = context_.device().memory_info();
  if (!memory) return unexpected("memory_info", memory.status());
  report_.add(fmt::format("{}_instance_driver_bytes", when), taken);
  report_.add(fmt::format("{}_refused_required_bytes", when), required);
  report_.add(fmt::format("{}_refused_available_bytes", when), available);
  const auto name = [when](const char* what) { return fmt::format("{} fill: {}", when, what); };
  report_.expect_same(name("the instance past the last: refused with"),
                      std::string(name_of(StatusCode::insufficient_vram)),
                      std::string(name_of(full.refused.code)));
  report_.expect_at_most(
      name("the instance past the last: bytes available, where less than required"), required - 1,
      available);
  report_.expect_at_most(name("free bytes then, less than an instance takes"), taken - 1,
                         static_cast<std::int64_t>(memory->free_bytes));
  std::int64_t wrong = 0;
  for (ServedInstance& instance : full.instances) {
    const Result<std::int64_t> its = instance.weights().count_wrong_bytes();
    if (!its) return unexpected("copy", its.status());
    wrong += *its;
    if (auto failure = instance.engine().warm_up()) return failure;
  }
  report_.expect_equal(name("wrong bytes in all weights"), 0, wrong);
  return std::nullopt;
}

/// Whole instances until one is refused; then all are dropped.
MaybeFailure AllocationFailure::fill_once(const EngineOptions& engine, std::string_view when,
                                          std::int64_t* instances) {
  MemoryTable table({"instances"});
  Result<FullDevice> full = load_until_refused(engine, table);
  if (!full) return unexpected("memory_info", full.status());
  *instances = static_cast<std::int64_t>(full->instances.size());
  report_.add(fmt::format("{}_instances", when), *instances);
  report_.add(fmt::format("{}_memory", when), table.table());
  if (!report_.expect_at_least(fmt::format("{} fill: instances until one is refused", when), 1,
                               *instances)) {
    return std::nullopt;
  }
  return check_full(*full, when);
}

/// Twice: what the driver keeps for its own use after so many streams and buffers, it keeps once.
MaybeFailure AllocationFailure::fill_with_instances() {
  const Result<MemoryBalance> fresh = read_balance(context_.device());
  if (!fresh) return unexpected("memory_info", fresh.status());
  const std::int64_t share = fresh->driver_free / kMostInstances - context_.model().weights_bytes;
  const EngineOptions engine =
      engine_of(std::max(sequence_blocks(), share / layout_.block_bytes()));
  report_.add("instance_blocks", engine.pool.num_blocks);
  std::int64_t first = 0;
  if (auto failure = fill_once(engine, "first", &first)) return failure;
  const Result<MemoryBalance> before = read_balance(context_.device());
  if (!before) return unexpected("memory_info", before.status());
  const std::int64_t kept = fresh->driver_free - before->driver_free;
  report_.add("first_driver_kept_bytes", kept);
  report_.expect_at_most("first fill: " + what_driver_keeps(context_), driver_may_keep(context_),
                         kept);
  report_.expect_equal("first fill: tracked bytes, all instances dropped", fresh->tracked,
                       before->tracked);
  std::int64_t second = 0;
  if (auto failure = fill_once(engine, "second", &second)) return failure;
  report_.expect_equal("second fill: instances", first, second);
  const Result<MemoryBalance> after = read_balance(context_.device());
  if (!after) return unexpected("memory_info", after.status());
  expect_same(report_, "second fill, all instances dropped", *before, *after);
  return std::nullopt;
}

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  const Result<KvLayout> layout = KvLayout::create(context.model().shape);
  if (!layout) return unexpected("KvLayout::create", layout.status());
  return AllocationFailure(context, report, *layout).run();
}

}  // namespace

Scenario allocation_failure() {
  return {
      "allocation-failure", "Budgets that are too small", run, [](const ScenarioContext& context) {
        return instance_bytes(context.options, engine_of(context, context_blocks(context.model())));
      }};
}

}  // namespace kvarena::scenarios
