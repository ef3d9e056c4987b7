// The scatter of a step on the GPU against its plain version, to the byte: steps of every size, and
// steps full of nonsense, which must harm nobody.

#include "kernel/cuda_pool.hpp"
#include "kernels/reference/scatter_step.hpp"
#include "kernels/scatter_step/scatter_step.h"

#include "support/status_matchers.hpp"

#include "step/device_tables_memory.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

namespace kvarena::test {
namespace {

using kernels::launch_scatter_step;
using kernels::ScatterState;
using kernels::ScatterStepParams;
using kernels::StagedHeader;
using kernels::StagedRow;
using kernels::StepShape;

/// Staging memory that both read, and arrays on either side.
class TwinStep {
 public:
  TwinStep(const DeviceTablesOptions& options, cudaStream_t stream)
      : plan_(plan_memory(options)), stream_(stream), image_(host_image()), device_(image_) {
    void* staging = nullptr;
    EXPECT_CUDA(cudaHostAlloc(&staging, static_cast<std::size_t>(plan_.staging_bytes),
                              cudaHostAllocDefault));
    staging_ = static_cast<std::byte*>(staging);
    std::memset(staging_, 0, static_cast<std::size_t>(plan_.staging_bytes));
    host = place_arrays(plan_, image_.data(), staging_);
    host.report = &host_report_;
    device = place_arrays(plan_, device_.data(), staging_);
    host.expected_word = device.expected_word = nullptr;
  }
  ~TwinStep() { EXPECT_CUDA(cudaFreeHost(staging_)); }
  TwinStep(const TwinStep&) = delete;
  TwinStep& operator=(const TwinStep&) = delete;

  std::byte* slot(std::int32_t index) const {
    return staging_ + plan_.ring + index * plan_.shape.slot_bytes();
  }
  /// Runs both for a step; the first byte of the arrays that differs, or -1.
  std::int64_t run_and_compare(kernels::StepWord expected) {
    host.expected = device.expected = expected;
    EXPECT_OK(launch_scatter_step(device, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    kernels::reference::scatter_step(host);
    EXPECT_EQ(device.report->misses, host_report_.misses);
    EXPECT_EQ(device.report->taken, host_report_.taken);
    const std::vector<std::byte> found = device_.download();
    const auto [at, wanted] = std::mismatch(found.begin(), found.end(), image_.begin());
    return at == found.end() ? -1 : at - found.begin();
  }
  /// Which array a byte belongs to.
  std::string place_of(std::int64_t byte) const {
    const std::pair<const char*, std::int64_t> arrays[] = {{"block_tables", plan_.block_tables},
                                                           {"row_slots", plan_.row_slots},
                                                           {"slots", plan_.slots},
                                                           {"copies", plan_.copies},
                                                           {"row_offsets", plan_.row_offsets},
                                                           {"seq_lens", plan_.seq_lens},
                                                           {"num_blocks", plan_.num_blocks},
                                                           {"q_offsets", plan_.q_offsets},
                                                           {"state", plan_.state},
                                                           {"word", plan_.expected_word}};
    std::string place = "none";
    for (const auto& [name, offset] : arrays) {
      if (byte >= offset) place = std::string(name) + " + " + std::to_string(byte - offset);
    }
    return place;
  }

  ScatterStepParams host{};
  ScatterStepParams device{};

 private:
  std::vector<std::byte> host_image() const {
    std::vector<std::byte> image(static_cast<std::size_t>(plan_.device_bytes));
    std::fill_n(image.begin(), plan_.zeros, std::byte{0xff});
    return image;
  }
  DeviceTablesMemory plan_;
  cudaStream_t stream_;
  std::vector<std::byte> image_;
  DeviceArray<std::byte> device_;
  std::byte* staging_ = nullptr;
  kernels::ScatterReport host_report_;
};

/// What the rows of a step are like: any, as in decode at most one new token and few changes, or
/// those of sequences that mostly go on by one token.
enum class RowKind : std::uint8_t { any, decode, steady };

/// Writes steps of random rows. Their tables are apart: two rows of one sequence have no order.
class StepWriter {
 public:
  StepWriter(const StepShape& shape, std::uint64_t seed, RowKind kind = RowKind::any)
      : shape_(shape),
        kind_(kind),
        random_(seed),
        order_(static_cast<std::size_t>(std::min(shape.max_sequences, shape.max_rows))) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  /// Returns the step's serial number. One in `nonsense` rows and headers is broken; 0: none.
  std::uint64_t write(std::byte* slot, std::uint64_t follows, std::uint64_t nonsense) {
    StagedHeader header{.serial = follows + 1 + below(3), .follows = follows};
    const std::uint64_t most = order_.size();
    header.num_rows =
        static_cast<std::int32_t>(kind_ == RowKind::steady ? most - below(2) : below(most + 1));
    header.num_copies = below(3) == 0 ? static_cast<std::int32_t>(below(9)) : 0;
    if (nonsense != 0 && below(nonsense) == 0) {
      (below(2) == 0 ? header.num_rows : header.num_copies) = any_int();
    }
    if (nonsense != 0 && below(nonsense) == 0) header.follows = below(5);
    std::memcpy(slot, &header, sizeof(header));
    auto* rows = reinterpret_cast<StagedRow*>(slot + StepShape::kRowsOffset);
    std::fill_n(rows, shape_.max_rows, StagedRow{});
    std::shuffle(order_.begin(), order_.end(), random_);
    std::int64_t next = 0;
    if (kind_ == RowKind::steady) {
      go_on(rows);
    } else {
      for (const std::int32_t r : order_) rows[r] = any_row(next);
    }
    for (std::int32_t r = 0; r < shape_.max_rows; ++r) {
      if (nonsense != 0 && below(nonsense) == 0) break_row(rows[r]);
    }
    auto* words = reinterpret_cast<std::int32_t*>(slot + shape_.copies_offset());
    const std::int64_t count = (shape_.slot_bytes() - shape_.copies_offset()) / 4;
    for (std::int64_t i = 0; i < count; ++i) {
      words[i] = static_cast<std::int32_t>(below(1 << 20));
    }
    return header.serial;
  }
  /// The word that names the step, or now and then anything.
  kernels::StepWord name(std::uint64_t serial, std::int32_t slot, std::uint64_t nonsense) {
    if (nonsense != 0 && below(nonsense) == 0) return random_();
    return kernels::step_word(serial, slot);
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::int32_t any_int() { return static_cast<std::int32_t>(random_()); }
  std::int32_t up_to(std::int32_t most) {
    const auto end = static_cast<std::uint64_t>(most) + 1;
    return static_cast<std::int32_t>(below(4) == 0 ? below(end) : below(std::min(end, 3UL)));
  }
  /// A row whose table begins at granule `next`, which goes on to the one behind; skipped where it
  /// has no place any more.
  StagedRow any_row(std::int64_t& next) {
    StagedRow row{.granule = static_cast<std::int32_t>(next)};
    const std::int32_t most = shape_.max_blocks_a_row * shape_.block_size;
    row.seq_len = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(most) + 1));
    row.num_new = up_to(row.seq_len);
    const std::int32_t blocks = (row.seq_len + shape_.block_size - 1) / shape_.block_size;
    row.num_changed = up_to(blocks);
    if (kind_ == RowKind::decode) {
      row.num_new = std::min(row.seq_len, below(9) == 0 ? 0 : 1);
      row.num_changed = std::min(blocks, static_cast<std::int32_t>(below(3) == 0 ? below(5) : 0));
    }
    const std::int64_t end = next + std::max<std::int64_t>(1, (blocks + 31) / 32);
    if (end * StepShape::kGranule > shape_.table_entries) return {};
    next = end;
    return row;
  }
  /// Makes each row the next step of a sequence. Now and then sequences change places, one is
  /// replaced, has no new token or two, a copy on write or no new entry for a new block.
  void go_on(StagedRow* rows) {
    const std::int32_t most = shape_.max_blocks_a_row * shape_.block_size - 2;
    const std::int32_t granules = (shape_.max_blocks_a_row + 31) / 32;
    if (steady_.empty()) {
      for (std::size_t i = 0; i < order_.size(); ++i) {
        steady_.push_back({.granule = static_cast<std::int32_t>(i) * granules, .seq_len = 1});
      }
    }
    if (below(2) == 0) std::swap(steady_[below(steady_.size())], steady_[below(steady_.size())]);
    for (StagedRow& row : steady_) {
      const std::uint64_t chance = below(50);
      row.num_new = chance == 0 ? 0 : chance == 1 ? 2 : 1;
      if (chance == 2 || row.seq_len >= most) row.seq_len = static_cast<std::int32_t>(below(40));
      const bool begins = row.seq_len % shape_.block_size == 0;
      row.seq_len += row.num_new;
      row.num_changed = row.seq_len == 0 ? 0 : begins || below(20) == 0 ? 1 : 0;
      if (below(30) == 0) row.num_changed = 0;
      *rows++ = row;
    }
  }
  void break_row(StagedRow& row) {
    switch (below(4)) {
      case 0: row.granule = -1 - static_cast<std::int32_t>(below(1 << 30)); break;
      case 1: row.seq_len = any_int() | 1 << 30; break;
      case 2: row.num_new = any_int() | std::numeric_limits<std::int32_t>::min(); break;
      default: row.num_changed = row.seq_len + 1 + static_cast<std::int32_t>(below(1000));
    }
  }

  StepShape shape_;
  RowKind kind_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> order_;  // in which rows take their places
  std::vector<StagedRow> steady_;    // the last step of each row
};

class CudaScatterStep : public CudaTest {
 protected:
  void play(const DeviceTablesOptions& options, int steps, std::uint64_t nonsense,
            RowKind kind = RowKind::any) {
    TwinStep twin(options, stream_);
    StepWriter writer(twin.host.shape, static_cast<std::uint64_t>(options.limits.max_rows), kind);
    const auto slots = static_cast<std::uint64_t>(options.limits.steps_in_flight);
    kernels::StepWord expected = 0;
    for (int step = 0; step < steps; ++step) {
      // A launch without a new step finds what an old one left: a miss.
      const auto slot = static_cast<std::int32_t>(static_cast<std::uint64_t>(step) % slots);
      if (step % 7 != 6) {
        const std::uint64_t serial =
            writer.write(twin.slot(slot), twin.host.state->serial, nonsense);
        expected = writer.name(serial, slot, nonsense);
      }
      const std::int64_t byte = twin.run_and_compare(expected);
      ASSERT_EQ(byte, -1) << twin.place_of(byte) << " at step " << step << ", max_rows "
                          << options.limits.max_rows << ", nonsense " << nonsense;
    }
    EXPECT_GT(twin.host.state->serial, 0U);
    EXPECT_GT(twin.host.state->misses, 0U);
  }
};

DeviceTablesOptions options_of(std::int32_t rows, std::int64_t tokens, std::int64_t blocks,
                               std::int32_t blocks_a_row, std::int32_t block_size) {
  return {.limits = {.steps_in_flight = 3,
                     .max_rows = rows,
                     .max_tokens = tokens,
                     .max_blocks = blocks},
          .max_sequences = rows + 5,
          .max_sequence_blocks = blocks_a_row,
          .block_size_tokens = block_size};
}

// Where the limits bite, sums are kept within the arrays.
TEST_F(CudaScatterStep, EqualsTheReference) {
  play(options_of(1, 9, 3, 3, 4), 60, 0);
  play(options_of(31, 2000, 500, 40, 16), 60, 0);
  play(options_of(1023, 100'000, 20'000, 17, 7), 20, 0);
  play(options_of(1024, 1'000'000, 60'000, 64, 1), 20, 0);
  play(options_of(1025, 3000, 1000, 64, 16), 20, 0);
  play(options_of(4000, 300'000, 100'000, 33, 16), 15, 0);
  play(options_of(300, 20'000, 2000, 3000, 16), 30, 0);  // tables share a small pool
}

TEST_F(CudaScatterStep, EqualsTheReferenceInDecodeSteps) {
  play(options_of(1, 9, 30, 3, 4), 60, 0, RowKind::decode);
  play(options_of(300, 2000, 4000, 40, 16), 60, 0, RowKind::decode);
  play(options_of(300, 200, 100, 40, 16), 60, 0, RowKind::decode);
  play(options_of(1024, 2000, 60'000, 64, 16), 40, 0, RowKind::decode);
  play(options_of(3000, 9000, 60'000, 64, 1), 20, 0, RowKind::decode);
  play(options_of(1024, 2000, 9000, 64, 3), 40, 50, RowKind::decode);
}

// The slot of a new token is found from the step before, where that was one of the same sequence.
TEST_F(CudaScatterStep, EqualsTheReferenceInStepsThatFollowOneAnother) {
  play(options_of(1, 9, 30, 40, 4), 300, 0, RowKind::steady);
  play(options_of(20, 300, 2000, 40, 16), 400, 0, RowKind::steady);
  play(options_of(20, 15, 2000, 40, 5), 400, 0, RowKind::steady);
  play(options_of(300, 2000, 12'000, 40, 16), 100, 0, RowKind::steady);
  play(options_of(1100, 2000, 44'000, 40, 16), 60, 60, RowKind::steady);
}

TEST_F(CudaScatterStep, NonsenseIsSkippedAndStaysWithinTheArrays) {
  play(options_of(1, 9, 3, 3, 4), 200, 3);
  play(options_of(40, 300, 200, 40, 16), 200, 5);
  play(options_of(1100, 20'000, 9000, 64, 3), 40, 20);
  play(options_of(40, 900, 100, 700, 3), 100, 5);
}

TEST_F(CudaScatterStep, ACapturedLaunchTakesTheStepThatTheDevicesWordNames) {
  const DeviceTablesOptions options = options_of(31, 2000, 500, 40, 16);
  TwinStep twin(options, stream_);
  StepWriter writer(twin.host.shape, 3);
  DeviceArray<kernels::StepWord> word(std::vector<kernels::StepWord>{0});
  twin.device.expected_word = word.data();
  for (std::int32_t step = 0; step < 60; ++step) {
    const std::int32_t slot = step % 3;
    const std::uint64_t serial = writer.write(twin.slot(slot), twin.host.state->serial, 0);
    // One in five launches is for a step that is not there.
    const kernels::StepWord expected = kernels::step_word(serial + (step % 5 == 4 ? 1 : 0), slot);
    word.upload(std::span(&expected, 1));
    const std::int64_t byte = twin.run_and_compare(expected);
    ASSERT_EQ(byte, -1) << twin.place_of(byte) << " at step " << step;
  }
  EXPECT_EQ(twin.host.state->misses, 12U);
}

TEST_F(CudaScatterStep, BadArgumentsAreNamed) {
  TwinStep twin(options_of(4, 4, 4, 4, 4), stream_);
  ScatterStepParams params = twin.device;
  params.ring = nullptr;
  EXPECT_FAILS(launch_scatter_step(params, stream_), invalid_argument, pointer);
  params = twin.device;
  params.state = nullptr;
  EXPECT_FAILS(launch_scatter_step(params, stream_), invalid_argument, pointer);
  params = twin.device;
  params.ring += 8;
  EXPECT_FAILS(launch_scatter_step(params, stream_), invalid_argument, alignment);
}

}  // namespace
}  // namespace kvarena::test
