// Kernels of recurrent layers' states: the scatter of their slots against its plain version, to the
// byte, for steps of every size and steps full of nonsense; copies and clearing of whole slots.

#include "kernel/cuda_pool.hpp"
#include "kernels/copy_states/copy_states.h"
#include "kernels/reference/scatter_step.hpp"
#include "kernels/scatter_step/scatter_step.h"

#include "step/group_tables_memory.hpp"
#include "support/status_matchers.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace kvarena::test {
namespace {

using kernels::CopyStatesParams;
using kernels::launch_copy_states;
using kernels::launch_scatter_parts;
using kernels::ScatterPartsParams;
using kernels::ScatterStatesParams;
using kernels::StagedStates;
using kernels::StateShape;

// Validation needs no GPU: nothing is launched.
TEST(CudaStatesArguments, OfCopiesNameWhatIsWrong) {
  alignas(16) std::byte base[64] = {};
  const BlockCopy copy{BlockId(0), BlockId(2)};
  const std::int32_t count = 1;
  const CopyStatesParams good{base, 16, 32, &copy, &count, 1, 4, 8};
  const auto fails = [&](auto change, Resource resource) {
    CopyStatesParams params = good;
    change(params);
    EXPECT_TRUE(
        fails_with(launch_copy_states(params, nullptr), StatusCode::invalid_argument, resource));
  };
  using P = CopyStatesParams&;
  fails([](P p) { p.base = nullptr; }, Resource::pointer);
  fails([](P p) { p.base += 4; }, Resource::alignment);
  fails([](P p) { p.bytes = 24; }, Resource::alignment);
  fails([](P p) { p.slot_stride = 8; }, Resource::alignment);
  fails([](P p) { p.bytes = 80; }, Resource::block_bytes);
  fails([](P p) { p.copies = nullptr; }, Resource::pointer);
  fails([](P p) { p.num_copies = nullptr; }, Resource::pointer);
  fails([](P p) { p.max_copies = -1; }, Resource::capacity);
  fails([](P p) { p.num_slots = 0; }, Resource::num_blocks);
  fails([](P p) { p.num_sms = 0; }, Resource::device);
  CopyStatesParams nothing = good;
  nothing.max_copies = 0;
  EXPECT_OK(launch_copy_states(nothing, nullptr));
}

TEST(CudaStatesArguments, OfScatterNameWhatIsWrong) {
  ScatterPartsParams all{};
  EXPECT_TRUE(fails_with(launch_scatter_parts(all, 0, 1, nullptr), StatusCode::invalid_argument,
                         Resource::pointer));
}

class CudaStateKernels : public CudaTest {};

// Pages of 7 strides with two slots of 3 strides: numbers 0, 3, 7, 10, ..
TEST_F(CudaStateKernels, CopiesMoveAndClearWholeSlots) {
  for (const std::int64_t stride : {16, 1024, 16 * 3001}) {
    const std::int64_t bytes = 3 * stride;
    std::vector<std::byte> host(static_cast<std::size_t>(7 * 4 * stride));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i * 31 + 7);
    const DeviceArray<std::byte> device(host);
    const std::vector<BlockCopy> copies{{BlockId(0), BlockId(24)}, {BlockId(10), BlockId(3)},
                                        {kNoBlock, BlockId(7)},    {kNoBlock, kNoBlock},
                                        {BlockId(28), BlockId(0)}, {BlockId(0), BlockId(28)},
                                        {BlockId(21), BlockId(14)}};
    const DeviceArray<BlockCopy> list(copies);
    for (const std::int32_t count : {0, 3, 7}) {
      const DeviceArray<std::int32_t> number(std::vector<std::int32_t>{count});
      EXPECT_OK(launch_copy_states(
          {device.data(), stride, bytes, list.data(), number.data(), 7, 28, 3}, stream_));
      finish();
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const BlockCopy& copy = copies[i];
        if (copy.source.value >= 28 || copy.target == kNoBlock || copy.target.value >= 28) continue;
        std::byte* const to = host.data() + copy.target.value * stride;
        if (copy.source == kNoBlock) {
          std::memset(to, 0, static_cast<std::size_t>(bytes));
        } else {
          std::memcpy(to, host.data() + copy.source.value * stride,
                      static_cast<std::size_t>(bytes));
        }
      }
      EXPECT_EQ(device.download(), host) << "stride " << stride << ", " << count << " copies";
    }
    // A number of copies past the list is cut to it.
    const DeviceArray<std::int32_t> many(std::vector<std::int32_t>{1 << 30});
    EXPECT_OK(launch_copy_states(
        {device.data(), stride, bytes, list.data(), many.data(), 3, 28, 132}, stream_));
    finish();
  }
}

/// Staging memory that both read, and the arrays of one group of states on either side.
class TwinStates {
 public:
  TwinStates(std::int32_t rows, std::int32_t parts, std::int64_t extras, cudaStream_t stream)
      : plan_(plan_memory(options(rows, parts, extras))),
        stream_(stream),
        image_(host_image()),
        device_(image_) {
    void* staging = nullptr;
    EXPECT_CUDA(cudaHostAlloc(&staging, static_cast<std::size_t>(plan_.staging_bytes),
                              cudaHostAllocDefault));
    staging_ = static_cast<std::byte*>(staging);
    std::memset(staging_, 0, static_cast<std::size_t>(plan_.staging_bytes));
    host_ = place_states(plan_, 0, image_.data(), staging_);
    host_.report = &host_report_;
    host_.expected_word = nullptr;
    part_ = place_arrays(plan_, 0, true, device_.data(), staging_);
    params_ = place_states(plan_, 0, device_.data(), staging_);
  }
  ~TwinStates() { EXPECT_CUDA(cudaFreeHost(staging_)); }
  TwinStates(const TwinStates&) = delete;
  TwinStates& operator=(const TwinStates&) = delete;

  const StateShape& shape() const { return host_.shape; }
  std::byte* slot(std::int32_t index) const {
    return staging_ + plan_.states[0].ring + index * shape().slot_bytes();
  }
  StagedStates& header(std::int32_t index) const {
    return *reinterpret_cast<StagedStates*>(slot(index));
  }
  std::uint64_t taken() const { return host_.state->step.serial; }
  /// Runs both for a step, by a word of the parameters or of the device, beside `num_parts` parts;
  /// whether the arrays and the report are equal.
  bool run_and_compare(kernels::StepWord expected, bool is_recorded, bool has_part) {
    ScatterPartsParams all{};
    all.parts[0] = part_;
    all.states[0] = params_;
    if (is_recorded) {
      EXPECT_CUDA(cudaMemcpy(device_.data() + plan_.expected_word, &expected, sizeof(expected),
                             cudaMemcpyHostToDevice));
      std::memcpy(image_.data() + plan_.expected_word, &expected, sizeof(expected));
    } else {
      all.parts[0].expected_word = all.states[0].expected_word = nullptr;
      all.parts[0].expected = all.states[0].expected = expected;
    }
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_OK(launch_scatter_parts(all, has_part ? 1 : 0, 1, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    host_.expected = expected;
    kernels::reference::scatter_states(host_);
    EXPECT_EQ(params_.report->misses, host_report_.misses);
    EXPECT_EQ(params_.report->taken, host_report_.taken);
    const std::vector<std::byte> found = device_.download();
    const auto equal = [&](std::int64_t place, std::int64_t bytes) {
      return std::memcmp(found.data() + place, image_.data() + place,
                         static_cast<std::size_t>(bytes)) == 0;
    };
    const GroupStatesMemory& its = plan_.states[0];
    const std::int64_t slots = 4 * shape().num_slots();
    EXPECT_TRUE(equal(its.read, slots)) << "read";
    EXPECT_TRUE(equal(its.write, slots)) << "write";
    EXPECT_TRUE(equal(its.copies, 2 * slots)) << "copies";
    EXPECT_TRUE(equal(its.extra_offsets, 4 * (shape().max_rows + 1))) << "extra_offsets";
    EXPECT_TRUE(equal(its.extra_tokens, 4 * std::int64_t{shape().max_extras})) << "extra_tokens";
    EXPECT_TRUE(equal(its.extra_slots, 4 * std::int64_t{shape().max_extras} * shape().num_parts))
        << "extra_slots";
    EXPECT_TRUE(equal(its.state, sizeof(kernels::TakenStates))) << "state";
    return !::testing::Test::HasFailure();
  }

 private:
  static GroupTablesOptions options(std::int32_t rows, std::int32_t parts, std::int64_t extras) {
    return {.limits = {.steps_in_flight = 3,
                       .max_rows = rows,
                       .max_tokens = 4 * rows,
                       .max_blocks = 64},
            .max_sequences = rows,
            .max_sequence_tokens = 100,
            .parts = {{{PagedKind::full, 16}, 0}},
            .states = {{parts, extras}}};
  }
  std::vector<std::byte> host_image() const {
    std::vector<std::byte> image(static_cast<std::size_t>(plan_.device_bytes));
    std::memset(image.data(), 0xff, static_cast<std::size_t>(plan_.zeros));
    return image;
  }

  GroupTablesMemory plan_;
  cudaStream_t stream_;
  std::vector<std::byte> image_;
  DeviceArray<std::byte> device_;
  std::byte* staging_ = nullptr;
  kernels::ScatterReport host_report_;
  ScatterStatesParams host_;
  ScatterStatesParams params_;
  kernels::ScatterStepParams part_;
};

TEST_F(CudaStateKernels, ScatterEqualsItsPlainVersion) {
  for (int round = 0; round < rounds(60) && !HasFailure(); ++round) {
    std::mt19937_64 random(first_seed() + static_cast<std::uint64_t>(round));
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    const auto rows = static_cast<std::int32_t>(1 + below(round % 4 == 0 ? 600 : 40));
    const auto parts = static_cast<std::int32_t>(1 + below(30));
    const std::int64_t extras = round % 5 == 0 ? 0 : below(3 * rows);
    TwinStates twin(rows, parts, extras, stream_);
    SCOPED_TRACE("round " + std::to_string(round) + ", rows " + std::to_string(rows) + ", parts " +
                 std::to_string(parts) + ", extras " + std::to_string(extras));
    std::uint64_t serial = 0;
    for (int step = 0; step < 20; ++step) {
      const auto slot = static_cast<std::int32_t>(below(3));
      auto* const words = reinterpret_cast<std::int32_t*>(twin.slot(slot));
      for (std::int64_t i = StateShape::kReadOffset / 4; i < twin.shape().slot_bytes() / 4; ++i) {
        words[i] = static_cast<std::int32_t>(random());
      }
      const bool is_nonsense = below(6) == 0;
      const auto count = [&](std::int64_t most) {
        if (is_nonsense && below(2) == 0) return static_cast<std::int32_t>(random());
        return static_cast<std::int32_t>(below(most + 1));
      };
      StagedStates& header = twin.header(slot);
      header.step = {.serial = ++serial,
                     .follows = twin.taken(),
                     .num_rows = count(rows),
                     .num_copies = count(twin.shape().num_slots())};
      header.num_extras = count(extras);
      const std::uint64_t named = below(7) == 0 ? serial + 1 : serial;
      if (!twin.run_and_compare(kernels::step_word(named, slot), below(2) == 0, below(2) == 0)) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace kvarena::test
