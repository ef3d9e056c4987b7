// Imports: sequences whose tokens others write.

#include "base/range_checks.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <utility>

namespace kvarena {
namespace {

Status check_length(std::int64_t num_tokens, const SequenceOptions& options) noexcept {
  if (Status s = check_option(Option::max_length_tokens, options.max_length_tokens, 0, kMaxTokens);
      !s) {
    return s;
  }
  if (num_tokens < 0 || num_tokens > kMaxTokens) {
    return invalid_argument(Resource::num_tokens, num_tokens, 0, kMaxTokens);
  }
  if (options.max_length_tokens == 0 || num_tokens <= options.max_length_tokens) return {};
  return {StatusCode::context_length_exceeded,
          Resource::sequence_length,
          Option::none,
          0,
          0,
          static_cast<std::uint64_t>(num_tokens),
          static_cast<std::uint64_t>(options.max_length_tokens)};
}

}  // namespace

/// Sets what is known of the blocks that hold the sequence's tokens. The sequence holds them, and
/// the caller has checked the change, so this cannot fail.
void BlockTables::Impl::set_content(const Sequence& sequence, BlockContent content) {
  for (std::int32_t i = 0; i < sequence.filled_blocks; ++i) {
    const BlockId id = sequence.table.id_at(std::as_const(pages), i);
    const bool is_others =
        content == BlockContent::unwritten && manager->content(id) != BlockContent::being_written;
    if (is_others) continue;  // somebody else has published it since
    static_cast<void>(manager->set_content(id, sequence.table.generation_at(pages, i), content));
  }
}

Status BlockTables::Impl::check_filling(SequenceId id, const Sequence* sequence) const noexcept {
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (sequence->import_state == ImportState::filling) return {};
  return failed_precondition(Resource::sequence, id.value,
                             static_cast<std::uint64_t>(sequence->import_state));
}

/// Everything is checked before a holder is registered, so that a refused import changes nothing.
Result<SequenceId> BlockTables::import_sequence(std::int64_t num_tokens,
                                                const SequenceOptions& options, Urgency urgency) {
  Impl& t = *impl_;
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  if (Status s = check_length(num_tokens, options); !s) return s;
  if (Status s = check_option(Option::cross_tokens, options.cross_tokens, 0, t.max_cross_tokens);
      !s) {
    return s;
  }
  if (Status s = t.check_prefix_options(options, Impl::Origin::imported); !s) return s;
  if (t.groups) return t.groups->import_sequence(num_tokens, options, urgency);
  const std::int64_t num_blocks = t.blocks_for(num_tokens);
  if (t.sequences.is_full()) return exhausted(Resource::sequence, 1, 0, 0, Option::max_sequences);
  if (Status s = t.manager->check_available(num_blocks, urgency); !s) return s;
  if (Status s = t.check_pages_of_new(num_blocks, 0); !s) return s;
  const Result<SequenceId> id = t.insert(options, 0);
  if (!id) return id;
  Sequence& sequence = *t.sequences.find(*id);
  t.num_new_blocks = 0;
  Impl::Growth growth = t.growth_of(*id, sequence, num_tokens, 0);
  static_cast<void>(t.take_blocks(std::span(&growth, 1), urgency));  // they can be had
  t.apply_growths(std::span(&growth, 1));
  sequence.length = static_cast<std::int32_t>(num_tokens);
  sequence.filled_blocks = sequence.table.num_entries;
  sequence.import_state = ImportState::filling;
  t.tokens += num_tokens;
  t.place_tail(sequence);
  t.set_content(sequence, BlockContent::being_written);
  return id;
}

Status BlockTables::publish_import(SequenceId id) {
  Impl& t = *impl_;
  Sequence* sequence = t.sequences.find(id);
  if (Status s = t.check_filling(id, sequence); !s) return s;
  if (t.groups) return t.groups->publish_import(id);
  for (std::int32_t i = 0; i < sequence->filled_blocks; ++i) {
    const BlockId block = sequence->table.id_at(std::as_const(t.pages), i);
    if (t.manager->content(block) != BlockContent::failed) continue;
    return failed_precondition(Resource::block, static_cast<std::uint64_t>(block.value));
  }
  t.set_content(*sequence, BlockContent::unwritten);
  sequence->import_state = ImportState::none;
  return {};
}

Status BlockTables::fail_import(SequenceId id) {
  Impl& t = *impl_;
  Sequence* sequence = t.sequences.find(id);
  if (Status s = t.check_filling(id, sequence); !s) return s;
  if (t.groups) return t.groups->fail_import(id);
  t.set_content(*sequence, BlockContent::failed);
  sequence->import_state = ImportState::failed;
  return {};
}

}  // namespace kvarena
