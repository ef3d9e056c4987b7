// Scenario 9: layers of several kinds in one pool of pages, and every group of them exhausted.

#include "scenarios/groups.hpp"
#include "scenarios/checks.hpp"
#include "scenarios/engine.hpp"
#include "scenarios/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr std::int64_t kLeastPages = 16;
constexpr std::int32_t kWholeEvery = 6;  // of so many layers, the last one keeps all tokens
constexpr std::int64_t kWindowPart = 8;  // a window has this part of the context

/// The model's layers as groups: some keep all tokens, most a window, and one more layer keeps a
/// state.
class MixedModel {
 public:
  explicit MixedModel(const ServedModel& model) {
    const std::int32_t num_layers = model.shape.num_layers;
    for (std::int32_t layer = 0; layer < num_layers; ++layer) {
      const bool is_whole = layer % kWholeEvery == kWholeEvery - 1 ||
                            (num_layers < kWholeEvery && layer == num_layers - 1);
      (is_whole ? whole_ : windowed_).push_back({.layer = layer});
    }
    recurrent_.push_back({.layer = num_layers});
    plane_ = {.dtype = DType::f32,
              .num_dims = 3,
              .shape = {model.shape.num_kv_heads, model.shape.head_dim_k, model.shape.head_dim_v}};
    const LayerGroup attention{.layers = whole_,
                               .num_kv_heads = model.shape.num_kv_heads,
                               .head_dim_k = model.shape.head_dim_k,
                               .head_dim_v = model.shape.head_dim_v,
                               .dtype = model.shape.dtype,
                               .block_size_tokens = model.shape.block_size_tokens};
    groups_.push_back(attention);
    if (!windowed_.empty()) {
      groups_.push_back(attention);
      groups_.back().kind = PagedKind::window;
      groups_.back().layers = windowed_;
      groups_.back().limit_tokens =
          std::max<std::int64_t>(model.max_context_tokens / kWindowPart, 1);
    }
    groups_.push_back({.kind = PagedKind::state, .layers = recurrent_, .planes = {&plane_, 1}});
  }
  MixedModel(const MixedModel&) = delete;
  MixedModel& operator=(const MixedModel&) = delete;

  std::span<const LayerGroup> groups() const noexcept { return groups_; }

 private:
  std::vector<GroupLayer> whole_;
  std::vector<GroupLayer> windowed_;
  std::vector<GroupLayer> recurrent_;
  StatePlane plane_;
  std::vector<LayerGroup> groups_;  // with views of the others
};

/// A cache with the pages of as many bytes as one context takes in the other scenarios.
Result<KvCacheOptions> options_of(const ScenarioContext& context, const MixedModel& mixed) {
  const ServedModel& model = context.model();
  const Result<GroupLayout> layout =
      GroupLayout::create(mixed.groups(), std::max<std::int64_t>(model.max_context_tokens, 1));
  if (!layout) return layout.status();
  KvCacheOptions options;
  options.groups = mixed.groups();
  options.page_sequence_tokens = model.max_context_tokens;
  options.num_q_heads = model.num_q_heads;
  options.max_sequences = MixedSequences::kMost;
  options.max_sequence_tokens = model.max_context_tokens;
  options.max_step_tokens = std::max<std::int64_t>(
      context.sizes().chunk_tokens, MixedSequences::kMost * model.shape.block_size_tokens);
  options.num_threads = context.options.num_threads;
  const std::int64_t context_bytes =
      context_blocks(model) * model.shape.block_size_tokens * model_bytes_per_token(model);
  options.size.num_blocks = std::max(kLeastPages, context_bytes / layout->page_bytes());
  return options;
}

Result<std::int64_t> required_bytes(const ScenarioContext& context) {
  const MixedModel mixed(context.model());
  const Result<KvCacheOptions> options = options_of(context, mixed);
  if (!options) return options.status();
  const Result<CacheTarget> target = target_of(context.device());
  if (!target) return target.status();
  const Result<CacheFootprint> cache = cache_footprint(*options, *target);
  if (!cache) return cache.status();
  if (target->kind == DeviceKind::host) return cache->device_bytes();
  return cache->device_bytes() + (cache->device_allocations + kDriverPieces) * kDriverPieceBytes;
}

/// "exhausted (page) of group 1, required 2, available 0".
std::string refusal_of(StatusCode code, Resource resource, std::uint64_t group,
                       std::int64_t required, std::int64_t available) {
  return fmt::format("{} ({}) of group {}, required {}, available {}", name_of(code),
                     name_of(resource), group, required, available);
}
std::string refusal_of(const Status& status) {
  if (status) return "ok";
  return refusal_of(status.code, status.resource, status.subject,
                    static_cast<std::int64_t>(status.required),
                    static_cast<std::int64_t>(status.available));
}

class Groups {
 public:
  Groups(const ScenarioContext& context, ScenarioReport& report)
      : context_(context), report_(report), mixed_(context.model()) {}

  MaybeFailure run() {
    const Result<KvCacheOptions> options = options_of(context_, mixed_);
    if (!options) return unexpected("GroupLayout::create", options.status());
    Result<KvCache> made = KvCache::create(context_.device(), *options);
    if (!made) return not_created(context_, made.status());
    KvCache& cache = *made;
    describe(cache);
    if (auto failure = exhaust_in_turn(cache)) return failure;
    return MixedSequences(context_, report_, cache).run();
  }

 private:
  void describe(const KvCache& cache) {
    const BlockManager& manager = cache.manager();
    const PageStats pages = manager.page_stats();
    report_.add("pages", pages.num_pages);
    report_.add("page_bytes", pages.page_bytes);
    FigureTable table{{"group", "blocks_per_page", "block_bytes"}, {}};
    std::string kinds;
    for (const BlockGroup& group : manager.groups()) {
      table.rows.push_back({std::ssize(table.rows), group.blocks_per_page, group.block_bytes});
      kinds += (kinds.empty() ? "" : ", ") + std::string(name_of(group.kind));
    }
    report_.add("groups", std::move(table));
    report_.add("kinds_of_groups", std::move(kinds));
  }

  /// One group after the other takes every page; then all of them together.
  MaybeFailure exhaust_in_turn(KvCache& cache) {
    auto filler = PageFiller::create(cache);
    if (!filler) return unexpected("BlockManager::create", filler.status());
    const auto num_groups = static_cast<std::int32_t>(cache.manager().groups().size());
    for (std::int32_t g = 0; g < num_groups; ++g) {
      if (is_stopped(context_.options.stop)) return interruption();
      context_.progress(fmt::format("group {} takes every page", g));
      if (auto failure = exhaust(*filler, std::span(&g, 1))) return failure;
    }
    std::vector<std::int32_t> all;
    for (std::int32_t g = 0; g < num_groups; ++g) all.push_back(g);
    context_.progress("all groups together");
    return exhaust(*filler, all);
  }

  /// The groups take blocks in turn until each of them has been refused one.
  MaybeFailure exhaust(PageFiller& filler, std::span<const std::int32_t> groups) {
    const bool alone = groups.size() == 1;
    const std::string who =
        alone ? fmt::format("group {}", groups.front()) : std::string("all groups");
    if (auto failure = filler.take_until_refused(groups)) return failure;
    const BlockManager& manager = filler.manager();
    const PageStats full = manager.page_stats();
    report_.expect_equal(who + ": pages left", 0, full.free);
    for (const std::int32_t g : groups) {
      const Status& refused = filler.refusal(g);
      const GroupStats stats = manager.group_stats(g);
      const std::string one_more = fmt::format("{}: a block of group {} more", who, g);
      report_.expect_same(
          one_more,
          refusal_of(StatusCode::exhausted, Resource::page, static_cast<std::uint64_t>(g), 1, 0),
          refusal_of(refused));
      report_.expect_equal(one_more + ": blocks in use", stats.pages * stats.blocks_per_page,
                           stats.referenced);
      if (alone) report_.expect_equal(who + ": its pages", full.num_pages, stats.pages);
      expect_explained(one_more, manager, refused, g);
    }
    const Result<std::int64_t> wrong = filler.count_wrong_bytes();
    if (!wrong) return unexpected("reading the blocks", wrong.status());
    report_.expect_equal(who + ": bytes of blocks that changed, of the sampled ones", 0, *wrong);
    expect_whole(who + ": invariants", manager.check_invariants());
    if (Status s = filler.release_all(); !s) return unexpected("release", s);
    report_.expect_equal(who + ": pages free after release", full.num_pages,
                         manager.page_stats().free);
    return std::nullopt;
  }

  void expect_explained(const std::string& what, const BlockManager& manager, const Status& refused,
                        std::int32_t group) {
    const Explanation e = manager.explain(refused);
    const GroupStats stats = manager.group_stats(group);
    const auto index = static_cast<std::size_t>(group);
    std::int64_t bytes = 0;
    for (const HolderReport& holder : manager.holders()) {
      if (holder.number == index) bytes = holder.bytes;
    }
    report_.expect_same(what + ": the explanation",
                        fmt::format("does not fit, 0 pages free, {} pages of group {}, {} B held",
                                    stats.pages, group, stats.referenced * stats.block_bytes),
                        fmt::format("{}, {} pages free, {} pages of group {}, {} B held",
                                    e.fits ? "fits" : "does not fit", e.pages.free,
                                    e.groups[index].pages, group, bytes));
  }

  void expect_whole(const std::string& what, const Status& status) {
    report_.expect_same(what, "ok", status ? "ok" : kvarena::describe(status));
  }

  const ScenarioContext& context_;
  ScenarioReport& report_;
  MixedModel mixed_;
};

MaybeFailure run(const ScenarioContext& context, ScenarioReport& report) {
  return Groups(context, report).run();
}

}  // namespace

Scenario groups() {
  return {"groups", "Every group of layers exhausted in turn", run, required_bytes};
}

}  // namespace kvarena::scenarios
