#pragma once

/// @file
/// Questions that caches and pools answer alike. `Owner` is what explains: the tables of a cache,
/// or the manager of a pool.

#include "capi/convert.hpp"
#include "capi/structs.hpp"

#include "kvarena/allocator/block_manager.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::capi {

/// A question about blocks, as a caller asks it.
struct Question {
  const kvarena_status* refused;
  std::int64_t blocks;
  std::int32_t urgency;
};

/// Explains a refused call, or whether blocks can be had.
template <class Owner>
Result<Explanation> explanation_of(const Owner& owner, const Question& question) {
  if (question.refused != nullptr) {
    const Status refused = from_c(*question.refused);
    const bool is_explained =
        refused.code == StatusCode::exhausted &&
        (refused.resource == Resource::block || refused.resource == Resource::reservation);
    if (!is_explained) {
      return invalid_argument(Resource::memory_check, question.refused->code, KVARENA_EXHAUSTED,
                              KVARENA_EXHAUSTED);
    }
    return owner.explain(refused);
  }
  const Result<Urgency> urgency = urgency_from_c(question.urgency, Urgency::growth);
  if (!urgency) return urgency.status();
  if (question.blocks < 0) {
    return invalid_argument(Resource::num_blocks, question.blocks, 0, INT64_MAX);
  }
  return owner.explain(question.blocks, *urgency);
}

/// Writes the text that `render` makes of an explanation.
template <class Owner, class Render>
Status write_explanation(const Owner& owner, const Question& question, const TextTarget& target,
                         Render&& render) {
  if (Status s = target.check(); !s) return s;
  const Result<Explanation> explanation = explanation_of(owner, question);
  if (!explanation) return explanation.status();
  target.write(render(*explanation));
  return {};
}

/// Says whether blocks can be had.
inline Status write_can_allocate(const BlockManager& manager, std::int64_t blocks,
                                 std::int32_t urgency, bool* can) noexcept {
  if (can == nullptr) return refused_null();
  const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
  if (!chosen) return chosen.status();
  if (blocks < 0) return invalid_argument(Resource::num_blocks, blocks, 0, INT64_MAX);
  *can = manager.can_allocate(blocks, *chosen);
  return {};
}

/// Writes what is available now, and after a ticket.
inline void write_available(const BlockManager& manager, kvarena_ticket ticket, std::int64_t* now,
                            std::int64_t* after) noexcept {
  if (now != nullptr) *now = manager.available_now();
  if (after != nullptr) *after = manager.available_after(Ticket(ticket));
}

/// Writes all holders, by id.
inline Status write_holders(const BlockManager& manager, kvarena_holder_report* reports,
                            std::size_t room, std::size_t* count) {
  if (count == nullptr || (reports == nullptr && room > 0)) return refused_null();
  const auto existing = static_cast<std::size_t>(manager.stats().holders);
  const std::vector<HolderReport> holders = manager.holders();
  if (holders.size() != existing) return exhausted(Resource::host_memory, 0, 0);
  *count = existing;
  if (existing > room) return too_small(room, existing);
  for (const HolderReport& holder : holders) *reports++ = to_c(holder);
  return {};
}

/// Reads one block.
inline Status write_block(const BlockManager& manager, std::int32_t block,
                          kvarena_block_info* info) noexcept {
  if (Status s = check_target(info); !s) return s;
  if (block < 0 || block >= manager.num_blocks()) {
    return not_found(Resource::block, static_cast<std::uint64_t>(block));
  }
  const BlockId id(block);
  kvarena_block_info result{};
  result.generation = manager.generation(id).value;
  result.reference_count = manager.reference_count(id);
  result.claims = manager.claims(id);
  result.state = static_cast<std::int32_t>(manager.state(id));
  result.content = static_cast<std::int32_t>(manager.content(id));
  const RetentionHint retention = manager.retention(id);
  result.priority = retention.priority;
  result.expires_at = retention.expires_at == RetentionHint::kNever ? 0 : retention.expires_at;
  write_struct(result, info);
  return {};
}

}  // namespace kvarena::capi
