// What time tells about the prefix cache (docs/security.md). Somebody has sent a prompt, or not;
// an observer sends it too and sees how long the tables take for it: with the salt of the other,
// and with a salt of their own. Prints how often the best guess from one time is right.
//
// prefix_timing [ROUNDS]

#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::size_t kPromptTokens = 2049;  // 128 blocks and a token
constexpr std::int64_t kPoolBlocks = 1 << 14;

using Tokens = std::vector<std::int32_t>;

/// One time of the observer, and whether the other had sent the prompt.
struct Observation {
  double ns = 0.0;
  bool was_sent = false;
};

class Game {
 public:
  Game()
      : manager_(BlockManager::create({.num_blocks = kPoolBlocks, .max_holders = 8}).value()),
        tables_(BlockTables::create(manager_, {.block_size_tokens = kBlockSize,
                                               .max_sequences = 4,
                                               .prefix_cache = {.is_on = true}})
                    .value()) {}

  /// Plays rounds; the observer uses salt 1 of the other, or salt 2. `finds` times the search
  /// alone, else all of the tables' work for the prompt.
  std::vector<Observation> play(std::int64_t rounds, bool same_salt, bool finds) {
    std::vector<Observation> seen;
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (round % 32 == 0 && !tables_.forget_all()) std::abort();
      const Tokens secret = any_prompt();
      const Tokens other = any_prompt();  // made in either case
      const bool was_sent = (random_() & 1U) != 0;
      send(was_sent ? secret : other, 1);
      for (int i = 0; i < 3; ++i) send(any_prompt(), 3);  // others, meanwhile
      const Tokens asked = secret;                        // in memory of the observer's own
      const auto start = std::chrono::steady_clock::now();
      const std::uint64_t salt = same_salt ? 1 : 2;
      SequenceId id = tables_.create_sequence({.tokens = asked, .salt = salt}).value();
      const auto found = std::chrono::steady_clock::now();
      compute(id, asked);
      const auto end = finds ? found : std::chrono::steady_clock::now();
      if (!tables_.destroy(id)) std::abort();
      seen.push_back({std::chrono::duration<double, std::nano>(end - start).count(), was_sent});
    }
    return seen;
  }

 private:
  Tokens any_prompt() {
    Tokens tokens(kPromptTokens);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_() % 100'000);
    return tokens;
  }
  void compute(SequenceId id, const Tokens& tokens) {
    const auto covered = static_cast<std::size_t>(tables_.prefix_of(id)->tokens);
    const AppendDemand rest{id,
                            static_cast<std::int32_t>(tokens.size() - covered),
                            {},
                            std::span(tokens).subspan(covered)};
    if (!tables_.append(std::span(&rest, 1)) || !tables_.publish(id)) std::abort();
  }
  void send(const Tokens& tokens, std::uint64_t salt) {
    const SequenceId id = tables_.create_sequence({.tokens = tokens, .salt = salt}).value();
    compute(id, tokens);
    if (!tables_.destroy(id)) std::abort();
  }

  std::mt19937_64 random_{1};
  BlockManager manager_;
  BlockTables tables_;
};

double median(const std::vector<Observation>& seen, bool was_sent) {
  std::vector<double> times;
  for (const Observation& one : seen) {
    if (one.was_sent == was_sent) times.push_back(one.ns);
  }
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

/// How often the guess is right that follows the best threshold of the first half, in the second.
double right_guesses(const std::vector<Observation>& seen) {
  const auto half = std::ssize(seen) / 2;
  std::vector<Observation> learned(seen.begin(), seen.begin() + half);
  std::sort(learned.begin(), learned.end(),
            [](const Observation& a, const Observation& b) { return a.ns < b.ns; });
  const auto sent =
      std::count_if(learned.begin(), learned.end(), [](const auto& one) { return one.was_sent; });
  // Up to the threshold the guess is `low`, above it the opposite.
  std::int64_t best = 0;
  double threshold = 0.0;
  bool low = true;
  std::int64_t sent_below = 0;
  for (std::size_t i = 0; i < learned.size(); ++i) {
    sent_below += learned[i].was_sent ? 1 : 0;
    const auto below = static_cast<std::int64_t>(i) + 1;
    const std::int64_t right = sent_below + (half - below) - (sent - sent_below);
    for (const bool guess : {true, false}) {
      const std::int64_t score = guess ? right : half - right;
      if (score <= best) continue;
      best = score;
      threshold = learned[i].ns;
      low = guess;
    }
  }
  const auto right = std::count_if(seen.begin() + half, seen.end(), [&](const Observation& one) {
    return one.was_sent == ((one.ns <= threshold) == low);
  });
  return static_cast<double>(right) / static_cast<double>(std::ssize(seen) - half);
}

}  // namespace
}  // namespace kvarena

int main(int argc, char** argv) {
  using namespace kvarena;
  const std::int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 4000;
  std::printf("a prompt of %zu tokens in the tables, %lld rounds each\n", kPromptTokens,
              static_cast<long long>(rounds));
  std::printf("%-12s %-8s %14s %14s %16s\n", "salt", "time of", "was sent", "was not sent",
              "right guesses");
  Game game;
  static_cast<void>(game.play(2000, true, false));  // touches the memory of the tables
  for (const bool same_salt : {true, false}) {
    for (const bool finds : {true, false}) {
      const std::vector<Observation> seen =
          game.play(std::max<std::int64_t>(100, rounds), same_salt, finds);
      std::printf("%-12s %-8s %11.2f us %11.2f us %14.1f %%\n", same_salt ? "the same" : "its own",
                  finds ? "search" : "all", median(seen, true) / 1e3, median(seen, false) / 1e3,
                  100.0 * right_guesses(seen));
    }
  }
}
