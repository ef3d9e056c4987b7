#include "effects/prefix_world.hpp"

#include "effects/prefix_site.hpp"

#include <array>

namespace kvarena::test {
namespace {

using Play = void (PrefixSite::*)(const PrefixSite::Numbers&);

struct Kind {
  Play play;
  std::uint32_t weight;
};

// By number of kind.
constexpr std::array<Kind, 22> kKinds = {{
    {&PrefixSite::create_sequence, 12},
    {&PrefixSite::match, 4},
    {&PrefixSite::fork, 3},
    {&PrefixSite::destroy, 6},
    {&PrefixSite::truncate, 3},
    {&PrefixSite::grow, 12},
    {&PrefixSite::check_sequence, 4},
    {&PrefixSite::check_found, 4},
    {&PrefixSite::open_reader, 3},
    {&PrefixSite::retire, 3},
    {&PrefixSite::run_stream, 6},
    {&PrefixSite::write, 12},
    {&PrefixSite::register_blocks, 12},
    {&PrefixSite::publish, 12},
    {&PrefixSite::rewrite, 4},
    {&PrefixSite::fail_write, 2},
    {&PrefixSite::forget, 2},
    {&PrefixSite::forget_many, 1},
    {&PrefixSite::notice, 1},
    {&PrefixSite::hold_others, 4},
    {&PrefixSite::release_others, 4},
    {&PrefixSite::misuse, 2},
}};

std::array<KindWeight, kKinds.size()> all_weights() {
  std::array<KindWeight, kKinds.size()> weights;
  for (std::uint32_t i = 0; i < kKinds.size(); ++i) weights[i] = {i, kKinds[i].weight};
  return weights;
}

PrefixSiteOptions options_of(const Program& program) {
  static constexpr std::array<std::int32_t, 4> kBlockSizes = {2, 1, 4, 3};
  static constexpr std::array<EvictionPolicy, 3> kPolicies = {
      BlockManagerOptions{}.eviction, EvictionPolicy::fifo, EvictionPolicy::lfu};
  const auto& setup = program.setup;
  return {.num_blocks = 6 + setup[0] % 27,
          .block_size_tokens = kBlockSizes[setup[1] % kBlockSizes.size()],
          .max_sequences = static_cast<std::int32_t>(3 + setup[2] % 6),
          .max_extra_keys = setup[3] % 2 == 1 ? 2 : 0,
          .duplicates = setup[4] % 4 == 3 ? DuplicateRule::wait : DuplicateRule::duplicate,
          .eviction = kPolicies[setup[5] % kPolicies.size()],
          .telling = setup[6] % 3};
}

std::optional<Failure> play(const Program& program, std::string* story) {
  Story told(story);
  PrefixSite site(options_of(program), told);
  for (const Operation& operation : program.operations) {
    (site.*kKinds[operation.kind % kKinds.size()].play)(operation.numbers);
    if (site.failure()) return site.failure();
  }
  site.finish();
  return site.failure();
}

}  // namespace

const World& prefix_world() {
  static const auto kWeights = all_weights();
  static const World kWorld{"prefix pools", kWeights, &play};
  return kWorld;
}

}  // namespace kvarena::test
