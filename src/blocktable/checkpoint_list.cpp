#include "blocktable/checkpoint_list.hpp"

namespace kvarena {

CheckpointList::CheckpointList(std::int64_t num_records, std::int64_t num_sequences,
                               std::int64_t num_blocks)
    : records_(static_cast<std::size_t>(num_records)),
      ids_(static_cast<std::size_t>(num_records * num_blocks)),
      generations_(static_cast<std::size_t>(num_records * num_blocks)),
      first_(static_cast<std::size_t>(num_sequences)),
      num_blocks_(static_cast<std::size_t>(num_blocks)),
      num_records_(static_cast<std::int32_t>(num_records)) {}

std::int64_t CheckpointList::bytes(std::int64_t num_records, std::int64_t num_sequences,
                                   std::int64_t num_blocks) noexcept {
  const auto of_blocks =
      num_blocks * static_cast<std::int64_t>(sizeof(BlockId) + sizeof(Generation));
  return num_records * (static_cast<std::int64_t>(sizeof(Record)) + of_blocks) +
         num_sequences * static_cast<std::int64_t>(sizeof(std::int32_t));
}

std::int32_t CheckpointList::find(std::size_t slot, std::int32_t length) const noexcept {
  std::int32_t record = first_[slot];
  while (record != kNone && records_[index(record)].length != length) record = next(record);
  return record;
}

void CheckpointList::remove(std::int32_t record) noexcept {
  const Record its = records_[index(record)];
  (its.previous == kNone ? first_[its.slot] : records_[index(its.previous)].next) = its.next;
  if (its.next != kNone) records_[index(its.next)].previous = its.previous;
  (its.newer == kNone ? newest_ : records_[index(its.newer)].older) = its.older;
  (its.older == kNone ? oldest_ : records_[index(its.older)].newer) = its.newer;
  records_[index(record)].older = free_;
  free_ = record;
}

std::int32_t CheckpointList::add(std::size_t slot, std::int32_t length) noexcept {
  if (const std::int32_t known = find(slot, length); known != kNone) remove(known);
  if (free_ == kNone && untouched_ == num_records_) remove(oldest_);
  std::int32_t record = free_;
  if (record == kNone) {
    record = untouched_++;
  } else {
    free_ = records_[index(record)].older;
  }
  records_[index(record)] = {slot, length, first_[slot], kNone, kNone, newest_};
  if (first_[slot] != kNone) records_[index(first_[slot])].previous = record;
  first_[slot] = record;
  (newest_ == kNone ? oldest_ : records_[index(newest_)].newer) = record;
  newest_ = record;
  return record;
}

void CheckpointList::drop_after(std::size_t slot, std::int32_t length) noexcept {
  for (std::int32_t record = first_[slot]; record != kNone;) {
    const std::int32_t following = next(record);
    if (records_[index(record)].length > length) remove(record);
    record = following;
  }
}

}  // namespace kvarena
