// A decode step of two layers captured once and replayed 1,000 times while sequences grow, join,
// leave and fork: blocks are overwritten with NaN when they are freed and copied when a fork writes
// into them, all in the graph. Every replay equals an eager run, every fiftieth the reference.

#include "kernel/attention_case.hpp"
#include "kernel/campaign.hpp"
#include "kernel/cuda_pool.hpp"
#include "kernels/append/append.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/decode_shape.h"
#include "kernels/reference/attention.hpp"
#include "kernels/reference/kv_write.hpp"

#include "support/status_matchers.hpp"

#include <algorithm>
#include <array>

namespace kvarena::test {
namespace {

using kernels::TokenRun;

constexpr std::int32_t kRows = 10;
constexpr std::int32_t kKvHeads = 2;
constexpr std::int32_t kGroup = 4;
constexpr std::int32_t kDim = 64;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kMaxBlocks = 20;   // of a sequence
constexpr std::int32_t kMaxChanges = 64;  // copies of each kind a step
// Enough free ones that no block has a new owner in the step that frees it.
constexpr std::int32_t kUsedBlocks = kRows * kMaxBlocks + kMaxChanges;
constexpr BlockId kPoison{kUsedBlocks};  // NaN throughout
constexpr std::int32_t kPoolBlocks = kUsedBlocks + 1;
constexpr std::int32_t kLayers = 2;
constexpr std::int64_t kLayerBytes = 2LL * kKvHeads * kBlockSize * kDim * 2;
constexpr std::int64_t kBlockBytes = kLayers * kLayerBytes;
constexpr std::int32_t kQHeads = kKvHeads * kGroup;
constexpr std::int64_t kNewElements = kRows * kKvHeads * kDim;
constexpr std::int64_t kOutElements = kRows * kQHeads * kDim;

KvLayerView layer_view(std::byte* base, std::int32_t layer) {
  PlaneView plane;
  plane.num_heads = kKvHeads;
  plane.head_dim = kDim;
  plane.dtype = DType::bf16;
  plane.token_stride = kDim * 2;
  plane.head_stride = plane.token_stride * kBlockSize;
  plane.block_stride = kBlockBytes;
  plane.tile_order = TileOrder::chunked;
  KvLayerView kv;
  kv.key = kv.value = plane;
  kv.key.base = base + layer * kLayerBytes;
  kv.value.base = kv.key.base + kLayerBytes / 2;
  kv.block_size = kBlockSize;
  kv.num_blocks = kPoolBlocks;
  return kv;
}

/// What an engine would hold: blocks shared by forks, and what a step has to do. On the host.
class Sequences {
 public:
  Sequences() {
    for (std::int32_t id = kUsedBlocks - 1; id >= 0; --id) free_.push_back(id);
    tables.assign(std::size_t{kRows} * kMaxBlocks, BlockId{1 << 28});
  }

  /// One step: some leave, one may fork, the others grow by a token.
  void advance(Dice& dice) {
    copies.assign(kMaxChanges, BlockCopy{kNoBlock, kNoBlock});
    poisoned.assign(kMaxChanges, BlockCopy{kNoBlock, kNoBlock});
    num_copies_ = num_poisoned_ = 0;
    if (dice.once_in(20)) leave(dice.between(0, kRows - 1));
    if (dice.once_in(10)) fork(dice.between(0, kRows - 1), dice.between(0, kRows - 1));
    for (std::int32_t row = 0; row < kRows; ++row) {
      const bool joins_later = lengths[at(row)] == 0 && !dice.once_in(4);
      runs[at(row)] = {joins_later ? -1 : row, lengths[at(row)]};
      if (!joins_later) grow(row);
    }
  }

  std::vector<BlockId> tables;  // [kRows, kMaxBlocks]
  std::vector<std::int32_t> lengths = std::vector<std::int32_t>(kRows, 0);
  std::vector<TokenRun> runs = std::vector<TokenRun>(kRows);  // one token of each row
  std::vector<BlockCopy> copies;
  std::vector<BlockCopy> poisoned;  // what has been freed

 private:
  static std::size_t at(std::int32_t row) { return static_cast<std::size_t>(row); }
  BlockId& entry(std::int32_t row, std::int32_t j) {
    return tables[static_cast<std::size_t>(row * kMaxBlocks + j)];
  }
  static std::int32_t blocks_of(std::int32_t length) {
    return (length + kBlockSize - 1) / kBlockSize;
  }
  std::int32_t take() {
    const std::int32_t id = free_.front();  // the block that was freed longest ago
    free_.erase(free_.begin());
    references_[at(id)] = 1;
    return id;
  }
  void release(std::int32_t id) {
    if (--references_[at(id)] > 0) return;
    free_.push_back(id);
    poisoned[at(num_poisoned_++)] = {kPoison, BlockId(id)};
  }
  void leave(std::int32_t row) {
    for (std::int32_t j = 0; j < blocks_of(lengths[at(row)]); ++j) release(entry(row, j).value);
    for (std::int32_t j = 0; j < kMaxBlocks; ++j) entry(row, j) = BlockId{1 << 28};
    lengths[at(row)] = 0;
  }
  void fork(std::int32_t from, std::int32_t to) {
    if (from == to || num_poisoned_ > 0) return;
    leave(to);
    lengths[at(to)] = lengths[at(from)];
    for (std::int32_t j = 0; j < blocks_of(lengths[at(from)]); ++j) {
      entry(to, j) = entry(from, j);
      ++references_[at(entry(from, j).value)];
    }
  }
  void grow(std::int32_t row) {
    if (lengths[at(row)] == kMaxBlocks * kBlockSize) {
      // Full: the next token starts it anew; its blocks are overwritten by the next step.
      runs[at(row)] = {-1, 0};
      if (num_poisoned_ + kMaxBlocks <= kMaxChanges) leave(row);
      return;
    }
    const std::int32_t j = lengths[at(row)] / kBlockSize;
    if (lengths[at(row)] % kBlockSize == 0) {
      entry(row, j) = BlockId(take());
    } else if (const std::int32_t id = entry(row, j).value; references_[at(id)] > 1) {
      --references_[at(id)];
      entry(row, j) = BlockId(take());
      copies[at(num_copies_++)] = {BlockId(id), entry(row, j)};
    }
    ++lengths[at(row)];
  }

  std::vector<std::int32_t> free_;
  std::array<std::int32_t, kPoolBlocks> references_{};
  std::int32_t num_copies_ = 0;
  std::int32_t num_poisoned_ = 0;
};

class CudaReplay : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    limits_.max_rows = kRows;
    limits_.num_q_heads = kQHeads;
    limits_.num_kv_heads = kKvHeads;
    limits_.head_dim = kDim;
    limits_.num_sms = 132;
    limits_.has_clusters = has_clusters();
    limits_.step_rows = 1;  // not true, but then there are clusters
    limits_.step_row_tokens = limits_.step_longest = 1000;
    EXPECT_EQ(kernels::decode_shape(limits_).cluster > 1, has_clusters());
    host_pool_.assign(static_cast<std::size_t>(kPoolBlocks * kBlockBytes), std::byte{0xFF});
    pool_ = DeviceArray<std::byte>(host_pool_);
    workspace_ =
        DeviceArray<std::byte>(static_cast<std::size_t>(kernels::decode_workspace_bytes(limits_)));
    workspace_.fill(0);
    tables_ = DeviceArray<BlockId>(sequences_.tables);
    lengths_ = DeviceArray<std::int32_t>(sequences_.lengths);
    runs_ = DeviceArray<TokenRun>(sequences_.runs);
    copies_ = DeviceArray<BlockCopy>(kMaxChanges);
    poisoned_ = DeviceArray<BlockCopy>(kMaxChanges);
    for (std::int64_t i = 0; i <= kRows; ++i) offsets_.push_back(i);
    for (std::int64_t i = 0; i < kRows; ++i) row_offsets_.push_back(i * kMaxBlocks);
    device_offsets_ = DeviceArray<std::int64_t>(offsets_);
    device_row_offsets_ = DeviceArray<std::int64_t>(row_offsets_);
    new_kv_ = DeviceArray<std::byte>(std::size_t{4} * kNewElements * 2);
    q_ = DeviceArray<std::byte>(std::size_t{kOutElements} * 2);
    out_ = DeviceArray<std::byte>(std::size_t{kLayers} * kOutElements * 2);
  }

  BlockTableView device_tables() const {
    return {tables_.data(), nullptr, device_row_offsets_.data(), 0, kRows};
  }
  template <class Params>
  void set_shared(Params& p) const {
    p.limits = limits_;
    p.num_rows = kRows;
    p.workspace = workspace_.data();
    p.workspace_bytes = kernels::decode_workspace_bytes(p.limits);
  }
  kernels::DecodeParams decode_params(std::int32_t layer) const {
    const KvLayerView kv = layer_view(pool_.data(), layer);
    kernels::DecodeParams p;
    set_shared(p);
    p.q = q_.data();
    p.out = out_.data() + layer * kOutElements * 2;
    p.key = kv.key.base;
    p.value = kv.value.base;
    p.block_stride = kBlockBytes;
    p.head_stride = kv.key.head_stride;
    p.block_size = kBlockSize;
    p.block_tables = tables_.data();
    p.table_stride = kMaxBlocks;
    p.scale = 0.125F;
    return p;
  }

  /// All launches of a step. Appending again what is there already changes nothing.
  void launch_step() {
    EXPECT_OK(kernels::launch_copy_blocks(
        {pool_.data(), kBlockBytes, kBlockBytes, copies_.data(), kMaxChanges, kPoolBlocks},
        stream_));
    launch_attention();
    // Last, so that a block freed in this step is NaN before its next owner writes to it.
    EXPECT_OK(kernels::launch_copy_blocks(
        {pool_.data(), kBlockBytes, kBlockBytes, poisoned_.data(), kMaxChanges, kPoolBlocks},
        stream_));
  }
  void launch_attention() {
    kernels::DecodeScheduleParams schedule;
    set_shared(schedule);
    schedule.seq_lens = lengths_.data();
    EXPECT_OK(kernels::launch_decode_schedule(schedule, stream_));
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const std::byte* key = new_kv_.data() + layer * 2 * kNewElements * 2;
      EXPECT_OK(kernels::launch_append_runs(
          {layer_view(pool_.data(), layer), device_tables(), key, key + kNewElements * 2,
           runs_.data(), device_offsets_.data(), kRows, kRows, DType::bf16},
          layer > 0, stream_));
      EXPECT_OK(kernels::launch_decode(decode_params(layer), true, stream_));
    }
  }

  /// What the step does, on the host's pool.
  void mirror_step(const std::vector<std::byte>& new_kv) {
    kernels::reference::copy_blocks({host_pool_.data(), kBlockBytes, kBlockBytes,
                                     sequences_.copies.data(), kMaxChanges, kPoolBlocks});
    std::vector<std::int64_t> slots;
    for (const TokenRun& run : sequences_.runs) {
      const auto entry = static_cast<std::size_t>(run.row * kMaxBlocks + run.start / kBlockSize);
      slots.push_back(run.row < 0 ? -1
                                  : std::int64_t{sequences_.tables[entry].value} * kBlockSize +
                                        run.start % kBlockSize);
    }
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const std::byte* key = new_kv.data() + layer * 2 * kNewElements * 2;
      kernels::reference::append({layer_view(host_pool_.data(), layer), key, key + kNewElements * 2,
                                  slots.data(), kRows, DType::bf16});
    }
  }
  void expect_reference(const std::vector<std::byte>& q, const std::vector<std::byte>& out,
                        int replay) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<double> exact(kOutElements);
      kernels::reference::attention_paged_exact(
          {layer_view(host_pool_.data(), layer),
           {{sequences_.tables.data(), nullptr, row_offsets_.data(), 0, kRows},
            sequences_.lengths.data(),
            nullptr,
            kRows},
           nullptr,
           q.data(),
           nullptr,
           nullptr,
           kQHeads,
           0,
           0.125F,
           0.0F,
           DType::bf16,
           DType::bf16},
          exact.data());
      const L2Error error = l2_error(exact, out.data() + layer * kOutElements * 2, DType::bf16);
      EXPECT_TRUE(error.of_output <= error.bound(DType::bf16))
          << "replay " << replay << ", layer " << layer << ": " << error.of_output << " > "
          << error.bound(DType::bf16);
    }
  }
  void poison_host() {
    kernels::reference::copy_blocks({host_pool_.data(), kBlockBytes, kBlockBytes,
                                     sequences_.poisoned.data(), kMaxChanges, kPoolBlocks});
  }

  kernels::DecodeLimits limits_;
  Sequences sequences_;
  std::vector<std::byte> host_pool_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> row_offsets_;
  DeviceArray<std::byte> pool_;
  DeviceArray<std::byte> workspace_;
  DeviceArray<BlockId> tables_;
  DeviceArray<std::int32_t> lengths_;
  DeviceArray<TokenRun> runs_;
  DeviceArray<BlockCopy> copies_;
  DeviceArray<BlockCopy> poisoned_;
  DeviceArray<std::int64_t> device_offsets_;
  DeviceArray<std::int64_t> device_row_offsets_;
  DeviceArray<std::byte> new_kv_;  // [kLayers, K and V, kRows, kKvHeads, kDim]
  DeviceArray<std::byte> q_;
  DeviceArray<std::byte> out_;  // [kLayers, kRows, kQHeads, kDim]
};

TEST_F(CudaReplay, AThousandReplaysWhileSequencesGrowJoinLeaveAndFork) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  launch_step();
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);

  Dice dice(first_seed());
  const int replays = is_watched() ? 20 : 1000;
  for (int replay = 0; replay < replays && !HasFailure(); ++replay) {
    sequences_.advance(dice);
    const auto seed = static_cast<std::uint32_t>(replay);
    const auto new_kv = gaussian_elements(4 * kNewElements, DType::bf16, 2 * seed);
    const auto q = gaussian_elements(kOutElements, DType::bf16, 2 * seed + 1);
    tables_.upload(sequences_.tables);
    lengths_.upload(sequences_.lengths);
    runs_.upload(sequences_.runs);
    copies_.upload(sequences_.copies);
    poisoned_.upload(sequences_.poisoned);
    new_kv_.upload(new_kv);
    q_.upload(q);
    out_.fill(0xFF);
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    finish();
    const std::vector<std::byte> out = out_.download();
    mirror_step(new_kv);
    if (replay % 50 == 0) expect_reference(q, out, replay);
    poison_host();
    EXPECT_TRUE(same_bytes(pool_.download(), host_pool_)) << "pool after replay " << replay;
    out_.fill(0xEE);
    launch_attention();
    finish();
    EXPECT_TRUE(same_bytes(out_.download(), out)) << "eager and replayed " << replay;
  }
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace kvarena::test
