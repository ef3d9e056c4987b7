#include "cache/group_plan.hpp"

#include "base/range_checks.hpp"
#include "blocktable/prefix_cache.hpp"
#include "blocktable/state_extras.hpp"
#include "cache/backend_sizes.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "step/group_rows.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kDefaultTokens = 131'072;  // for which a page is chosen
constexpr std::int64_t kMaxQHeads = 4096;
/// An address for a pool that is only planned; it is never read.
constexpr std::uintptr_t kNowhere = 4096;

Status check_options(const KvCacheOptions& options) noexcept {
  if (Status s = check_enum(Option::order, options.order, BlockOrder::layer_major); !s) return s;
  if (options.order != BlockOrder::block_major) {
    return unsupported_option(Option::order, static_cast<std::uint64_t>(options.order));
  }
  if (Status s = check_option(Option::window_tokens, options.window_tokens, 0, 0); !s) return s;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return check_option(Option::page_sequence_tokens, options.page_sequence_tokens, 0, kMost);
}

/// The sequences for which the page is chosen.
std::int64_t page_tokens(const KvCacheOptions& options) noexcept {
  if (options.page_sequence_tokens > 0) return options.page_sequence_tokens;
  return options.max_sequence_tokens > 0 ? options.max_sequence_tokens : kDefaultTokens;
}

}  // namespace

Result<GroupPlan> plan_groups(KvCacheOptions& options, DeviceKind kind) {
  if (Status s = check_options(options); !s) return s;
  // The kernels of a GPU read the chunked order fastest.
  const TileOrder order = kind == DeviceKind::cuda ? TileOrder::chunked : TileOrder::rows;
  Result<GroupLayout> layout = GroupLayout::create(options.groups, page_tokens(options), order);
  if (!layout) return layout.status();
  const LayerGroup& first = *std::ranges::find_if(  // the layout has seen one
      options.groups, [](const LayerGroup& group) { return group.kind != PagedKind::state; });
  options.layout = {.num_layers = layout->num_layers(),
                    .num_kv_heads = first.num_kv_heads,
                    .head_dim_k = first.head_dim_k,
                    .head_dim_v = first.head_dim_v,
                    .dtype = first.dtype,
                    .block_size_tokens = first.block_size_tokens};
  for (const LayerGroup& group : options.groups) {
    if (group.kind == PagedKind::state) continue;
    std::int32_t& smallest = options.layout.block_size_tokens;
    smallest = std::min(smallest, group.block_size_tokens);
    const std::int64_t heads = options.num_q_heads;
    if (heads < group.num_kv_heads || heads % group.num_kv_heads != 0) {
      return invalid_option(Option::num_q_heads, heads, group.num_kv_heads, kMaxQHeads);
    }
  }
  GroupPlan plan{.layout = std::move(*layout), .blocks = {}, .tables = {}};
  for (std::size_t part = 0; part < plan.layout.parts().size(); ++part) {
    const PagedBlocks& blocks = plan.layout.parts()[part].blocks;
    plan.tables.push_back(table_group(plan.layout, part));
    plan.blocks.push_back({blocks.blocks_per_page, blocks.block_bytes, plan.tables.back().kind});
  }
  for (const GroupLayout::States& states : plan.layout.states()) {
    const PagedGroup& group = plan.layout.groups()[static_cast<std::size_t>(states.group)];
    plan.blocks.push_back({states.blocks.blocks_per_page, states.blocks.block_bytes, group.kind});
    plan.tables.push_back({.kind = group.kind,
                           .rollback_tokens = group.rollback_tokens,
                           .ids_per_page = states.blocks.ids_per_page(plan.layout.page_bytes()),
                           .ids_per_block = states.blocks.ids_per_block(),
                           .num_parts = states.blocks.num_parts,
                           .mode = states.mode,
                           .keeps_for_undo = states.keeps_for_undo});
  }
  if (Status s = check_states(plan.tables, options.checkpoint_every_tokens); !s) return s;
  if (options.prefix_cache.is_on) {
    if (Status e = PrefixCache::check_groups(options.prefix_cache, plan.tables); !e) return e;
  }
  return plan;
}

TableGroup table_group(const GroupLayout& layout, std::size_t part) noexcept {
  const GroupLayout::Part& its = layout.parts()[part];
  const PagedGroup& group = layout.groups()[static_cast<std::size_t>(its.group)];
  return {.kind = group.kind,
          .block_size_tokens = group.block_size_tokens,
          .limit_tokens = group.limit_tokens,
          .rollback_tokens = group.rollback_tokens,
          .ids_per_page = its.blocks.ids_per_page(layout.page_bytes()),
          .ids_per_block = its.blocks.ids_per_block()};
}

std::int32_t attention_group(const GroupLayout& layout, std::size_t part) noexcept {
  const std::int32_t group = layout.parts()[part].group;
  return group - static_cast<std::int32_t>(std::ranges::count_if(
                     layout.states(), [group](const auto& its) { return its.group < group; }));
}

void set_visible(AttentionArgs& args, const PagedGroup& group) noexcept {
  args.window_tokens = 0;
  args.chunk_tokens = 0;
  args.sees_all = group.kind == PagedKind::cross;
  if (group.kind == PagedKind::window) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    args.window_tokens = static_cast<std::int32_t>(std::min(kMost, group.limit_tokens));
  }
  if (group.kind == PagedKind::chunk) args.chunk_tokens = group.limit_tokens;
}

cuda::AttentionShape group_shape(const BackendOptions& options, const TableGroup& table,
                                 const KvLayerView& kv) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  cuda::AttentionShape shape = cuda_shape(options, kv);
  shape.max_rows = static_cast<std::int32_t>(
      std::min(kMost, most_rows(table, options.limits.max_rows, options.limits.max_tokens)));
  shape.max_shared_rows = 0;
  return shape;
}

namespace {

/// Returns the bytes of a workspace for a layer.
Result<std::int64_t> workspace_bytes(DeviceKind kind, const BackendOptions& options,
                                     const TableGroup& table, const KvLayerView& kv) noexcept {
  if (kind == DeviceKind::cuda) return cuda::workspace_bytes(group_shape(options, table, kv));
  AttentionArgs nothing;
  nothing.kv = kv;
  nothing.num_q_heads = options.num_q_heads;
  nothing.scale = 1.0F;
  if (Status s = validate(nothing); !s) return s;
  return attention_workspace_bytes(host_limits(options, kv));
}

}  // namespace

Result<WorkspacePlan> plan_group_workspaces(DeviceKind kind, const GroupLayout& layout,
                                            const BackendOptions& options) noexcept {
  constexpr std::uint64_t kHostAlignment = 64;
  constexpr std::uint64_t kCudaAlignment = 256;
  const bool is_host = kind == DeviceKind::host;
  const std::size_t num_states = is_host ? 0 : layout.states().size();
  const auto num_groups = static_cast<std::int32_t>(layout.groups().size() - num_states);
  WorkspacePlan plan{.bytes = 0,
                     .alignment_bytes = is_host ? kHostAlignment : kCudaAlignment,
                     .count = is_host ? options.limits.steps_in_flight * num_groups : num_groups};
  for (std::size_t part = 0; part < layout.parts().size(); ++part) {
    const Result<KvLayerView> kv = layout.layer_view(reinterpret_cast<std::byte*>(kNowhere), 1,
                                                     layout.parts()[part].layout.planes()[0].layer);
    if (!kv) return kv.status();
    const Result<std::int64_t> bytes =
        workspace_bytes(kind, options, table_group(layout, part), *kv);
    if (!bytes) return bytes.status();
    plan.bytes = std::max(plan.bytes, *bytes);
  }
  if (plan.bytes == 0 && !is_host) plan.count = 0;
  return plan;
}

std::int64_t longest_tokens(const GroupPlan& groups, std::int64_t num_pages) noexcept {
  std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  for (std::size_t part = 0; part < groups.tables.size(); ++part) {
    const TableGroup& table = groups.tables[part];
    if (table.kind != PagedKind::full) continue;
    longest = std::min(longest,
                       num_pages * groups.blocks[part].blocks_per_page * table.block_size_tokens);
  }
  return longest == std::numeric_limits<std::int64_t>::max() ? kDefaultTokens : longest;
}

GroupTablesOptions group_tables_options(const GroupLayout& layout, const BackendOptions& options) {
  GroupTablesOptions tables{.limits = options.limits,
                            .max_sequences = options.max_sequences,
                            .max_sequence_tokens = options.max_sequence_tokens,
                            .parts = {},
                            .states = {}};
  for (std::size_t part = 0; part < layout.parts().size(); ++part) {
    tables.parts.push_back({table_group(layout, part), attention_group(layout, part)});
  }
  for (const GroupLayout::States& states : layout.states()) {
    const PagedGroup& group = layout.groups()[static_cast<std::size_t>(states.group)];
    tables.states.push_back(
        {states.blocks.num_parts,
         most_extras(group.rollback_tokens, options.limits.max_rows, options.limits.max_tokens,
                     options.checkpoint_every_tokens)});
  }
  return tables;
}

Status check_ids(const GroupPlan& groups, std::int64_t num_pages) noexcept {
  std::int64_t most = 0;
  for (const BlockGroup& blocks : groups.blocks) most += blocks.blocks_per_page;
  for (const TableGroup& table : groups.tables) most = std::max(most, table.ids_per_page);
  const std::int64_t largest = KvLayout::kMaxBlocks / most;
  if (num_pages >= 1 && num_pages <= largest) return {};
  return invalid_argument(Resource::num_blocks, num_pages, 1, largest);
}

std::int64_t most_blocks_per_page(const GroupPlan& groups) noexcept {
  std::int64_t most = 1;
  for (const BlockGroup& blocks : groups.blocks) {
    most = std::max<std::int64_t>(most, blocks.blocks_per_page);
  }
  return most;
}

}  // namespace kvarena
