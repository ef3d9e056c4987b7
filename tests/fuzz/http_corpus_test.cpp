#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::string;

void play(const Bytes& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(KVARENA_HTTP_CORPUS)) {
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

/// One to eight changes: bytes flipped, runs removed, doubled, or taken from another request.
Bytes mutate(Bytes bytes, const std::vector<Bytes>& all, std::mt19937_64& random) {
  const auto below = [&](std::size_t bound) { return bound == 0 ? 0 : random() % bound; };
  for (std::size_t n = 1 + below(8); n > 0; --n) {
    const std::size_t at = below(bytes.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(bytes.size() - at, 64) + 1);
    switch (below(5)) {
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
      default: bytes.insert(at, 1, "\r\n :%?,-=\0\xff"[below(11)]); break;
    }
  }
  return bytes;
}

TEST(HttpFuzz, Corpus) {
  const std::vector<Bytes> all = corpus();
  ASSERT_GE(all.size(), 30u);
  for (const Bytes& bytes : all) play(bytes);
}

TEST(HttpFuzz, Mutations) {
  const std::vector<Bytes> all = corpus();
  const std::uint64_t seed = kvarena::test::number_from_environment("KVARENA_SEED", 1);
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::uint64_t rounds = kvarena::test::number_from_environment("KVARENA_TEST_ROUNDS", 1) *
                               (kvarena::test::kSanitized ? 3'000 : 20'000);
  for (std::uint64_t n = 0; n < rounds; ++n) play(mutate(all[n % all.size()], all, random));
}

}  // namespace
