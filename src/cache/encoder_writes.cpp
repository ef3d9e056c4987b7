#include "cache/encoder_writes.hpp"

#include "blocktable/sequence_table.hpp"

#include <algorithm>

namespace kvarena {
namespace {

constexpr std::int64_t kWordBits = 64;

/// Whether the layer has K and V of an encoder of its own.
bool is_owner(const GroupLayout& layout, std::int32_t layer) noexcept {
  if (!layout.has_layer(layer) || layout.owner_of(layer) != layer) return false;
  const GroupLayout::Part& part = layout.parts()[static_cast<std::size_t>(layout.part_of(layer))];
  return layout.groups()[static_cast<std::size_t>(part.group)].kind == PagedKind::cross;
}

}  // namespace

bool EncoderWrites::are_needed(const GroupLayout& layout) noexcept { return num_words(layout) > 0; }

std::int64_t EncoderWrites::num_words(const GroupLayout& layout) noexcept {
  std::int64_t owners = 0;
  for (std::int32_t layer = 0; layer < layout.num_layers(); ++layer) {
    owners += is_owner(layout, layer) ? 1 : 0;
  }
  return (owners + kWordBits - 1) / kWordBits;
}

std::int64_t EncoderWrites::host_bytes(const GroupLayout& layout, std::int32_t max_sequences,
                                       std::int32_t max_rows) noexcept {
  const std::int64_t words = num_words(layout);
  if (words == 0) return 0;
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint64_t));
  return max_sequences * (words * kWord + static_cast<std::int64_t>(sizeof(Encoder))) +
         max_rows * static_cast<std::int64_t>(sizeof(SequenceId)) +
         layout.num_layers() * static_cast<std::int64_t>(sizeof(std::int32_t));
}

EncoderWrites::EncoderWrites(const GroupLayout& layout, std::int32_t max_sequences,
                             std::int32_t max_rows)
    : layout_(&layout),
      words_(static_cast<std::size_t>(num_words(layout))),
      places_(static_cast<std::size_t>(layout.num_layers()), -1),
      bits_(static_cast<std::size_t>(max_sequences) * words_),
      encoders_(static_cast<std::size_t>(max_sequences)) {
  std::int32_t next = 0;
  for (std::int32_t layer = 0; layer < layout.num_layers(); ++layer) {
    if (is_owner(layout, layer)) places_[static_cast<std::size_t>(layer)] = next++;
  }
  rows_.reserve(static_cast<std::size_t>(max_rows));
}

std::uint64_t* EncoderWrites::bits_of(SequenceId id) noexcept {
  return bits_.data() + SequenceTable::slot_of(id) * words_;
}
const std::uint64_t* EncoderWrites::bits_of(SequenceId id) const noexcept {
  return bits_.data() + SequenceTable::slot_of(id) * words_;
}
EncoderWrites::Encoder& EncoderWrites::encoder_of(SequenceId id) noexcept {
  return encoders_[SequenceTable::slot_of(id)];
}

void EncoderWrites::begin(SequenceId id, std::int32_t cross_tokens) noexcept {
  encoder_of(id) = {.end_step = 0, .sequence = cross_tokens > 0 ? id : kNoSequence};
  std::fill_n(bits_of(id), words_, 0);
}

void EncoderWrites::inherit(SequenceId parent, SequenceId child) noexcept {
  const Encoder& its = encoder_of(parent);
  encoder_of(child) = {.end_step = its.end_step,
                       .sequence = its.sequence == parent ? child : kNoSequence};
  std::copy_n(bits_of(parent), words_, bits_of(child));
}

void EncoderWrites::assume_part(SequenceId id, std::int32_t part) noexcept {
  for (std::int32_t layer = 0; layer < layout_->num_layers(); ++layer) {
    const bool is_its = places_[static_cast<std::size_t>(layer)] >= 0;
    if (is_its && layout_->part_of(layer) == part) set(id, layer);
  }
}

void EncoderWrites::assume_all(SequenceId id) noexcept {
  std::fill_n(bits_of(id), words_, ~std::uint64_t{0});
}

/// A row without new tokens has no attention.
void EncoderWrites::begin_batch(std::span<const AppendDemand> demands) noexcept {
  rows_.clear();
  for (const AppendDemand& demand : demands) {
    if (demand.num_tokens == 0 || encoder_of(demand.sequence).sequence == kNoSequence) continue;
    rows_.push_back(demand.sequence);
  }
}

void EncoderWrites::set(SequenceId id, std::int32_t layer) noexcept {
  const auto place = static_cast<std::size_t>(places_[static_cast<std::size_t>(layer)]);
  bits_of(id)[place / kWordBits] |= std::uint64_t{1} << (place % kWordBits);
}

void EncoderWrites::note(SequenceId id, std::int32_t layer, std::uint64_t step) noexcept {
  Encoder& its = encoder_of(id);
  if (its.sequence != id) return;
  set(id, layer);
  its.end_step = std::max(its.end_step, step + 1);
}

void EncoderWrites::note_batch(std::int32_t layer, std::uint64_t step) noexcept {
  for (const SequenceId id : rows_) note(id, layer, step);
}

/// The bit of a sequence that has ended may be that of another one by now.
std::optional<SequenceId> EncoderWrites::lacking(std::int32_t layer,
                                                 const BlockTables& tables) const noexcept {
  const auto place = static_cast<std::size_t>(places_[static_cast<std::size_t>(layer)]);
  const auto found = std::ranges::find_if(rows_, [&](SequenceId id) {
    const bool has = (bits_of(id)[place / kWordBits] >> (place % kWordBits) & 1) != 0;
    return !has && tables.info(id);
  });
  return found == rows_.end() ? std::nullopt : std::optional(*found);
}

void EncoderWrites::forget_since(std::uint64_t step) noexcept {
  for (std::size_t slot = 0; slot < encoders_.size(); ++slot) {
    if (encoders_[slot].end_step <= step) continue;
    encoders_[slot].end_step = 0;
    std::fill_n(bits_.data() + slot * words_, words_, 0);
  }
}

}  // namespace kvarena
