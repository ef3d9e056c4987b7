// A naive model of pages and groups and the real manager play the same games; nothing that they
// show may differ. Faults planted in the real manager must be found by the comparison alone.
//
// KVARENA_SEED=<n> replays one seed in every game; KVARENA_MODEL_OPS=<n> sets the number of
// operations of all games together.

#include "model/naive_pages.hpp"
#include "model/optimised.hpp"
#include "model/page_pool_probe.hpp"
#include "support/environment.hpp"
#include "support/manager_access.hpp"
#include "support/process_memory.hpp"
#include "support/violations.hpp"

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace kvarena {

namespace model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized   ? 50'000
                                             : test::kOptimised ? 10'000'000
                                                                : 600'000;

enum class Plant {
  none,
  page_kept_when_empty,
  slot_of_another_group,
  page_lost_on_failure,
  page_evicted_too_late,
};

struct PageGame {
  const char* name;
  std::int64_t num_pages;
  std::vector<BlockGroup> groups;
  std::int64_t watermark;
  int share;  // of all operations, in thousandths
  EvictionPolicy policy = EvictionPolicy::tail_first;
};

void PrintTo(const PageGame& game, std::ostream* out) { *out << game.name; }

const std::vector<PageGame> kGames = {
    {"OnePage", 1, {{3, 10}, {2, 15}}, 0, 50},
    {"TwoPages", 2, {{3, 10}, {2, 15}}, 0, 80},
    {"FivePagesWatermark", 5, {{3, 10}, {1, 30}}, 1, 100},
    {"EightPagesThreeGroups", 8, {{4, 10}, {3, 13}, {1, 40}}, 0, 130},
    {"OneGroupOfFive", 6, {{5, 7}}, 1, 80},
    {"GroupsOfOne", 6, {{1, 7}, {1, 7}}, 0, 60},
    {"ManySlots", 5, {{64, 1}, {2, 32}}, 0, 60},
    {"TwentyPages", 20, {{5, 10}, {1, 52}, {7, 7}}, 2, 100},
    {"HeadFirst", 7, {{1, 7}, {1, 7}}, 0, 40, EvictionPolicy::head_first},
    {"HeadFirstCarved", 8, {{2, 10}, {3, 6}}, 0, 50, EvictionPolicy::head_first},
    {"Fifo", 7, {{1, 7}, {1, 7}}, 1, 40, EvictionPolicy::fifo},
    {"FifoCarved", 8, {{2, 10}, {3, 6}}, 0, 50, EvictionPolicy::fifo},
    {"Lfu", 7, {{1, 7}, {1, 7}}, 0, 40, EvictionPolicy::lfu},
    {"LfuCarved", 8, {{2, 10}, {3, 6}}, 0, 50, EvictionPolicy::lfu},
    {"Priority", 7, {{1, 7}, {1, 7}}, 0, 40, EvictionPolicy::priority},
    {"PriorityCarved", 8, {{2, 10}, {3, 6}}, 1, 60, EvictionPolicy::priority},
};

std::vector<std::int64_t> numbers_of(const PageStats& s) {
  return {s.num_pages, s.free,      s.of_groups,
          s.offline,   s.evictable, s.reserved,
          s.watermark, s.peak_used, static_cast<std::int64_t>(s.turned)};
}

std::vector<std::int64_t> numbers_of(const GroupStats& s) {
  return {s.pages,  s.blocks_per_page, s.block_bytes, s.free,    s.referenced,
          s.fenced, s.evictable,       s.offline,     s.stranded};
}

/// What happened in a game, so that a game in which something never happens is noticed.
using Outcomes = std::map<std::string, std::int64_t>;

/// Plays one game. The first difference ends it.
class PageDriver {
 public:
  PageDriver(const PageGame& game, std::uint64_t seed, Plant plant)
      : game_(game),
        plant_(plant),
        random_(seed),
        real_(BlockManager::create({.num_blocks = game.num_pages,
                                    .watermark_blocks = game.watermark,
                                    .max_holders = 6,
                                    .max_open_tickets = 3,
                                    .groups = game.groups,
                                    .eviction = game.policy})
                  .value()),
        naive_(game.num_pages, game.groups, game.watermark, game.policy) {}

  /// Returns the difference, or an empty text.
  std::string play(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && difference_.empty(); ++i) {
      step();
      compare(i % 16 == 0);
      if (!difference_.empty()) difference_ += " at operation " + std::to_string(i);
    }
    return difference_;
  }
  const Outcomes& outcomes() const { return outcomes_; }

 private:
  struct Named {
    HolderId id;
    std::vector<PageHandle> handles;
  };

  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool once_in(std::uint64_t n) { return below(n) == 0; }
  PagePool& pages() { return *test::parts_of(real_).pool.pages(); }

  template <class Value>
  void expect(const char* what, const Value& real, const Value& predicted) {
    if (!difference_.empty() || real == predicted) return;
    difference_ = std::string(what) + ": " + text(real) + ", predicted " + text(predicted);
  }
  void expect(const char* what, const Status& real, StatusCode predicted) {
    expect(what, real.code, predicted);
    ++outcomes_[std::string(what) + " " + std::string(name_of(real.code))];
  }

  template <class Value>
  static std::string text(const Value& value) {
    return ::testing::PrintToString(value);
  }
  static std::string text(StatusCode code) { return std::string(name_of(code)); }
  static std::string text(const Status& status) { return describe(status); }
  static std::string text(const PageHandle& handle) { return std::to_string(handle.id.value); }

  void step() {
    if (holders_.empty() || (holders_.size() < 6 && once_in(12))) return add_holder();
    switch (below(20)) {
      case 0: return remove_holder();
      case 1: return reserve();
      case 2:
      case 3: return retain();
      case 4:
      case 5:
      case 6: return release(false);
      case 7:
      case 8: return release(true);
      case 9: return tickets();
      case 10:
      case 11: return set_content();
      case 12: return out_of_service();
      case 13:
        if (game_.policy == EvictionPolicy::priority) return set_retentions();
        return allocate();
      default: return allocate();
    }
  }

  Named& someone() { return holders_[below(holders_.size())]; }

  void add_holder() {
    Named named{real_.register_holder({.purpose = "model"}).value(), {}};
    naive_.adopt_holder(named.id);
    holders_.push_back(std::move(named));
  }

  void remove_holder() {
    const std::size_t i = below(holders_.size());
    if (!holders_[i].handles.empty() && once_in(2)) {
      const std::vector<PageHandle> all = holders_[i].handles;
      give_up(holders_[i], all, std::nullopt);
    }
    const Status status = real_.unregister_holder(holders_[i].id);
    expect("unregister", status, naive_.unregister_holder(holders_[i].id));
    if (status) holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void reserve() {
    const Named& named = someone();
    const auto count = static_cast<std::int64_t>(below(4));
    const Urgency urgency = once_in(2) ? Urgency::growth : Urgency::admission;
    expect("reserve", real_.reserve(named.id, count, urgency),
           naive_.reserve(named.id, count, urgency));
  }

  std::vector<HolderDemand> demands() {
    std::vector<HolderDemand> all;
    const auto groups = static_cast<std::int32_t>(game_.groups.size());
    for (const Named& named : holders_) {
      if (!once_in(holders_.size())) continue;
      for (std::int32_t group = 0; group < groups; ++group) {
        if (groups > 1 && once_in(2)) continue;
        const auto m = static_cast<std::uint64_t>(
            game_.groups[static_cast<std::size_t>(group)].blocks_per_page);
        HolderDemand demand{
            .holder = named.id,
            .count = static_cast<std::uint32_t>(once_in(4) ? below(2 * m + 2) : below(3)),
            .group = group};
        if (once_in(4)) demand.urgency = once_in(2) ? Urgency::growth : Urgency::admission;
        all.push_back(demand);
      }
    }
    return all;
  }

  void allocate() {
    const std::vector<HolderDemand> wanted = demands();
    std::size_t count = 0;
    for (const HolderDemand& demand : wanted) count += demand.count;
    std::vector<BlockId> ids(count);
    std::vector<Generation> generations(count);
    std::vector<PageHandle> predicted(count);
    const Urgency urgency = once_in(3) ? Urgency::admission : Urgency::growth;
    // Again and again: a holder that ends takes its own page with it.
    if (plant_ == Plant::slot_of_another_group && once_in(50)) {
      PagePoolProbe::point_to_other_group(pages());
    }
    const std::int64_t turnable = naive_.available();
    Status real = real_.allocate_each(wanted, ids, generations, urgency).status();
    const Status naive = naive_.allocate(wanted, urgency, predicted);
    expect("allocate", real, naive.code);
    if (!real) {
      real.subject = 0;
      expect("what a refusal says", real, naive);
      if (plant_ == Plant::page_lost_on_failure) PagePoolProbe::lose_page(pages());
      return;
    }
    const auto evicted = real_.evicted();
    expect("evictions", std::vector<BlockId>(evicted.begin(), evicted.end()), naive_.evicted());
    outcomes_["evicted"] += evicted.empty() ? 0 : 1;
    outcomes_["taken from others' pages"] += turnable == 0 && count > 0 ? 1 : 0;
    std::size_t first = 0;
    for (const HolderDemand& demand : wanted) {
      Named& named = *std::ranges::find(holders_, demand.holder, &Named::id);
      for (std::size_t i = first; i < first + demand.count; ++i) {
        expect("ids", PageHandle{ids[i], generations[i]}, predicted[i]);
        named.handles.push_back(predicted[i]);
        former_.push_back(predicted[i]);
      }
      first += demand.count;
    }
    if (former_.size() > 64) former_.erase(former_.begin(), former_.end() - 64);
  }

  /// Some live, cached or former handles.
  std::vector<PageHandle> to_retain() {
    std::vector<PageHandle> from = once_in(2) ? naive_.cached() : someone().handles;
    if (once_in(8)) from.insert(from.end(), former_.begin(), former_.end());
    std::vector<PageHandle> chosen;
    for (std::uint64_t n = 1 + below(4); n > 0 && !from.empty(); --n) {
      chosen.push_back(from[below(from.size())]);
    }
    return chosen;
  }

  static std::pair<std::vector<BlockId>, std::vector<Generation>> split(
      std::span<const PageHandle> handles) {
    std::pair<std::vector<BlockId>, std::vector<Generation>> parts;
    for (const PageHandle& handle : handles) {
      parts.first.push_back(handle.id);
      parts.second.push_back(handle.generation);
    }
    return parts;
  }

  void retain() {
    Named& named = someone();
    const std::vector<PageHandle> handles = to_retain();
    const auto [ids, generations] = split(handles);
    const Status real = real_.retain(named.id, ids, generations);
    expect("retain", real, naive_.retain(named.id, handles));
    if (real) named.handles.insert(named.handles.end(), handles.begin(), handles.end());
  }

  void give_up(Named& named, std::span<const PageHandle> handles, std::optional<Ticket> ticket) {
    const auto [ids, generations] = split(handles);
    const Status real = ticket ? real_.release_after(*ticket, named.id, ids, generations)
                               : real_.release(named.id, ids, generations);
    expect(ticket ? "release_after" : "release", real, naive_.release(named.id, handles, ticket));
    if (!real) return;
    for (const PageHandle& handle : handles) {
      named.handles.erase(std::ranges::find(named.handles, handle));
    }
    if (plant_ == Plant::page_kept_when_empty && !planted_) {
      planted_ = PagePoolProbe::keep_empty_page(pages());
    }
  }

  /// Releases a run of a holder's handles, some of them from the end as a truncated sequence does,
  /// or sometimes what it does not have.
  void release(bool fenced) {
    Named& named = someone();
    std::optional<Ticket> ticket;
    if (fenced && !tickets_.empty()) ticket = tickets_[below(tickets_.size())];
    const std::size_t size = named.handles.size();
    const std::size_t count = below(std::min<std::size_t>(size, 12) + 1);
    const std::size_t first = once_in(2) ? size - count : below(size - count + 1);
    std::vector<PageHandle> handles(
        named.handles.begin() + static_cast<std::ptrdiff_t>(first),
        named.handles.begin() + static_cast<std::ptrdiff_t>(first + count));
    if (once_in(3)) std::ranges::shuffle(handles, random_);
    if (!ticket && once_in(12) && !former_.empty())
      handles.push_back(former_[below(former_.size())]);
    // A reference of somebody else is a programmer's error that nobody can see, as long as the
    // totals fit. It is not played.
    std::vector<PageHandle> own = named.handles;
    for (const PageHandle& handle : handles) {
      const auto found = std::ranges::find(own, handle);
      if (found != own.end()) {
        own.erase(found);
      } else if (naive_.references(handle.id) > 0 &&
                 naive_.generation(handle.id) == handle.generation.value) {
        return;
      }
    }
    give_up(named, handles, ticket);
  }

  void tickets() {
    if (tickets_.size() < 3 && once_in(2)) {
      tickets_.push_back(real_.open_ticket().value());
    } else if (!tickets_.empty()) {
      const std::size_t i = below(tickets_.size());
      expect("available_after", real_.available_after(tickets_[i]),
             naive_.available() + naive_.returning(tickets_[i]));
      expect("retire", real_.retire(tickets_[i]), StatusCode::ok);
      naive_.retire(tickets_[i]);
      tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void set_content() {
    std::vector<PageHandle> handles = someone().handles;
    if (once_in(6)) handles = naive_.cached();
    for (std::uint64_t n = below(5); n > 0 && !handles.empty(); --n) {
      const PageHandle handle = handles[below(handles.size())];
      const BlockContent content =
          once_in(4) ? static_cast<BlockContent>(below(4)) : BlockContent::published;
      const StatusCode predicted = naive_.set_content(handle, content);
      const Status real = real_.set_content(handle.id, handle.generation, content);
      expect("set_content", real.is_ok(), predicted == StatusCode::ok);
    }
  }

  void set_retentions() {
    if (once_in(3)) {
      const std::int64_t now = naive_.clock() + static_cast<std::int64_t>(below(20));
      expect("advance_clock", real_.advance_clock(now), StatusCode::ok);
      return naive_.advance_clock(now);
    }
    const std::vector<PageHandle> handles = once_in(2) ? naive_.cached() : someone().handles;
    if (handles.empty()) return;
    const PageHandle handle = handles[below(handles.size())];
    RetentionHint hint{.priority = static_cast<std::int32_t>(30 + below(10))};
    if (once_in(2)) hint.expires_at = naive_.clock() + static_cast<std::int64_t>(below(60));
    const Status real = real_.set_retention(handle.id, handle.generation, hint);
    expect("set_retention", real, naive_.set_retention(handle, hint));
  }

  void out_of_service() {
    const BlockId id(
        static_cast<std::int32_t>(below(static_cast<std::uint64_t>(real_.num_blocks()))));
    if (!offline_.empty() && once_in(2)) {
      const std::size_t i = below(offline_.size());
      expect("restore", real_.restore(offline_[i]), naive_.restore(offline_[i]));
      offline_.erase(offline_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (offline_.size() < 3 && once_in(4)) {
      const Result<bool> real = real_.quarantine(id);
      expect("quarantine", real ? static_cast<int>(*real) : -1, naive_.quarantine(id));
      if (real) offline_.push_back(id);
      ++outcomes_[std::string("quarantine ") + std::string(name_of(real.status().code))];
    }
  }

  void compare(bool all) {
    if (!difference_.empty()) return;
    expect("page stats", numbers_of(real_.page_stats()), numbers_of(naive_.page_stats()));
    for (std::int32_t g = 0; g < static_cast<std::int32_t>(game_.groups.size()); ++g) {
      expect("group stats", numbers_of(real_.group_stats(g)), numbers_of(naive_.group_stats(g)));
    }
    outcomes_["pages offline"] += real_.page_stats().offline > 0 ? 1 : 0;
    if (plant_ == Plant::page_evicted_too_late && once_in(8)) PagePoolProbe::renew_first(pages());
    if (!all) return;
    for (const Named& named : holders_) {
      expect("reserved", real_.holder(named.id)->reserved, naive_.reserved(named.id));
      expect("bytes", real_.holder(named.id)->bytes, naive_.holder_bytes(named.id));
    }
    for (std::int32_t raw = 0; raw < real_.num_blocks(); ++raw) {
      const BlockId id(raw);
      expect("state", real_.state(id), naive_.state(id));
      expect("generation", real_.generation(id).value, naive_.generation(id));
      if (naive_.state(id) == BlockState::evictable) {
        expect("retention", real_.retention(id) == naive_.retention(id), true);
      }
      expect("references", static_cast<std::int64_t>(real_.reference_count(id)),
             naive_.references(id));
    }
    if (plant_ == Plant::none) expect("invariants", real_.check_invariants(), Status{});
  }

  const PageGame& game_;
  Plant plant_;
  bool planted_ = false;
  std::mt19937_64 random_;
  BlockManager real_;
  NaivePages naive_;
  std::vector<Named> holders_;
  std::vector<Ticket> tickets_;
  std::vector<PageHandle> former_;
  std::vector<BlockId> offline_;
  std::string difference_;
  Outcomes outcomes_;
};

std::uint64_t seed_of(const PageGame& game) {
  return test::number_from_environment("KVARENA_SEED", 20261123) + game.groups.size();
}

class PageGames : public ::testing::TestWithParam<PageGame> {};

TEST_P(PageGames, TheManagerDoesWhatTheModelSays) {
  const PageGame& game = GetParam();
  const test::ViolationRecorder recorder;
  const std::uint64_t all = test::number_from_environment("KVARENA_MODEL_OPS", kDefaultOperations);
  PageDriver driver(game, seed_of(game), Plant::none);
  EXPECT_EQ(driver.play(static_cast<std::int64_t>(all) * game.share / 1000), "")
      << "KVARENA_SEED=" << test::number_from_environment("KVARENA_SEED", 20261123);
}

INSTANTIATE_TEST_SUITE_P(, PageGames, ::testing::ValuesIn(kGames),
                         [](const auto& tested) { return tested.param.name; });

TEST(PageModel, EverythingHappens) {
  const test::ViolationRecorder recorder;
  PageDriver driver(kGames[3], 5, Plant::none);
  ASSERT_EQ(driver.play(20'000), "");
  const Outcomes& outcomes = driver.outcomes();
  for (const char* wanted : {"unregister ok",
                             "unregister failed_precondition",
                             "reserve ok",
                             "reserve exhausted",
                             "allocate ok",
                             "allocate exhausted",
                             "retain ok",
                             "retain stale_handle",
                             "retain exhausted",
                             "release ok",
                             "release double_release",
                             "release stale_handle",
                             "release_after ok",
                             "retire ok",
                             "quarantine ok",
                             "quarantine exhausted",
                             "quarantine failed_precondition",
                             "restore ok",
                             "evicted",
                             "taken from others' pages",
                             "pages offline"}) {
    const auto found = outcomes.find(wanted);
    EXPECT_TRUE(found != outcomes.end() && found->second > 0) << wanted;
  }
}

TEST(PageModel, PlantedFaultsAreFound) {
  const test::ViolationRecorder recorder;
  for (const Plant plant :
       {Plant::page_kept_when_empty, Plant::slot_of_another_group, Plant::page_lost_on_failure}) {
    PageDriver driver(kGames[3], 5, plant);
    EXPECT_NE(driver.play(5'000), "") << static_cast<int>(plant);
  }
  for (const PageGame& game : kGames) {
    if (game.policy == EvictionPolicy::tail_first) continue;
    PageDriver driver(game, 5, Plant::page_evicted_too_late);
    EXPECT_NE(driver.play(20'000), "") << game.name;
  }
}

/// What the invariants say of an order that has lost a page.
TEST(PageModel, APageThatItsOrderLostIsSeen) {
  for (const EvictionPolicy policy : kEvictionPolicies) {
    if (policy == EvictionPolicy::tail_first) continue;
    BlockManager manager =
        BlockManager::create({.num_blocks = 4, .groups = kGames[1].groups, .eviction = policy})
            .value();
    const HolderId holder = manager.register_holder({.purpose = "page"}).value();
    BlockId id;
    Generation generation;
    ASSERT_TRUE(manager.allocate(holder, std::span(&id, 1), std::span(&generation, 1)));
    ASSERT_TRUE(manager.set_content(id, generation, BlockContent::published));
    ASSERT_TRUE(manager.release(holder, std::span(&id, 1), std::span(&generation, 1)));
    ASSERT_TRUE(manager.check_invariants());
    ASSERT_TRUE(PagePoolProbe::lose_idle(*test::parts_of(manager).pool.pages()));
    EXPECT_FALSE(manager.check_invariants()) << name_of(policy);
  }
}

}  // namespace
}  // namespace model
}  // namespace kvarena
