#pragma once

/// @file
/// The answer of `GET /stats`: `StatsDocument` has it as plain values, checked: no text has a
/// control character or is long. `frame_of_stats` shows it to people. Pure functions.

#include "tools/monitor/monitor_frame.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// An error for JSON that is not an answer of /stats. what() says why, in text that is safe for a
/// terminal.
class NotStats : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Why the process is unhealthy.
struct StatsReason {
  std::string code;      ///< "ticket_late"
  std::string text;      ///< the object and its figures
  double since_s = 0.0;  ///< how long ago it was first seen
};

/// The memory of one purpose.
struct StatsUsage {
  std::string purpose;          ///< "KVCache"
  std::int64_t bytes = 0;       ///< now
  std::int64_t peak_bytes = 0;  ///< the most so far; 0 where it is not told
};

/// The memory in use by the driver, and the recorded memory.
struct StatsDrift {
  std::int64_t driver_used_bytes = 0;  ///< by anyone
  std::int64_t tracked_bytes = 0;      ///< recorded
  std::int64_t growth_bytes = 0;       ///< unrecorded growth since the start
};

/// One watched device.
struct StatsDevice {
  std::string name;                 ///< "cuda:0 NVIDIA H200"
  std::int64_t total_bytes = 0;     ///< of the device
  std::int64_t free_bytes = 0;      ///< of the device
  std::vector<StatsUsage> usage;    ///< by purpose; pinned staging last
  std::optional<StatsDrift> drift;  ///< absent before the first check
};

/// Blocks by state, and counters since the start. When the accounts of a pool are violated, the
/// numbers may be negative or inconsistent. Numbers past 2^60 are cut to 2^60.
struct StatsBlocks {
  std::int64_t total = 0;        ///< of the pool
  std::int64_t referenced = 0;   ///< held by somebody
  std::int64_t fenced = 0;       ///< released behind a ticket
  std::int64_t evictable = 0;    ///< cached, held by nobody
  std::int64_t offline = 0;      ///< not in use
  std::int64_t free = 0;         ///< to be had
  std::int64_t allocations = 0;  ///< handed out
  std::int64_t evictions = 0;    ///< taken from the cache
  std::int64_t exhaustions = 0;  ///< calls refused

  std::int64_t sum_of_states() const noexcept {
    return referenced + fenced + evictable + offline + free;
  }
};

/// Pages of a pool with groups. When the accounts are violated, as StatsBlocks.
struct StatsPages {
  std::int64_t total = 0;                  ///< of the pool
  std::int64_t free = 0;                   ///< of no group
  std::int64_t of_groups = 0;              ///< carved into blocks of a group
  std::int64_t evictable = 0;              ///< of these, those in which nobody holds a block
  std::int64_t offline = 0;                ///< not in use
  std::optional<std::int64_t> page_bytes;  ///< absent where it is not told
};

/// One group of a pool: layers whose data lies in blocks of one size.
struct StatsGroup {
  std::int64_t group = 0;        ///< its index
  std::string kind;              ///< "window"
  std::int64_t pages = 0;        ///< carved for it
  std::int64_t block_bytes = 0;  ///< of a block
  std::int64_t stranded = 0;     ///< free blocks that only this group can use
  StatsBlocks blocks;            ///< in its pages; without counters
};

/// The prefix cache of a pool, since the start.
struct StatsPrefix {
  /// What another size would find.
  struct Ghost {
    double pools = 0.0;     ///< its size
    double hit_rate = 0.0;  ///< 0 .. 1
  };
  /// A reason, and how often it was one.
  struct Reason {
    std::string name;        ///< "never_seen"
    std::int64_t count = 0;  ///< above 0
  };
  std::int64_t published = 0;     ///< blocks that can be found, now
  std::int64_t queries = 0;       ///< sequences that asked
  std::int64_t query_tokens = 0;  ///< that they asked for
  std::int64_t hit_tokens = 0;    ///< that they found
  std::int64_t evicted = 0;       ///< blocks
  std::vector<Reason> misses;     ///< why queries found no more, most frequent first
  std::vector<Reason> removals;   ///< why blocks went, most frequent first
  std::string ghost_policy;   ///< of the ghosts: the pool's, or tail-first when it has no ghosts
  std::vector<Ghost> ghosts;  ///< none: the pool has none
};

/// One watched pool.
struct StatsPool {
  std::string name;                       ///< as given to watch
  std::int64_t step = 0;                  ///< the last published
  std::string pressure;                   ///< "elevated"
  std::string pressure_cause;             ///< "blocks", "vram"; empty when normal, or not told
  std::optional<double> pressure_age_s;   ///< since the gauge looked; absent where it is not told
  StatsBlocks blocks;                     ///< accounts
  std::optional<StatsPages> pages;        ///< absent: no groups, or it is not told
  std::vector<StatsGroup> groups;         ///< by index
  std::int64_t tokens = 0;                ///< in all sequences
  std::int64_t sequences = 0;             ///< that live
  std::int64_t waiting_requests = 0;      ///< as the engine reported
  std::int64_t preemptions = 0;           ///< as the engine reported, since the start
  std::int64_t open_tickets = 0;          ///< work on other streams
  std::optional<double> oldest_ticket_s;  ///< the age of the oldest of them
  std::optional<StatsPrefix> prefix;      ///< absent: no prefix cache, or it is not told
};

/// The whole answer.
struct StatsDocument {
  std::string status;                ///< "healthy", "unhealthy"
  bool resident = false;             ///< by the last check
  std::string policy;                ///< "vram_only", "allow_host"; empty: no device is watched
  std::int64_t vram_bytes_used = 0;  ///< tracked, of all devices
  std::optional<double> checked_s;   ///< since the last check; absent before the first
  std::vector<StatsReason> reasons;  ///< empty when healthy
  std::vector<StatsUsage> usage;     ///< of all devices, by purpose
  std::vector<StatsDevice> devices;  ///< in order of watch
  std::vector<StatsPool> pools;      ///< in order of watch
};

/// Parses the answer's text as JSON. Throws NotStats when it is not JSON or is nested deeper than
/// /stats.
nlohmann::ordered_json parse_stats(std::string_view text);

/// Reads the JSON into a StatsDocument. Throws NotStats when a member is missing, has another type,
/// or is negative or impossibly large; the accounts of pools may be negative or large. Unknown
/// members are skipped.
StatsDocument read_stats(const nlohmann::ordered_json& json);

/// An earlier answer, for the computation of rates.
struct EarlierStats {
  const StatsDocument* stats = nullptr;  ///< null: none yet
  double elapsed_s = 0.0;                ///< since then
};

/// Returns a look at `stats`. The frame's document stays null. `title` is shown as it is.
MonitorFrame frame_of_stats(const std::string& title, const StatsDocument& stats,
                            const EarlierStats& earlier);

/// `width` characters for the states of blocks: # referenced, ~ fenced, + evictable, x offline,
/// . free. A state's share is its count's, to the character.
std::string block_bar(const StatsBlocks& blocks, int width);

}  // namespace kvarena::tools
