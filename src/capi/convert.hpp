#pragma once

/// @file
/// Numbers of the C interface to enumerators of the library, and back. A number that is no
/// enumerator is refused. Pure functions.

#include "kvarena/allocator/accounts.hpp"
#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/base/dtype.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"
#include "kvarena/cache/kv_cache_options.hpp"
#include "kvarena/kvarena.h"
#include "kvarena/step/step_publisher.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvarena::capi {

/// kvarena_dtype.
Result<DType> dtype_from_c(std::int32_t number) noexcept;
/// kvarena_dtype.
std::int32_t to_c(DType dtype) noexcept;
/// kvarena_urgency; `standard` is the call's default.
Result<Urgency> urgency_from_c(std::int32_t number, Urgency standard) noexcept;
/// kvarena_urgency.
std::int32_t to_c(Urgency urgency) noexcept;

/// kvarena_eviction. Returns invalid_argument with the option.
Result<EvictionPolicy> eviction_from_c(std::int32_t number) noexcept;
/// A retention; it ends at no time when `expires_at` is 0.
RetentionHint retention_from_c(std::int32_t priority, std::int64_t expires_at) noexcept;

/// A number of 0 .. `largest` as an enumerator with the same numbers.
template <class Enum>
Result<Enum> enumerator_of(std::int32_t number, Enum largest, Resource argument) noexcept {
  const auto last = static_cast<std::int32_t>(largest);
  if (number < 0 || number > last) return invalid_argument(argument, number, 0, last);
  return static_cast<Enum>(number);
}

/// The layout's members.
Result<UniformLayoutOptions> layout_from_c(const kvarena_cache_options& options) noexcept;
/// The size's members.
PoolSize size_from_c(const kvarena_cache_options& options) noexcept;
/// kvarena_block_order.
Result<BlockOrder> order_from_c(const kvarena_cache_options& options) noexcept;
/// Groups of layers that the options of a cache borrow.
struct GroupOptions {
  std::vector<LayerGroup> groups;
  std::vector<std::vector<GroupLayer>> layers;  // by group
  std::vector<std::vector<StatePlane>> planes;  // by group
};
/// Everything but the log and the events. Zero means the default. The result borrows `groups`.
Result<KvCacheOptions> options_from_c(const kvarena_cache_options& options, GroupOptions& groups);
/// Reads the groups of the options. Returns invalid_argument (pointer, span_size, num_groups), or
/// with the member.
Status groups_from_c(const kvarena_cache_options& options, GroupOptions& groups);

/// One plane of a layer's view.
kvarena_plane to_c(const PlaneView& plane, std::int32_t block_size,
                   std::int64_t num_blocks) noexcept;
/// K and V of a layer. Returns invalid_argument for values that no layer can have.
Result<KvLayerView> view_from_c(const kvarena_plane& key, const kvarena_plane& value) noexcept;

/// Adds the counts of a pool.
void add_blocks(const BlockStats& blocks, kvarena_stats& stats) noexcept;
/// Adds the figures of tables.
void add_tables(const TableStats& tables, kvarena_stats& stats) noexcept;
/// Adds what a publication says of steps, tickets and the audit.
void add_steps(const PoolSnapshot& snapshot, kvarena_stats& stats) noexcept;

/// One holder; its purpose lives as long as the holder.
kvarena_holder_report to_c(const HolderReport& holder) noexcept;
/// An explanation.
kvarena_explanation to_c(const Explanation& explanation) noexcept;

}  // namespace kvarena::capi
