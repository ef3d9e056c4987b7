#include "effects/tables_world.hpp"

#include "effects/tables_pool.hpp"

#include <array>
#include <deque>

namespace kvarena::test {
namespace {

using Play = void (TablesPool::*)(const TablesPool::Numbers&);

struct Kind {
  Play play;
  std::uint32_t weight;
};

// By number of kind; the two last are played with both pools.
constexpr std::array<Kind, 31> kKinds = {{
    {&TablesPool::create_sequence, 6},
    {&TablesPool::fork, 8},
    {&TablesPool::destroy, 6},
    {&TablesPool::destroy_many, 2},
    {&TablesPool::truncate, 8},
    {&TablesPool::append, 14},
    {&TablesPool::append_one_each, 8},
    {&TablesPool::reserve_capacity, 2},
    {&TablesPool::promise_capacity, 2},
    {&TablesPool::check_sequence, 8},
    {&TablesPool::hold_block, 3},
    {&TablesPool::allocate_blocks, 2},
    {&TablesPool::release_block, 4},
    {&TablesPool::publish_block, 5},
    {&TablesPool::unpublish_block, 1},
    {&TablesPool::revive_block, 5},
    {&TablesPool::quarantine, 1},
    {&TablesPool::restore, 1},
    {&TablesPool::open_ticket, 2},
    {&TablesPool::open_reader, 8},
    {&TablesPool::retire, 6},
    {&TablesPool::run_stream, 8},
    {&TablesPool::misuse, 2},
    {&TablesPool::append_and_undo, 3},
    {&TablesPool::undo_append, 3},
    {&TablesPool::settle_append, 1},
    {&TablesPool::import_sequence, 2},
    {&TablesPool::end_import, 4},
    {&TablesPool::pin, 3},
    {&TablesPool::unpin, 3},
    {&TablesPool::copy_row, 2},
}};
constexpr std::uint32_t kForeignTicket = kKinds.size();

std::array<KindWeight, kKinds.size() + 1> all_weights() {
  std::array<KindWeight, kKinds.size() + 1> weights;
  for (std::uint32_t i = 0; i < kKinds.size(); ++i) weights[i] = {i, kKinds[i].weight};
  weights.back() = {kForeignTicket, 1};
  return weights;
}

TablesPoolOptions options_of(const Program& program, PlantedBug bug) {
  static constexpr std::array<std::int32_t, 8> kBlockSizes = {4, 1, 2, 3, 5, 8, 16, 4};
  const auto& setup = program.setup;
  return {.num_blocks = 8 + setup[0] % 57,
          .block_size_tokens = kBlockSizes[setup[1] % kBlockSizes.size()],
          .watermark_blocks = setup[2] % 5 == 4 ? 2 : 0,
          .max_open_tickets = static_cast<std::int32_t>(4 + setup[3] % 8),
          .max_fence_entries = setup[4] % 4 == 3 ? 1 + setup[4] % 16 : 0,
          .max_sequences = static_cast<std::int32_t>(4 + setup[5] % 12),
          .num_streams = 2 + setup[6] % 2,
          .can_undo = setup[6] / 2 % 2 == 1,
          .bug = bug};
}

std::optional<Failure> play_without_bug(const Program& program, std::string* story) {
  return play_tables(program, story, PlantedBug::none);
}

}  // namespace

std::optional<Failure> play_tables(const Program& program, std::string* story, PlantedBug bug) {
  Story told(story);
  TablesPoolOptions options = options_of(program, bug);
  std::deque<TablesPool> pools;
  for (std::uint32_t i = 0; i <= program.setup[7] % 2; ++i) {
    options.name = i;
    pools.emplace_back(options, told);
  }
  for (const Operation& operation : program.operations) {
    // The last number's upper part chooses the pool, so that a small one means the first.
    TablesPool& pool = pools[operation.numbers[3] / 8 % pools.size()];
    if (operation.kind == kForeignTicket) {
      TablesPool& other = pools[(operation.numbers[3] / 8 + 1) % pools.size()];
      if (&other != &pool) pool.offer_foreign_ticket(operation.numbers, other);
    } else {
      (pool.*kKinds[operation.kind % kKinds.size()].play)(operation.numbers);
    }
    if (pool.failure()) return pool.failure();
  }
  for (TablesPool& pool : pools) {
    pool.finish();
    if (pool.failure()) return pool.failure();
  }
  return std::nullopt;
}

const World& tables_world() {
  static const auto kWeights = all_weights();
  static const World kWorld{"tables", kWeights, &play_without_bug};
  return kWorld;
}

}  // namespace kvarena::test
