// Blocks for tokens to come: taken at once, or promised.

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

namespace kvarena {
namespace {

Status check_capacity(SequenceId id, const Sequence& sequence, std::int64_t capacity) noexcept {
  if (sequence.import_state == ImportState::failed) {
    return failed_precondition(Resource::sequence, id.value,
                               static_cast<std::uint64_t>(ImportState::failed));
  }
  if (capacity < 0 || capacity > kMaxTokens) {
    return invalid_argument(Resource::capacity, capacity, 0, kMaxTokens);
  }
  return capacity > sequence.max_length ? too_long(id, capacity, sequence.max_length) : Status{};
}

}  // namespace

/// Uses the growth of append, but keeps the failed demand of the last append.
Status BlockTables::reserve_capacity(SequenceId id, std::int64_t capacity, Urgency urgency) {
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  Impl& t = *impl_;
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = check_capacity(id, *sequence, capacity); !s) return s;
  if (t.groups) return t.groups->reserve_capacity(id, capacity, urgency);
  t.num_new_blocks = 0;
  Impl::Growth growth = t.growth_of(id, *sequence, capacity, 0);
  if (growth.new_entries == 0) return {};
  const std::int64_t failed_append = t.failed_demand;
  const Status status = t.take_blocks(std::span(&growth, 1), urgency);
  t.failed_demand = failed_append;
  if (status) t.apply_growths(std::span(&growth, 1));
  return status;
}

Status BlockTables::promise_capacity(SequenceId id, std::int64_t capacity) {
  Impl& t = *impl_;
  const Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (Status s = check_capacity(id, *sequence, capacity); !s) return s;
  if (t.groups) return t.groups->promise_capacity(id, capacity);
  const std::int64_t missing = t.blocks_for(capacity) - sequence->table.num_entries;
  Status status = t.manager->reserve(sequence->holder, std::max<std::int64_t>(0, missing));
  if (status.code == StatusCode::exhausted) status.subject = id.value;
  return status;
}

}  // namespace kvarena
