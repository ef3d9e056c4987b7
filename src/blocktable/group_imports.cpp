// Blocks of groups that others fill, keep or found: imports, and sequences that begin with
// cached blocks.

#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"

#include "base/range_checks.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

using ByGroup = std::array<std::int64_t, kMaxBlockGroups>;

}  // namespace

/// Sets what is known of the blocks that hold the sequence's tokens. The caller has checked the
/// change, so this cannot fail.
void BlockTables::Impl::Groups::set_content(SequenceId id, BlockContent content) {
  const std::span<const Table> its = tables_of(id);
  for (std::size_t g = 0; g < size(); ++g) {
    for (std::int32_t i = its[g].first_held; i < its[g].tree.num_entries; ++i) {
      const BlockId block = its[g].tree.id_at(std::as_const(t.pages), i);
      const bool is_others = content == BlockContent::unwritten &&
                             t.manager->content(block) != BlockContent::being_written;
      if (is_others) continue;  // somebody else has published it since
      static_cast<void>(
          t.manager->set_content(block, its[g].tree.generation_at(t.pages, i), content));
    }
  }
}

/// The options have been checked. Everything is checked before a holder is registered, so that a
/// refused import changes nothing.
Result<SequenceId> BlockTables::Impl::Groups::import_sequence(std::int64_t num_tokens,
                                                              const SequenceOptions& options,
                                                              Urgency urgency) {
  ByGroup first{};
  ByGroup end{};
  std::int64_t num_pages = 0;
  for (std::size_t g = 0; g < size(); ++g) {
    const Group& group = list[g];
    end[g] = blocks_for(group, group.is_cross ? options.cross_tokens : num_tokens);
    if (group.is_state) end[g] = num_tokens > 0 ? states->find(g)->parts : 0;
    if (group.grows() && num_tokens > 0) {
      first[g] = group.first_kept(num_tokens);
    }
    num_pages += (end[g] - first[g] + group.blocks_per_page - 1) / group.blocks_per_page;
  }
  if (t.sequences.is_full()) return exhausted(Resource::sequence, 1, 0, 0, Option::max_sequences);
  if (Status s = t.manager->check_available(num_pages, urgency); !s) return s;
  if (Status s = check_new_tables(first, end, 0); !s) return s;
  const Result<SequenceId> id = insert(options, 0);
  if (!id) return id;
  Sequence& s = *t.sequences.find(*id);
  std::array<HolderDemand, kMaxBlockGroups> wanted;
  std::size_t count = 0;
  for (std::size_t g = 0; g < size(); ++g) {
    wanted[g] = {.holder = s.holder,
                 .count = static_cast<std::uint32_t>(end[g] - first[g]),
                 .group = static_cast<std::int32_t>(g)};
    count += wanted[g].count;
  }
  static_cast<void>(t.manager->allocate_each(  // the pages can be had
      std::span(wanted.data(), size()), std::span(t.new_ids.data(), count),
      std::span(t.new_generations.data(), count), urgency));
  note_evictions(s.id);
  std::size_t next = 0;
  for (std::size_t g = 0; g < size(); ++g) {
    if (wanted[g].count == 0) continue;
    Table& table = tables_of(*id)[g];
    table.first_held = static_cast<std::int32_t>(first[g]);
    table.tree.append_absent(t.pages, table.first_held);
    if (list[g].grows()) end_slots += first[g] * list[g].block_size;
    add_blocks(table, g, t.new_ids.data() + next, t.new_generations.data() + next, wanted[g].count);
    next += wanted[g].count;
  }
  s.length = static_cast<std::int32_t>(num_tokens);
  s.import_state = ImportState::filling;
  if (states) states->note_first(*id, num_tokens);
  t.tokens += num_tokens;
  place_tails(s);
  note_release(s);
  set_content(*id, BlockContent::being_written);
  return id;
}

/// The import waits.
Status BlockTables::Impl::Groups::publish_import(SequenceId id) {
  Status failed;
  for (const Table& table : tables_of(id)) {
    for_each_run(table, [&](std::span<const BlockId> ids) {
      for (const BlockId block : ids) {
        if (!failed || t.manager->content(block) != BlockContent::failed) continue;
        failed = failed_precondition(Resource::block, static_cast<std::uint64_t>(block.value));
      }
    });
  }
  if (!failed) return failed;
  set_content(id, BlockContent::unwritten);
  t.sequences.find(id)->import_state = ImportState::none;
  return {};
}

Status BlockTables::Impl::Groups::fail_import(SequenceId id) {
  set_content(id, BlockContent::failed);
  t.sequences.find(id)->import_state = ImportState::failed;
  return {};
}

// ---- blocks that are found ---------------------------------------------------------------------

namespace {

/// Checks the blocks of one group for a sequence that begins at a length: they end with its last
/// token and begin where it needs them.
Status check_blocks(const GroupBlocks& blocks, std::int64_t first_needed, std::int64_t end) {
  const auto count = static_cast<std::int64_t>(blocks.ids.size());
  const auto generations = static_cast<std::int64_t>(blocks.generations.size());
  if (generations != count) {
    return invalid_argument(Resource::span_size, generations, count, count);
  }
  if (end == 0 && count == 0) return {};
  if (blocks.first_block < 0 || blocks.first_block > first_needed) {
    return invalid_argument(Resource::block_index, blocks.first_block, 0, first_needed);
  }
  if (count == end - blocks.first_block) return {};
  return invalid_argument(Resource::num_blocks, count, end - blocks.first_block,
                          end - blocks.first_block);
}

/// Returns the blocks from number `first` on.
GroupBlocks blocks_from(const GroupBlocks& blocks, std::int64_t first) {
  if (blocks.ids.empty()) return blocks;
  const auto skipped = static_cast<std::size_t>(first - blocks.first_block);
  return {first, blocks.ids.subspan(skipped), blocks.generations.subspan(skipped)};
}

}  // namespace

/// Returns whether blocks lie in pages of this group, so far as they are blocks of the pool.
Status BlockTables::Impl::Groups::check_groups_of(std::span<const BlockId> ids,
                                                  std::size_t g) const noexcept {
  const auto own = static_cast<std::int64_t>(g);
  for (const BlockId id : ids) {
    if (id.value < 0 || id.value >= t.manager->num_blocks()) continue;  // retain refuses it
    const std::int64_t its = t.manager->place_of(id).group;
    if (its != own) return invalid_option(Option::groups, its, own, own);
  }
  return {};
}

/// Returns whether blocks may be read: they are of no import that waits or has failed. Registered
/// blocks that are not published are being written, too, by the step.
Status BlockTables::Impl::Groups::check_readable(const GroupBlocks& blocks,
                                                 std::size_t g) const noexcept {
  for (std::size_t i = 0; i < blocks.ids.size(); ++i) {
    const BlockId id = blocks.ids[i];
    if (id.value < 0 || id.value >= t.manager->num_blocks()) continue;  // retain refuses it
    if (t.manager->generation(id) != blocks.generations[i]) continue;   // and this one
    const BlockContent content = t.manager->content(id);
    const bool is_registered =
        t.prefix != nullptr &&
        t.prefix->node_of(id, blocks.generations[i], g != registered) != kNoBlock;
    if (content != BlockContent::failed &&
        (content != BlockContent::being_written || is_registered)) {
      continue;
    }
    return failed_precondition(Resource::block, static_cast<std::uint64_t>(id.value));
  }
  return {};
}

/// Checks that the sequence's salt and extra keys are those of what the prefix cache knows of these
/// blocks.
Status BlockTables::Impl::Groups::check_tenants(const GroupBlocks& blocks, std::size_t g,
                                                std::int64_t length,
                                                const SequenceOptions& options) const noexcept {
  if (t.prefix == nullptr) return {};
  BlockId agreed = kNoBlock;
  for (std::size_t i = 0; i < blocks.ids.size(); ++i) {
    const BlockId node = t.prefix->node_of(blocks.ids[i], blocks.generations[i], g != registered);
    if (node == kNoBlock) continue;
    const std::int64_t number = list[g].grows() ? blocks.first_block + static_cast<std::int64_t>(i)
                                                : length / list[registered].block_size - 1;
    if (Status s = t.prefix->check_tenant(node, number, agreed, length, options); !s) return s;
    agreed = node;
  }
  return {};
}

/// Takes references on the blocks of all groups in one call: a refused one changes nothing, not
/// even which blocks are evicted next.
Status BlockTables::Impl::Groups::retain_all(HolderId holder, std::span<const GroupBlocks> given) {
  std::size_t count = 0;
  for (const GroupBlocks& its : given) {
    if (its.ids.size() > t.new_ids.size() - count) {  // some are named twice
      const auto most = static_cast<std::int64_t>(t.new_ids.size());
      return invalid_argument(Resource::num_blocks, most + 1, 0, most);
    }
    std::ranges::copy(its.ids, t.new_ids.data() + count);
    std::ranges::copy(its.generations, t.new_generations.data() + count);
    count += its.ids.size();
  }
  if (count == 0) return {};
  return t.manager->retain(holder, {t.new_ids.data(), count}, {t.new_generations.data(), count});
}

/// Blocks of an encoder may be left out: they come with the first append then.
Result<SequenceId> BlockTables::Impl::Groups::create_from(std::int64_t length,
                                                          std::span<const GroupBlocks> blocks,
                                                          const SequenceOptions& options) {
  const auto expected = static_cast<std::int64_t>(size());
  if (std::ssize(blocks) != expected) {
    return invalid_argument(Resource::num_groups, std::ssize(blocks), expected, expected);
  }
  ByGroup first{};
  ByGroup end{};
  for (std::size_t g = 0; g < size(); ++g) {
    const Group& group = list[g];
    end[g] = blocks_for(group, group.is_cross ? options.cross_tokens : length);
    if (group.is_cross && blocks[g].ids.empty()) end[g] = 0;
    if (group.is_state) end[g] = length > 0 ? states->find(g)->parts : 0;
    const std::int64_t needed =
        group.grows() ? oldest_needed(group.retention, length) / group.block_size : 0;
    if (Status s = check_blocks(blocks[g], needed, end[g]); !s) return s;
    if (Status s = check_groups_of(blocks[g].ids, g); !s) return s;
    if (Status s = check_tenants(blocks[g], g, length, options); !s) return s;
    if (Status s = check_readable(blocks[g], g); !s) return s;
    if (end[g] == 0) continue;
    // Blocks in front of those that a sequence of this length keeps are not taken.
    const std::int64_t own = group.grows() && length > 0 ? group.first_kept(length) : 0;
    first[g] = std::max(blocks[g].first_block, own);
  }
  if (Status s = check_new_tables(first, end, 0); !s) return s;
  const Result<SequenceId> id = insert(options, 0);
  if (!id) return id;
  Sequence& s = *t.sequences.find(*id);
  std::array<GroupBlocks, kMaxBlockGroups> given;
  for (std::size_t g = 0; g < size(); ++g) given[g] = blocks_from(blocks[g], first[g]);
  if (Status status = retain_all(s.holder, std::span(given.data(), size())); !status) {
    static_cast<void>(destroy_many(std::span(&*id, 1), kNoTicket));
    --t.sequences_ever;
    return status;
  }
  const std::span<Table> its = tables_of(*id);
  for (std::size_t g = 0; g < size(); ++g) {
    const GroupBlocks& from = given[g];
    if (from.ids.empty()) continue;
    its[g].first_held = static_cast<std::int32_t>(first[g]);
    its[g].tree.append_absent(t.pages, its[g].first_held);
    if (list[g].grows()) end_slots += first[g] * list[g].block_size;
    add_blocks(its[g], g, from.ids.data(), from.generations.data(), std::ssize(from.ids));
  }
  s.length = static_cast<std::int32_t>(length);
  t.tokens += length;
  if (states) states->note_first(*id, length);
  place_tails(s);
  note_release(s);
  return id;
}

}  // namespace kvarena
