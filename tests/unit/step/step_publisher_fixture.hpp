#pragma once

/// @file
/// A pool with a publisher, and what its tests do with it.

#include "support/manual_clock.hpp"

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <cstdint>

namespace kvarena::test {

/// Manager, tables, publisher and a clock that stands still. Blocks of 4 tokens.
struct PublishedPool {
  explicit PublishedPool(std::int64_t num_blocks, std::int64_t audit_blocks = 4,
                         std::int32_t max_sequences = 8, std::int32_t max_open_tickets = 4)
      : manager(BlockManager::create({.num_blocks = num_blocks,
                                      .max_holders = max_sequences,
                                      .max_open_tickets = max_open_tickets})
                    .value()),
        tables(
            BlockTables::create(manager, {.block_size_tokens = 4, .max_sequences = max_sequences})
                .value()),
        publisher(
            StepPublisher::create(manager, tables, {.audit_blocks = audit_blocks, .clock = &clock})
                .value()) {}

  /// A sequence of that many tokens.
  SequenceId add(std::int32_t num_tokens) {
    const SequenceId sequence = tables.create_sequence().value();
    const AppendDemand demand{sequence, num_tokens};
    static_cast<void>(tables.append({&demand, 1}).value());
    return sequence;
  }
  /// The next publication, a nanosecond later.
  PoolSnapshot publish() {
    clock.advance(1);
    publisher.publish({.steps_ended = ++step});
    return publisher.snapshot();
  }

  ManualClock clock;
  BlockManager manager;
  BlockTables tables;
  StepPublisher publisher;
  std::uint64_t step = 0;
};

}  // namespace kvarena::test
