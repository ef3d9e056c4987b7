#include "verify/group_verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvarena::verify {
namespace {

constexpr std::size_t kMaxCheckpoints = 4096;  // of a sequence that are compared

std::size_t index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

}  // namespace

Status StateVerifier::find_layers() {
  const GroupLayout& layout = *cache_.arena().groups();
  for (std::int32_t layer = 0; layer < layout.num_layers(); ++layer) {
    if (!layout.has_state(layer)) continue;
    const auto view = cache_.state_view(layer);
    if (!view) return view.status();
    layers_.push_back({layer, *view});
  }
  return {};
}

std::vector<StateVerifier::Piece> StateVerifier::pieces_of(const StateView& view) const {
  std::vector<Piece> pieces;
  for (std::size_t p = 0; p < view.num_planes; ++p) {
    const StatePlane& plane = view.planes[p].plane;
    const std::int64_t bytes = plane.num_elements() * bytes_of(plane.dtype);
    for (std::int64_t i = 0; i * kPieceBytes < bytes; ++i) {
      const bool is_last = (i + 1) * kPieceBytes >= bytes;
      if (mode_ == AttentionMode::sample && i % kSampledPiece != 0 && !is_last) continue;
      pieces.push_back({p, i * kPieceBytes, std::min(kPieceBytes, bytes - i * kPieceBytes)});
    }
  }
  return pieces;
}

// ---- content -----------------------------------------------------------------------------------

void StateVerifier::fill(const Layer& layer, const State& state, const Piece& piece,
                         std::byte* out) const {
  if (state.length == 0) {
    std::memset(out, 0, index(piece.bytes));
    return;
  }
  // Each piece of each plane is a row of its own. Only the bytes matter, so any type will do.
  constexpr std::int32_t kPlanes = static_cast<std::int32_t>(StateView::kMaxPlanes);
  const auto number = static_cast<std::int32_t>(piece.offset / kPieceBytes) * kPlanes +
                      static_cast<std::int32_t>(piece.plane);
  std::byte row[kPieceBytes];
  fill_row(DType::bf16, state.hash, layer.layer, RowKind::value, number,
           static_cast<std::int32_t>(kPieceBytes / bytes_of(DType::bf16)), row);
  std::memcpy(out, row, index(piece.bytes));
}

MaybeFailure StateVerifier::compare(const Layer& layer, const State& state,
                                    VerificationReport& report) {
  const std::vector<Piece> pieces = pieces_of(layer.view);
  found_.resize(pieces.size() * index(kPieceBytes));
  const std::byte* const base = layer.view.base + state.slot * layer.view.slot_stride;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::byte* const from = base + layer.view.planes[pieces[i].plane].offset;
    const Status read = bytes_.read(found_.data() + i * index(kPieceBytes), from + pieces[i].offset,
                                    pieces[i].bytes);
    if (!read) return unexpected("copy", read);
  }
  if (cache_.device().kind() != DeviceKind::host) {
    if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
  }
  wanted_.resize(index(kPieceBytes));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    fill(layer, state, pieces[i], wanted_.data());
    const std::byte* const found = found_.data() + i * index(kPieceBytes);
    report.state_bytes_compared += pieces[i].bytes;
    if (std::memcmp(found, wanted_.data(), index(pieces[i].bytes)) == 0) continue;
    return wrong_byte(layer, state, pieces[i], found, wanted_.data(), report);
  }
  return std::nullopt;
}

MaybeFailure StateVerifier::write(const Layer& layer, const State& state,
                                  VerificationReport& report) {
  const std::vector<Piece> pieces = pieces_of(layer.view);
  wanted_.resize(pieces.size() * index(kPieceBytes));
  std::byte* const base = layer.view.base + state.slot * layer.view.slot_stride;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::byte* const from = wanted_.data() + i * index(kPieceBytes);
    fill(layer, state, pieces[i], from);
    std::byte* const to = base + layer.view.planes[pieces[i].plane].offset + pieces[i].offset;
    if (Status s = bytes_.write(to, from, pieces[i].bytes); !s) return unexpected("copy", s);
    report.state_bytes_written += pieces[i].bytes;
  }
  // The pieces are used again.
  if (cache_.device().kind() == DeviceKind::host) return std::nullopt;
  const Status done = bytes_.synchronize();
  return done ? MaybeFailure{} : unexpected("synchronize", done);
}

MaybeFailure StateVerifier::wrong_byte(const Layer& layer, const State& state, const Piece& piece,
                                       const std::byte* found, const std::byte* wanted,
                                       VerificationReport& report) const {
  ++report.failures;
  const auto at = std::mismatch(found, found + piece.bytes, wanted).first - found;
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format("the state of request {} sample {} after {} tokens, layer {}, plane "
                            "{}, byte {} is {:#04x} (slot {})",
                            state.sequence->stream.owner(), state.sequence->stream.sample(),
                            state.length, layer.layer, piece.plane, piece.offset + at,
                            static_cast<unsigned>(found[at]), state.slot),
       .expected = fmt::format("{:#04x}, what was written after that token",
                               static_cast<unsigned>(wanted[at])),
       .advice = "a state was overwritten, not copied or served stale; report it"}};
}

// ---- a step ------------------------------------------------------------------------------------

MaybeFailure StateVerifier::verify_row(const StateSlots& slots, const StepRow& row,
                                       std::size_t number, std::uint64_t before,
                                       std::span<const std::uint64_t> hashes,
                                       VerificationReport& report) {
  const std::int64_t old_length = row.sequence->length - row.tokens;
  const auto parts = static_cast<std::int32_t>(cache_.arena().groups()->parts().size());
  const std::int32_t group = slots.group - parts;  // among those of states
  const auto slot_of = [&](std::span<const std::int32_t> list, std::size_t of, std::int32_t part) {
    return list[of * index(slots.num_parts) + index(part)];
  };
  for (const Layer& layer : layers_) {
    if (layer.view.group != group) continue;
    State state{row.sequence, old_length, before, slot_of(slots.read, number, layer.view.part)};
    if (state.slot < 0 && old_length > 0) {
      ++report.failures;
      return Failure{RunEnd::check_failed,
                     {.found = fmt::format("the step reads no state of request {} sample {}, which "
                                           "has {} tokens (layer {})",
                                           row.sequence->stream.owner(),
                                           row.sequence->stream.sample(), old_length, layer.layer),
                      .expected = "the slot of the state after them",
                      .advice = "a state was lost; report it"}};
    }
    if (state.slot >= 0) {
      if (auto failure = compare(layer, state, report)) return failure;
    }
    if (row.tokens == 0) continue;
    state.length = row.sequence->length;
    state.hash = hashes.back();
    state.slot = slot_of(slots.write, number, layer.view.part);
    if (auto failure = write(layer, state, report)) return failure;
    for (std::int32_t e = slots.extra_offsets[number]; e < slots.extra_offsets[number + 1]; ++e) {
      const std::int32_t token = slots.extra_tokens[index(e)];
      state.length = old_length + token + 1;
      state.hash = hashes[index(token)];
      state.slot = slot_of(slots.extra_slots, index(e), layer.view.part);
      if (auto failure = write(layer, state, report)) return failure;
    }
  }
  return std::nullopt;
}

MaybeFailure StateVerifier::verify_step(std::span<const StepRow> rows,
                                        std::span<const StateSlots> states,
                                        std::span<const std::uint64_t> before,
                                        std::span<const std::uint64_t> hashes,
                                        VerificationReport& report) {
  // Copies of states have been made then.
  if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
  for (const StateSlots& slots : states) {
    std::size_t first = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto count = static_cast<std::size_t>(rows[r].tokens);
      if (auto failure =
              verify_row(slots, rows[r], r, before[r], hashes.subspan(first, count), report)) {
        return failure;
      }
      first += count;
    }
  }
  return std::nullopt;
}

// ---- a sequence --------------------------------------------------------------------------------

MaybeFailure StateVerifier::check_at(const WrittenSequence& sequence, std::int64_t length,
                                     std::uint64_t hash, std::int32_t group,
                                     VerificationReport& report) {
  const GroupLayout& layout = *cache_.arena().groups();
  const PagedBlocks& its = layout.states()[index(group)].blocks;
  const auto table = static_cast<std::int32_t>(layout.parts().size()) + group;
  blocks_.resize(index(its.num_parts));
  generations_.resize(blocks_.size());
  const auto count =
      cache_.tables().state_blocks(sequence.sequence, length, table, blocks_, generations_);
  if (!count) return unexpected("state_blocks", count.status());
  for (const Layer& layer : layers_) {
    if (layer.view.group != group) continue;
    const BlockPlace place = cache_.manager().place_of(blocks_[index(layer.view.part)]);
    const auto slot = static_cast<std::int32_t>(place.page * its.ids_per_page(layout.page_bytes()) +
                                                place.slot * its.ids_per_block());
    if (auto failure = compare(layer, {&sequence, length, hash, slot}, report)) return failure;
  }
  return std::nullopt;
}

MaybeFailure StateVerifier::check_sequence(const WrittenSequence& sequence,
                                           std::span<const std::uint64_t> hashes,
                                           VerificationReport& report) {
  if (layers_.empty() || hashes.empty()) return std::nullopt;
  if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
  lengths_.resize(kMaxCheckpoints);
  const auto kept = cache_.tables().checkpoints_of(sequence.sequence, lengths_);
  if (!kept) return unexpected("checkpoints_of", kept.status());
  lengths_.resize(index(*kept));
  if (lengths_.empty() || lengths_.back() != std::ssize(hashes)) {
    lengths_.push_back(std::ssize(hashes));
  }
  const auto num_groups = static_cast<std::int32_t>(cache_.arena().groups()->states().size());
  for (std::int32_t group = 0; group < num_groups; ++group) {
    for (const std::int64_t length : lengths_) {
      if (auto failure = check_at(sequence, length, hashes[index(length) - 1], group, report)) {
        return failure;
      }
    }
  }
  return std::nullopt;
}

}  // namespace kvarena::verify
