#include "scenarios/checks.hpp"

#include "kvarena/device/residency.hpp"

#include <fmt/format.h>

namespace kvarena::scenarios {
namespace {

std::string words(const PoolState& s) {
  return fmt::format(
      "{} free blocks, {} references, {} reserved, {} sequences, {} tokens, {} table entries, {} "
      "blocks handed out so far",
      s.free, s.references, s.reserved, s.sequences, s.tokens, s.entries, s.allocations);
}

std::string refusal(StatusCode code, std::int64_t required, std::int64_t available) {
  return fmt::format("{}, required {}, available {}", name_of(code), required, available);
}

std::string refusal(const Status& status) {
  if (status) return "ok";
  return refusal(status.code, static_cast<std::int64_t>(status.required),
                 static_cast<std::int64_t>(status.available));
}

}  // namespace

Failure not_created(const Device& device, const ServedModel& model, const Status& status) {
  const bool no_room = status.code == StatusCode::insufficient_vram;
  return {no_room ? RunEnd::does_not_fit : RunEnd::environment,
          {.found = fmt::format("weights or cache of {} could not be made: {}", model.name,
                                device.describe(status)),
           .expected = "room for them",
           .advice = "give it more memory, or free some"}};
}

std::int64_t model_bytes_per_token(const ServedModel& model) noexcept {
  return std::int64_t{model.shape.num_layers} * model.shape.num_kv_heads *
         (model.shape.head_dim_k + model.shape.head_dim_v) * bytes_of(model.shape.dtype);
}

PoolState pool_state(const CheckedEngine& engine) {
  const BlockStats blocks = engine.cache().manager().stats();
  const TableStats tables = engine.cache().tables().stats();
  return {.free = blocks.free,
          .references = blocks.references,
          .reserved = blocks.reserved,
          .sequences = tables.sequences,
          .tokens = tables.tokens,
          .entries = tables.entries,
          .allocations = blocks.allocations};
}

void expect_unchanged(ScenarioReport& report, const std::string& what, const PoolState& before,
                      const CheckedEngine& engine) {
  report.expect_same(what, words(before), words(pool_state(engine)));
  report.expect_same(what + ": invariants", "ok",
                     engine.cache().check_invariants() ? "ok" : "violated");
}

void expect_too_long(ScenarioReport& report, const std::string& what, const Status& refused,
                     std::int64_t length_tokens, std::int64_t maximum_tokens) {
  report.expect_same(what,
                     refusal(StatusCode::context_length_exceeded, length_tokens, maximum_tokens),
                     refusal(refused));
}

void expect_exhausted(ScenarioReport& report, const std::string& what, const Status& refused,
                      std::int64_t required_blocks, std::int64_t available_blocks) {
  report.expect_same(what, refusal(StatusCode::exhausted, required_blocks, available_blocks),
                     refusal(refused));
}

std::optional<std::int64_t> due_on_gpu(const ScenarioContext& context,
                                       const CheckedEngine& engine) {
  if (!context.on_gpu()) return std::nullopt;
  return engine.results_due();
}

std::int64_t driver_may_keep(const ScenarioContext& context) noexcept {
  return context.on_gpu() ? kDriverPieces * kDriverPieceBytes : 0;
}

std::string what_driver_keeps(const ScenarioContext& context) {
  if (!context.on_gpu()) return "bytes kept";
  return fmt::format(
      "bytes that the driver kept for its own use, once, {} pieces of {} MiB at most",
      kDriverPieces, kDriverPieceBytes >> 20);
}

MaybeFailure warm_up(const ScenarioContext& context, EngineOptions options) {
  options.pool = {.num_blocks = context_blocks(context.model())};
  auto made = CheckedEngine::create(context.device(), context.model(), options);
  return made ? (*made)->warm_up() : not_created(context, made.status());
}

void expect_verified(ScenarioReport& report, const CheckedEngine& engine,
                     std::optional<std::int64_t> attention_rows) {
  const VerificationReport seen = engine.verification();
  report.add("kv_bytes_written", seen.kv_bytes_written);
  report.add("kv_bytes_compared", seen.kv_bytes_compared);
  report.add("sequences_compared", seen.sequences_compared);
  report.add("attention_results_compared", seen.attention_rows);
  report.add("attention_largest_error", seen.max_error);
  report.add("attention_tolerance", seen.tolerance);
  report.expect_equal("comparisons that failed", 0, seen.failures);
  report.expect_at_most("distance of attention to the reference", seen.tolerance, seen.max_error);
  report.expect_at_least("sequences whose bytes were compared", 1, seen.sequences_compared);
  if (attention_rows) {
    report.expect_equal("attention results compared", *attention_rows, seen.attention_rows);
  } else {
    report.expect_at_least("attention results compared", 1, seen.attention_rows);
  }
}

void expect_idle(ScenarioReport& report, const CheckedEngine& engine) {
  const BlockStats stats = engine.cache().manager().stats();
  report.expect_equal("free blocks at the end", stats.num_blocks, stats.free);
  report.expect_equal("sequences at the end", 0, engine.cache().tables().stats().sequences);
  report.expect_same("invariants at the end", "ok",
                     engine.cache().check_invariants() ? "ok" : "violated");
}

MaybeFailure expect_weights_intact(ScenarioReport& report, const ModelWeights& weights) {
  const Result<std::int64_t> wrong = weights.count_wrong_bytes();
  if (!wrong) return unexpected("reading the weights", wrong.status());
  report.expect_equal("weight bytes that changed, of the sampled ones", 0, *wrong);
  return std::nullopt;
}

Result<PlaneResidency> check_planes(const Device& device, const Arena& arena) {
  PlaneResidency seen;
  const BlockId first{0};
  const BlockId last{static_cast<std::int32_t>(arena.num_blocks() - 1)};
  for (const PlaneSpec& plane : arena.layout().planes()) {
    ++seen.planes;
    const auto bytes = static_cast<std::uint64_t>(
        arena.layout().plane_bytes(arena.layout().plane_of(plane.layer, plane.kind)));
    for (const BlockId block : {first, last}) {
      ++seen.ranges;
      const Result<Placement> found =
          device.place_of(arena.address(block, plane.layer, plane.kind), bytes);
      if (!found) return found.status();
      const std::string place(name_of(found->place));
      if (seen.place.find(place) == std::string::npos) {
        seen.place += (seen.place.empty() ? "" : ", ") + place;
      }
      if (is_permitted(found->place, MemoryKind::device, device.policy())) {
        ++seen.permitted;
      } else if (seen.first_violation.empty()) {
        seen.first_violation = fmt::format("{} of layer {}, block {}: {} ({})",
                                           plane.kind == PlaneKind::key ? "K" : "V", plane.layer,
                                           block.value, place, found->driver_said);
      }
    }
  }
  return seen;
}

MaybeFailure expect_resident(ScenarioReport& report, const std::string& moment,
                             const Device& device, const Arena& arena) {
  const Result<PlaneResidency> planes = check_planes(device, arena);
  if (!planes) return unexpected("place_of", planes.status());
  const ResidencyReport all = verify_residency(device);
  if (!all.status) return unexpected("verify_residency", all.status);
  const bool on_gpu = device.kind() == DeviceKind::cuda;
  report.expect(
      fmt::format("place of {} K and V planes, {}", planes->planes, moment),
      fmt::format("{} of {} ranges {}", planes->ranges, planes->ranges,
                  on_gpu ? "vram" : "host_device"),
      planes->first_violation.empty()
          ? fmt::format("{} of {} ranges {}", planes->permitted, planes->ranges, planes->place)
          : planes->first_violation,
      planes->permitted == planes->ranges &&
          planes->place == name_of(on_gpu ? MemoryPlace::vram : MemoryPlace::host_device));
  report.expect(fmt::format("residency of all tracked allocations, {}", moment),
                fmt::format("0 violations, resident {}", on_gpu),
                all.violations.empty() ? fmt::format("0 violations of {} checked, resident {}",
                                                     all.checked, all.resident)
                                       : describe(all.violations.front()),
                all.violations.empty() && all.checked > 0 && all.resident == on_gpu);
  return std::nullopt;
}

}  // namespace kvarena::scenarios
