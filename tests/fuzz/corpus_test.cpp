#include "fuzz/fuzz_target.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

using Bytes = std::string;

void play(const Bytes& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kFuzzCorpus)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> all;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return all;
}

/// A number that lengths, counts and offsets go wrong at.
std::uint64_t awkward_number(std::mt19937_64& random) {
  const unsigned bits = static_cast<unsigned>(random() % 64);
  return (std::uint64_t{1} << bits) + random() % 3 - 1;
}

/// One to eight changes: bytes flipped or made an awkward number, runs removed, doubled, or taken
/// from another input.
Bytes mutate(Bytes bytes, const std::vector<Bytes>& all, std::mt19937_64& random) {
  const auto below = [&](std::size_t bound) { return bound == 0 ? 0 : random() % bound; };
  for (std::size_t n = 1 + below(8); n > 0; --n) {
    const std::size_t at = below(bytes.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(bytes.size() - at, 64) + 1);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 1: bytes.erase(at, length); break;
      case 2: bytes.insert(at, bytes.substr(at, length)); break;
      case 3: {
        const Bytes& other = all[below(all.size())];
        bytes.insert(at, other.substr(below(other.size() + 1), 64));
        break;
      }
      case 4: {
        const std::uint64_t number = awkward_number(random);
        const std::size_t width = std::min<std::size_t>(bytes.size() - at, 4 + 4 * below(2));
        std::memcpy(bytes.data() + at, &number, width);
        break;
      }
      default: bytes.insert(at, 1, "\r\n :%?,-=\0\xff[]{}\"0"[below(17)]); break;
    }
  }
  return bytes;
}

class Fuzz : public testing::TestWithParam<const char*> {};

TEST_P(Fuzz, Corpus) {
  const std::vector<Bytes> all = corpus();
  ASSERT_GE(all.size(), 10u) << "in " << kFuzzCorpus;
  for (const Bytes& bytes : all) play(bytes);
}

TEST_P(Fuzz, Mutations) {
  const std::vector<Bytes> all = corpus();
  ASSERT_FALSE(all.empty());
  const std::uint64_t seed = number_from_environment("KVARENA_SEED", 1);
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::uint64_t rounds =
      number_from_environment("KVARENA_TEST_ROUNDS", 1) * (kSanitized ? 3'000 : 20'000);
  for (std::uint64_t n = 0; n < rounds; ++n) play(mutate(all[n % all.size()], all, random));
}

INSTANTIATE_TEST_SUITE_P(, Fuzz, testing::Values(kFuzzTarget),
                         [](const auto& target) { return std::string(target.param); });

}  // namespace
}  // namespace kvarena::test
