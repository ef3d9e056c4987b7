#include "effects/program.hpp"

#include <algorithm>
namespace kvarena::test {
namespace {

// Half of the numbers are small: those reach the first, the last and the empty of a kind.
std::uint32_t random_number(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  return static_cast<std::uint32_t>((bits & 1) != 0 ? (bits >> 8) % 8 : (bits >> 8) % 1000);
}

}  // namespace

Program random_program(std::mt19937_64& random, std::span<const KindWeight> weights,
                       std::size_t length) {
  static constexpr std::array<std::uint32_t, 6> kFavours = {0, 1, 1, 1, 2, 5};
  Program program;
  for (std::uint32_t& number : program.setup) number = random_number(random);
  std::vector<std::uint32_t> kinds;  // each as often as its weight
  for (const KindWeight& entry : weights) {
    const std::uint32_t times = entry.weight * kFavours[random() % kFavours.size()];
    kinds.insert(kinds.end(), times, entry.kind);
  }
  if (kinds.empty()) kinds.push_back(weights.front().kind);
  program.operations.resize(length);
  for (Operation& operation : program.operations) {
    operation.kind = kinds[random() % kinds.size()];
    for (std::uint32_t& number : operation.numbers) number = random_number(random);
  }
  return program;
}

std::string to_text(const Program& program) {
  std::ostringstream text;
  const auto list = [&text](const auto& numbers) {
    const char* separator = "{";
    for (const std::uint32_t number : numbers) {
      text << separator << number;
      separator = ", ";
    }
    text << "}";
  };
  text << "{.setup = ";
  list(program.setup);
  text << ",\n .operations = {";
  for (const Operation& operation : program.operations) {
    text << "\n  {" << operation.kind << ", ";
    list(operation.numbers);
    text << "},";
  }
  text << "}}\n";
  return text.str();
}

std::vector<std::size_t> several(const std::array<std::uint32_t, 4>& numbers, std::size_t size) {
  std::vector<std::size_t> list;
  const std::size_t count = std::min<std::size_t>(1 + numbers[1] % 4, size);
  for (std::size_t i = 0; i < count; ++i) list.push_back((numbers[0] + i) % size);
  return list;
}

}  // namespace kvarena::test
