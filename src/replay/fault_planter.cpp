#include "replay/fault_planter.hpp"

#include <utility>

namespace kvarena::replay {

// Between the device's memory and the host's, behind all work and before any other.
void FaultPlanter::copy(void* target, const void* source, std::int64_t bytes) {
  KvCache& cache = *pool_.cache();
  static_cast<void>(cache.synchronize());
  static_cast<void>(
      pool_.device().copy(target, source, static_cast<std::uint64_t>(bytes), cache.home_stream()));
  static_cast<void>(cache.synchronize());
}

bool FaultPlanter::is_due() { return !planted_ && skip_-- <= 0; }

void FaultPlanter::before_append(std::span<const AppendDemand> demands) {
  if (fault_ != Fault::drop_copy || planted_) return;
  const Arena& arena = pool_.cache()->arena();
  copier_ = kNoSequence;
  for (const AppendDemand& demand : demands) {
    const auto info = pool_.tables().info(demand.sequence);
    if (!info || info->length_tokens % pool_.block_size() == 0) continue;
    copied_index_ = info->length_tokens / pool_.block_size();
    shared_block_ = *pool_.tables().lookup(demand.sequence, copied_index_);
    if (pool_.manager().reference_count(shared_block_) < 2) continue;
    copier_ = demand.sequence;
    before_.resize(static_cast<std::size_t>(arena.bytes()));
    copy(before_.data(), arena.base(), arena.bytes());
    return;
  }
}

void FaultPlanter::after_append() {
  if (fault_ != Fault::drop_copy || copier_ == kNoSequence) return;
  const auto target = pool_.tables().lookup(std::exchange(copier_, kNoSequence), copied_index_);
  if (!target || *target == shared_block_ || !is_due()) return;
  planted_ = true;
  // As if the copy had not been done: the target holds what it held before.
  const Arena& arena = pool_.cache()->arena();
  const std::int64_t bytes = arena.layout().block_bytes();
  const std::int64_t offset = target->value * bytes;
  copy(arena.base() + offset, before_.data() + offset, bytes);
}

void FaultPlanter::flip_byte(const Job& job) {
  const Arena& arena = pool_.cache()->arena();
  const BlockId first = *pool_.tables().lookup(job.sequence, 0);
  std::byte* const address = arena.address(first, 0, PlaneKind::key);
  std::byte byte{};
  copy(&byte, address, 1);
  byte ^= std::byte{1};
  copy(address, &byte, 1);
}

bool FaultPlanter::swap_entries(const Job& job) {
  const auto info = pool_.tables().info(job.sequence);
  if (!info || info->length_tokens <= pool_.block_size()) return false;
  static_cast<void>(pool_.cache()->synchronize());
  auto& tables = const_cast<BlockTables&>(pool_.tables());
  const auto view = tables.view({&job.sequence, 1});
  if (!view) return false;
  const BlockId first = view->tables.block(0, 0);
  const BlockId second = view->tables.block(0, 1);
  auto* entries = const_cast<BlockId*>(view->tables.entries);
  const std::int64_t page = view->tables.pages == nullptr
                                ? view->tables.row_offsets[0]
                                : std::int64_t{view->tables.pages[view->tables.row_offsets[0]]}
                                      << view->tables.page_shift;
  entries[page] = second;
  entries[page + 1] = first;
  return true;
}

void FaultPlanter::between_steps(std::span<const std::unique_ptr<Job>> running) {
  if (fault_ != Fault::flip_byte && fault_ != Fault::swap_entries) return;
  for (const auto& job : running) {
    if (job->length == 0 || !is_due()) continue;
    if (fault_ == Fault::flip_byte) flip_byte(*job);
    planted_ = fault_ == Fault::flip_byte || swap_entries(*job);
    return;
  }
}

void FaultPlanter::before_destroy(const Job& job) {
  if (fault_ != Fault::lose_release || job.length == 0 || !is_due()) return;
  planted_ = true;
  // A fork that nobody ends: its reference to the first block is the release that was lost.
  static_cast<void>(pool_.fork(job.sequence, 1));
}

}  // namespace kvarena::replay
