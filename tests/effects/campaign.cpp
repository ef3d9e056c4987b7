#include "effects/campaign.hpp"

#include "effects/shrink.hpp"

#include "kvarena/base/violation.hpp"

#include <chrono>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

namespace kvarena::test {
namespace {

/// Programs misuse calls on purpose; nobody needs to read of it.
class QuietViolations {
 public:
  QuietViolations()
      : former_(set_violation_handler([](const Status&, const char*, const char*) {})) {}
  ~QuietViolations() { set_violation_handler(former_); }
  QuietViolations(const QuietViolations&) = delete;
  QuietViolations& operator=(const QuietViolations&) = delete;

 private:
  ViolationHandler former_;
};

/// A kind of broken promise.
struct Finding {
  static constexpr std::size_t kKept = 6;  // the shortest one can come from any of them

  std::vector<Program> programs;  // the first that failed so
  std::vector<std::uint64_t> numbers;
  std::uint64_t times = 0;
};

Program shrunk(const World& world, const std::string& kind, const Program& program) {
  return shrink(program, [&](const Program& candidate) {
    const auto failure = world.play(candidate, nullptr);
    return failure && failure->kind == kind;
  });
}

std::string report_of(const World& world, const std::string& kind, const Finding& finding,
                      std::uint64_t seed) {
  Program shortest;
  std::size_t from = 0;
  for (std::size_t i = 0; i < finding.programs.size(); ++i) {
    Program candidate = shrunk(world, kind, finding.programs[i]);
    if (i == 0 || candidate.operations.size() < shortest.operations.size()) {
      shortest = std::move(candidate);
      from = i;
    }
  }
  std::string story;
  const auto failure = world.play(shortest, &story);
  std::ostringstream text;
  text << "world of " << world.name << ", promise \"" << kind << "\" broken by " << finding.times
       << " program(s), first by number " << finding.numbers.front() << " of seed " << seed
       << ". Number " << finding.numbers[from] << " shrinks from "
       << finding.programs[from].operations.size() << " to " << shortest.operations.size()
       << " operations:\n"
       << story << "  => " << (failure ? failure->text : "not repeatable") << "\n"
       << to_text(shortest) << "\n";
  return text.str();
}

std::size_t random_length(std::mt19937_64& random) {
  return random() % 4 == 0 ? 20 + random() % 980 : 20 + random() % 180;
}

}  // namespace

CampaignResult run_campaign(const World& world, std::uint64_t num_operations, std::uint64_t seed) {
  const QuietViolations quiet;
  const auto start = std::chrono::steady_clock::now();
  CampaignResult result;
  std::map<std::string, Finding> findings;
  while (result.operations < num_operations) {
    const std::uint64_t number = result.programs++;
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15 + number);
    Program program = random_program(random, world.weights, random_length(random));
    result.operations += program.operations.size();
    const auto failure = world.play(program, nullptr);
    if (!failure) continue;
    ++result.failed_programs;
    Finding& finding = findings[failure->kind];
    ++finding.times;
    if (finding.programs.size() < Finding::kKept) {
      finding.programs.push_back(std::move(program));
      finding.numbers.push_back(number);
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  result.seconds = elapsed.count();
  for (const auto& [kind, finding] : findings) {
    result.report += report_of(world, kind, finding, seed);
  }
  return result;
}

}  // namespace kvarena::test
