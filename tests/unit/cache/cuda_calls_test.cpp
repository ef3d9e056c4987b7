// Every CUDA allocation and free that the process makes is one that the tracker recorded.

#include "unit/cache/cuda_calls.hpp"
#include "support/gpu.hpp"
#include "support/log_capture.hpp"
#include "unit/cache/memory_game.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::CudaCall;

constexpr std::uint64_t kAlignmentBytes = 4096;  // the game's one request for more than usual

/// The calls so far, added up.
class Ledger {
 public:
  /// Adds what was seen since. A piece that came less aligned than asked for goes back at once and
  /// one larger by the alignment is taken: [allocate p n] [free p] [allocate q n + alignment].
  /// Nobody else's call lies in between, since the game has one thread.
  void add(const std::vector<CudaCall>& calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const CudaCall& call = calls[i];
      const bool allocates = call.kind == CudaCall::Kind::allocate;
      ++by_function[call.function];
      ++(allocates ? allocations : frees);
      if (allocates) {
        live[call.pointer] = call.bytes;
      } else {
        EXPECT_EQ(live.erase(call.pointer), 1U) << call.function << " of what nobody saw given";
      }
      const bool is_realigned =
          i + 2 < calls.size() && allocates && calls[i + 1].kind == CudaCall::Kind::free &&
          calls[i + 1].pointer == call.pointer && calls[i + 2].kind == CudaCall::Kind::allocate &&
          calls[i + 2].bytes == call.bytes + kAlignmentBytes;
      if (is_realigned) ++realignments;
    }
  }
  /// The recorded allocation lies in a live piece, and no other does.
  void expect_covers(const AllocationRecord& record) const {
    auto it = live.upper_bound(record.pointer);
    ASSERT_NE(it, live.begin()) << record.description;
    --it;
    const auto offset = static_cast<std::uint64_t>(static_cast<char*>(record.pointer) -
                                                   static_cast<char*>(it->first));
    EXPECT_LE(offset + record.bytes, it->second) << record.description;
  }

  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t realignments = 0;
  std::map<void*, std::uint64_t> live;
  std::map<std::string, int> by_function;
};

TEST(CudaCalls, SeenEqualRecorded) {
  KVARENA_NEEDS_GPU();
  static_cast<void>(test::take_cuda_calls());
  Ledger seen;
  {
    const auto device = test::make_cuda();
    ASSERT_NE(device, nullptr);
    test::play_memory_game(*device, 10, [&] {
      seen.add(test::take_cuda_calls());
      const MemoryBreakdown recorded = device->tracker().breakdown();
      EXPECT_EQ(seen.allocations, recorded.allocations_ever + seen.realignments);
      EXPECT_EQ(seen.frees, recorded.frees_ever + seen.realignments);
      EXPECT_EQ(seen.live.size(), recorded.total.count + recorded.staging.count);
      for (const AllocationRecord& record : device->tracker().allocations()) {
        seen.expect_covers(record);
      }
      const ResidencyReport report = verify_residency(*device);
      EXPECT_TRUE(report.resident);
      for (const ResidencyViolation& violation : report.violations) {
        ADD_FAILURE() << describe(violation);
      }
    });
  }
  seen.add(test::take_cuda_calls());
  EXPECT_TRUE(seen.live.empty()) << seen.live.size() << " pieces were never given back";
  EXPECT_LE(seen.realignments, 10U);  // one request a round wants more than the driver promises
  EXPECT_GT(seen.allocations, 40U);
  for (const auto& [function, count] : seen.by_function) {
    std::cout << function << ' ' << count << '\n';
    const bool is_ours = function == "cudaMalloc" || function == "cudaHostAlloc" ||
                         function == "cudaFree" || function == "cudaFreeHost";
    EXPECT_TRUE(is_ours) << function;
  }
}

TEST(CudaCalls, NobodyLooksUpTheDriversAllocationCalls) {
  KVARENA_NEEDS_GPU();
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  test::live_once(*device, 32, [] {});
  const std::vector<std::string> functions = test::driver_functions_looked_up();
  EXPECT_FALSE(functions.empty());
  for (const std::string& function : functions) {
    const bool takes_memory = function.rfind("cuMem", 0) == 0 && function != "cuMemGetAddressRange";
    EXPECT_FALSE(takes_memory) << function;
  }
}

TEST(CudaCalls, MemoryThatIsNotVramIsRefusedAtCreation) {
  KVARENA_NEEDS_GPU();
  const test::LogCapture log(LogLevel::error);
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  static_cast<void>(test::take_cuda_calls());
  for (const MemoryPurpose purpose : {MemoryPurpose::kv_cache, MemoryPurpose::model_weights,
                                      MemoryPurpose::intermediate_buffers}) {
    test::lie_about_device_memory(true);
    const auto refused = device->allocate(
        {.bytes = 65536, .purpose = purpose, .description = "not where it should be"});
    test::lie_about_device_memory(false);
    EXPECT_FAILS(refused, residency_violated, allocation);
    const std::string text = device->describe(refused.status());
    for (const char* part : {"VRAM residency violated", "managed", "not where it should be",
                             "cudaMemoryTypeManaged", "IS_MANAGED 1"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in " << text;
    }
  }
  EXPECT_TRUE(log.contains(LogLevel::error, "VRAM residency violated"));
  EXPECT_EQ(device->tracker().breakdown().allocations_ever, 0U);
  Ledger seen;
  seen.add(test::take_cuda_calls());
  EXPECT_EQ(seen.allocations, 3U);
  EXPECT_TRUE(seen.live.empty());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  test::live_once(*device, 32, [] {});  // and the device goes on
}

}  // namespace
}  // namespace kvarena
