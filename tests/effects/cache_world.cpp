#include "effects/cache_world.hpp"

#include "effects/cache_site.hpp"

#include <array>
#include <deque>

namespace kvarena::test {
namespace {

using Play = void (CacheSite::*)(const CacheSite::Numbers&);
using PlayWithOther = void (CacheSite::*)(const CacheSite::Numbers&, const CacheSite&);

struct Kind {
  Play play;
  std::uint32_t weight;
};

// By number of kind; those of kWithOther follow.
constexpr std::array<Kind, 34> kKinds = {{
    {&CacheSite::create_sequence, 5},
    {&CacheSite::fork, 7},
    {&CacheSite::destroy, 6},
    {&CacheSite::destroy_many, 2},
    {&CacheSite::truncate, 7},
    {&CacheSite::reserve_capacity, 2},
    {&CacheSite::promise_capacity, 2},
    {&CacheSite::begin_step, 5},
    {&CacheSite::step, 16},
    {&CacheSite::append, 3},
    {&CacheSite::append_with_failure, 2},
    {&CacheSite::write, 2},
    {&CacheSite::attend, 1},
    {&CacheSite::abort_step, 4},
    {&CacheSite::publish, 2},
    {&CacheSite::check_sequence, 8},
    {&CacheSite::open_reader, 8},
    {&CacheSite::open_long_reader, 4},
    {&CacheSite::retire, 4},
    {&CacheSite::run_stream, 8},
    {&CacheSite::synchronize, 1},
    {&CacheSite::plant_failure, 1},
    {&CacheSite::misuse, 2},
    {&CacheSite::import_sequence, 3},
    {&CacheSite::end_import, 4},
    {&CacheSite::pin, 3},
    {&CacheSite::unpin, 3},
    {&CacheSite::create_with_prompt, 8},
    {&CacheSite::adopt, 1},
    {&CacheSite::register_tokens, 2},
    {&CacheSite::forget, 1},
    {&CacheSite::set_limits, 3},
    {&CacheSite::lose_step, 2},
    {&CacheSite::retain, 1},
}};
constexpr std::array<PlayWithOther, 2> kWithOther = {&CacheSite::offer_foreign_stream,
                                                     &CacheSite::offer_foreign_ticket};

std::array<KindWeight, kKinds.size() + kWithOther.size()> all_weights() {
  std::array<KindWeight, kKinds.size() + kWithOther.size()> weights;
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    weights[i] = {i, i < kKinds.size() ? kKinds[i].weight : 1};
  }
  return weights;
}

CacheSiteOptions options_of(const Program& program) {
  static constexpr std::array<std::int32_t, 8> kBlockSizes = {4, 1, 2, 3, 5, 8, 16, 4};
  const auto& setup = program.setup;
  return {.num_blocks = 8 + setup[0] % 57,
          .block_size_tokens = kBlockSizes[setup[1] % kBlockSizes.size()],
          .num_layers = static_cast<std::int32_t>(1 + setup[2] % 2),
          .max_sequences = static_cast<std::int32_t>(4 + setup[3] % 12),
          .steps_in_flight = static_cast<std::int32_t>(1 + setup[4] % 4),
          .max_open_tickets = static_cast<std::int32_t>(8 + setup[5] % 8),
          .order = setup[2] / 2 % 2 == 0 ? BlockOrder::block_major : BlockOrder::layer_major,
          .eager_retire = setup[5] / 8 % 2 == 1,
          .has_prefix_cache = setup[6] / 4 % 2 == 1,
          .shares_parts = setup[3] % 2 == 1,
          .has_extra_keys = setup[4] / 4 % 2 == 1,
          .eviction = kEvictionPolicies[(setup[2] / 4 + setup[1] / 8) % kEvictionPolicies.size()],
          .has_accounts = setup[6] / 4 % 2 == 1 && setup[7] / 4 % 2 == 1,
          .duplicates = static_cast<DuplicateRule>(setup[6] / 8 % 3)};
}

std::optional<Failure> play_today(const Program& program, std::string* story) {
  return play_caches(program, story, false);
}

}  // namespace

std::optional<Failure> play_caches(const Program& program, std::string* story,
                                   bool expects_scrubbing) {
  Story told(story);
  CacheSiteOptions options = options_of(program);
  options.expects_scrubbing = expects_scrubbing;
  if (expects_scrubbing)
    options.has_prefix_cache = options.has_accounts = false;  // equal content
                                                              // has many owners
  const std::uint32_t max_queued = program.setup[6] % 4 == 3 ? 8 : 4096;
  std::deque<CacheDevice> devices;
  std::deque<CacheSite> sites;
  const std::uint32_t num_sites = 1 + program.setup[7] % 3;
  for (std::uint32_t i = 0; i < num_sites; ++i) {  // the third shares the first one's device
    if (i < 2) devices.emplace_back(max_queued);
    options.name = i;
    sites.emplace_back(devices[i % 2], options, told);
  }
  for (const Operation& operation : program.operations) {
    // The last number's upper part chooses the cache, so that a small one means the first.
    const std::uint32_t choice = operation.numbers[3] / 8;
    CacheSite& site = sites[choice % sites.size()];
    const std::uint32_t kind = operation.kind % (kKinds.size() + kWithOther.size());
    if (kind < kKinds.size()) {
      (site.*kKinds[kind].play)(operation.numbers);
      site.judge_floors();
    } else if (sites.size() > 1) {
      CacheSite& other = sites[(choice + 1 + choice / 16 % (sites.size() - 1)) % sites.size()];
      (site.*kWithOther[kind - kKinds.size()])(operation.numbers, other);
    }
    // A device's streams are shared: what runs there may be another cache's reading.
    for (const CacheSite& any : sites) {
      if (any.failure()) return any.failure();
    }
  }
  for (CacheSite& site : sites) {
    site.finish();
    if (site.failure()) return site.failure();
  }
  return std::nullopt;
}

const World& cache_world() {
  static const auto kWeights = all_weights();
  static const World kWorld{"caches", kWeights, &play_today};
  return kWorld;
}

}  // namespace kvarena::test
