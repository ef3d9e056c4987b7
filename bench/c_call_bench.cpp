// What a call through the C interface costs over the same call in C++: both on caches of their own
// with the same options, in the same process, call by call in turns. The aim is 20 ns a call.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/kvarena.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using namespace kvarena;

constexpr int kCalls = 20'000;
constexpr int kRounds = 41;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}
void require(const kvarena_status& status, const char* what) { require(status.code == 0, what); }

/// Returns the nanoseconds of one of kCalls calls.
template <class Call>
double nanoseconds(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  return time.count() / kCalls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

/// Measures both in turns and prints their medians.
template <class Cpp, class C>
void compare(const char* name, Cpp&& cpp, C&& c) {
  std::vector<double> in_cpp, in_c;
  for (int round = 0; round < kRounds; ++round) {
    in_cpp.push_back(nanoseconds(cpp));
    in_c.push_back(nanoseconds(c));
  }
  std::printf("%-24s %9.1f %9.1f %+9.1f\n", name, median(in_cpp), median(in_c),
              median(in_c) - median(in_cpp));
}

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}

/// Keeps a value that nothing reads.
volatile std::int64_t sink;

/// Has the values written to memory, as a caller that reads all of them would.
template <class... Values>
void keep(const Values*... values) {
  const std::array<const void*, sizeof...(values)> all{values...};
  asm volatile("" : : "r"(all.data()) : "memory");
}

/// All figures: one call in C, five in C++.
void compare_statistics(KvCache& cache, kvarena_cache* c_cache) {
  compare(
      "statistics",
      [&] {
        const PoolSnapshot published = cache.snapshot();
        const BlockStats blocks = cache.manager().stats();
        const TableStats tables = cache.tables().stats();
        const std::int64_t tickets = cache.manager().num_open_tickets();
        const Ticket oldest = cache.manager().oldest_open_ticket();
        keep(&published, &blocks, &tables, &tickets, &oldest);
      },
      [&] {
        kvarena_stats stats;
        stats.struct_size = sizeof stats;
        require(kvarena_cache_stats(c_cache, &stats), "stats");
        keep(&stats);
      });
}

/// The calls of a cache.
void compare_caches() {
  auto device = HostDevice::create().value();
  KvCache cache =
      KvCache::create(*device, {.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 16},
                                .size = {.num_blocks = 4096},
                                .num_q_heads = 1,
                                .num_threads = 1})
          .value();
  const SequenceId sequence = cache.create_sequence().value();

  kvarena_device* c_device = nullptr;
  kvarena_cache* c_cache = nullptr;
  kvarena_sequence c_sequence = 0;
  auto c_options = sized<kvarena_cache_options>();
  c_options.num_layers = c_options.num_kv_heads = c_options.num_q_heads = c_options.num_threads = 1;
  c_options.head_dim_k = 16;
  c_options.num_blocks = 4096;
  require(kvarena_device_open_host(nullptr, &c_device), "open");
  require(kvarena_cache_create(c_device, &c_options, &c_cache), "create");
  require(kvarena_sequence_create(c_cache, nullptr, &c_sequence), "create a sequence");
  compare(
      "can_allocate", [&] { sink = cache.manager().can_allocate(7, Urgency::growth); },
      [&] {
        bool can = false;
        require(kvarena_cache_can_allocate(c_cache, 7, KVARENA_GROWTH, &can), "can_allocate");
        sink = can;
      });
  compare(
      "slot of a token", [&] { sink = cache.tables().slot_of(sequence, 0).is_ok(); },
      [&] {
        std::int64_t slot = 0;
        sink = kvarena_sequence_slot(c_cache, c_sequence, 0, &slot).code;
      });
  compare(
      "reserve of a sequence", [&] { sink = cache.reserve_capacity(sequence, 16).is_ok(); },
      [&] { sink = kvarena_sequence_reserve(c_cache, c_sequence, 16, 0).code; });
  compare_statistics(cache, c_cache);
  require(kvarena_cache_release(c_cache), "release");
  require(kvarena_device_release(c_device), "release");
}

/// Two calls of a pool.
void compare_pools() {
  BlockManager manager = BlockManager::create({.num_blocks = 4096}).value();
  const HolderId holder = manager.register_holder({}).value();
  kvarena_pool* c_pool = nullptr;
  kvarena_holder c_holder = 0;
  auto pool_options = sized<kvarena_pool_options>();
  pool_options.num_blocks = 4096;
  require(kvarena_pool_create(&pool_options, &c_pool), "create a pool");
  require(kvarena_pool_open_holder(c_pool, nullptr, &c_holder), "open a holder");
  BlockId id;
  Generation generation;
  std::int32_t block = 0;
  std::uint32_t c_generation = 0;
  compare(
      "allocate and free (two)",
      [&] {
        sink = *manager.allocate(holder, {&id, 1}, {&generation, 1});
        require(manager.release(holder, {&id, 1}, {&generation, 1}).is_ok(), "release");
      },
      [&] {
        require(kvarena_pool_allocate(c_pool, c_holder, 1, 0, &block, &c_generation, nullptr),
                "allocate");
        require(kvarena_pool_free(c_pool, c_holder, &block, &c_generation, 1, 0), "free");
      });
  require(kvarena_pool_release(c_pool), "release");
}

}  // namespace

int main() {
  std::printf("nanoseconds a call              C++         C      more\n");
  compare_caches();
  compare_pools();
  return 0;
}
