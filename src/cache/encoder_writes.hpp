#pragma once

/// @file
/// Which layers of cross groups have K and V of which sequence's encoder. An encoder is written
/// once, so this lasts longer than a step: until the sequence ends, or until the step that wrote it
/// is aborted or lost. Not thread-safe. No allocation after construction.

#include "base/lazy_array.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

/// One bit for each sequence and layer with an encoder's K and V of its own.
class EncoderWrites {
 public:
  /// Whether a pool has layers of cross groups.
  static bool are_needed(const GroupLayout& layout) noexcept;
  /// Returns the bytes of host memory that it takes.
  static std::int64_t host_bytes(const GroupLayout& layout, std::int32_t max_sequences,
                                 std::int32_t max_rows) noexcept;
  /// `layout` must outlive it. Throws std::bad_alloc.
  EncoderWrites(const GroupLayout& layout, std::int32_t max_sequences, std::int32_t max_rows);

  /// A sequence was created. Nothing is written; without encoder tokens nothing is needed.
  void begin(SequenceId id, std::int32_t cross_tokens) noexcept;
  /// A sequence has the encoder of another.
  void inherit(SequenceId parent, SequenceId child) noexcept;
  /// Somebody else wrote the encoder's blocks of a part, or of all parts.
  void assume_part(SequenceId id, std::int32_t part) noexcept;
  void assume_all(SequenceId id) noexcept;

  /// A step begins with these rows. O(rows).
  void begin_batch(std::span<const AppendDemand> demands) noexcept;
  /// Step `step` wrote the layer's K and V of one sequence, or of all rows of the batch. Nothing is
  /// noted for sequences that have ended.
  void note(SequenceId id, std::int32_t layer, std::uint64_t step) noexcept;
  void note_batch(std::int32_t layer, std::uint64_t step) noexcept;
  /// Returns a sequence of the batch that has not ended since and whose encoder has no K and V in
  /// this layer, if there is one. O(rows).
  std::optional<SequenceId> lacking(std::int32_t layer, const BlockTables& tables) const noexcept;
  /// Forgets what sequences have that steps `step` or later wrote to. O(sequences).
  void forget_since(std::uint64_t step) noexcept;

 private:
  struct Encoder {
    std::uint64_t end_step;  // one behind the last step that wrote it; 0: none did
    SequenceId sequence;     // the last that took the slot; kNoSequence: it has no encoder
  };
  static std::int64_t num_words(const GroupLayout& layout) noexcept;
  std::uint64_t* bits_of(SequenceId id) noexcept;
  const std::uint64_t* bits_of(SequenceId id) const noexcept;
  Encoder& encoder_of(SequenceId id) noexcept;
  void set(SequenceId id, std::int32_t layer) noexcept;

  const GroupLayout* layout_;
  std::size_t words_;                 // of a sequence
  std::vector<std::int32_t> places_;  // by layer: its bit; -1: none
  LazyArray<std::uint64_t> bits_;     // [max_sequences, words]
  LazyArray<Encoder> encoders_;       // [max_sequences]
  std::vector<SequenceId> rows_;      // with new tokens and an encoder
};

}  // namespace kvarena
