// Attention over an encoder asks for its K and V: once for each sequence, whoever wrote them.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace kvarena {
namespace {

/// A cache in whose steps attention over the encoder's layer 4 is asked for.
class GroupEncoder : public ::testing::Test {
 protected:
  static Result<KvCache> create_cache(Device& device) {
    const GroupLayer full[] = {{0}, {3}};
    const GroupLayer cross[] = {{4}};
    const LayerGroup groups[] = {
        {.layers = full, .num_kv_heads = 2, .head_dim_k = 8, .dtype = DType::f32},
        {.kind = PagedKind::cross,
         .layers = cross,
         .num_kv_heads = 2,
         .head_dim_k = 8,
         .dtype = DType::f32,
         .limit_tokens = 10}};
    return KvCache::create(device, {.size = {.num_blocks = 24},
                                    .num_q_heads = 4,
                                    .max_sequences = 6,
                                    .max_sequence_tokens = 200,
                                    .max_step_tokens = 64,
                                    .num_threads = 1,
                                    .groups = groups});
  }
  void begin(std::vector<AppendDemand> demands) {
    ASSERT_OK(cache_.begin_step());
    ASSERT_OK(cache_.append(demands));
  }
  Status attend(bool is_written = false) {
    return cache_.attend({.layer = 4,
                          .q = memory_.data(),
                          .q_dtype = DType::f32,
                          .out = memory_.data(),
                          .out_dtype = DType::f32,
                          .kv_is_written = is_written});
  }
  Status write(SequenceId id) {
    return cache_.write_cross({.layer = 4,
                               .sequence = id,
                               .key = memory_.data(),
                               .value = memory_.data(),
                               .dtype = DType::f32});
  }
  SequenceId create(std::int32_t cross_tokens) {
    return cache_.create_sequence({.cross_tokens = cross_tokens}).value();
  }

  std::unique_ptr<HostDevice> device_ =
      HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCache cache_ = create_cache(*device_).value();
  std::array<float, 512> memory_{};
};

TEST_F(GroupEncoder, IsWrittenBeforeItIsReadAndOnce) {
  const SequenceId first = create(3);
  const SequenceId without = create(0);
  begin({{first, 2}, {without, 1}});
  const Status refused = attend();
  EXPECT_FAILS(refused, failed_precondition, layer);
  EXPECT_EQ(cache_.describe(refused),
            "K and V of the encoder of sequence " + std::to_string(first.value) +
                " have not been written in layer 4: call write_cross first, or set "
                "AttendArgs::kv_is_written when kernels of your own wrote them");
  ASSERT_OK(write(first));
  EXPECT_OK(attend()) << "the other sequence has no encoder";
  ASSERT_OK(cache_.end_step());
  begin({{first, 1}});
  EXPECT_OK(attend()) << "an encoder is written once";
  ASSERT_OK(cache_.end_step());
  const SequenceId child = cache_.fork(first, 3).value();
  const SequenceId second = create(5);
  begin({{child, 1}, {second, 0}});
  EXPECT_OK(attend()) << "a row without tokens reads nothing";
  ASSERT_OK(cache_.end_step());
  begin({{child, 1}, {second, 1}});
  EXPECT_EQ(attend().required, second.value);
  EXPECT_OK(attend(true)) << "kernels of the engine wrote it";
  ASSERT_OK(cache_.end_step());
  begin({{second, 1}});
  EXPECT_OK(attend());
  ASSERT_OK(cache_.end_step());
}

TEST_F(GroupEncoder, OfAnAbortedStepIsWrittenAgain) {
  const SequenceId id = create(3);
  begin({{id, 2}});
  ASSERT_OK(write(id));
  ASSERT_OK(cache_.abort_step());
  begin({{id, 2}});
  EXPECT_FAILS(attend(), failed_precondition, layer);
  ASSERT_OK(write(id));
  ASSERT_OK(cache_.end_step());
  begin({{id, 1}});
  ASSERT_OK(cache_.abort_step());
  begin({{id, 1}});
  EXPECT_OK(attend()) << "an earlier step wrote it";
  ASSERT_OK(cache_.end_step());
  ASSERT_OK(cache_.destroy(id));
  const SequenceId next = create(3);  // in the same place
  begin({{next, 1}});
  EXPECT_FAILS(attend(), failed_precondition, layer);
  ASSERT_OK(cache_.end_step());
}

TEST_F(GroupEncoder, OfASequenceThatEndsInTheStepIsNobodys) {
  const SequenceId first = create(3);
  const SequenceId second = create(3);
  begin({{first, 2}, {second, 1}});
  ASSERT_OK(write(second));
  EXPECT_EQ(attend().required, first.value);
  ASSERT_OK(cache_.destroy(first));
  EXPECT_OK(attend()) << "nobody asks for the row of a sequence that has ended";
  const SequenceId next = create(3);  // in the place of the first
  EXPECT_OK(attend()) << "the new one is not in the step";
  EXPECT_OK(write(first)) << "its row is there until the step ends";
  ASSERT_OK(cache_.end_step());
  begin({{next, 1}});
  EXPECT_EQ(attend().required, next.value) << "what was written is not its own";
  ASSERT_OK(write(next));
  EXPECT_OK(attend());
  ASSERT_OK(cache_.end_step());
}

TEST_F(GroupEncoder, OfBlocksFromElsewhereIsThere) {
  const SequenceId first = create(3);
  begin({{first, 16}});
  ASSERT_OK(write(first));
  ASSERT_OK(cache_.end_step());
  const GroupLayout& layout = *cache_.arena().groups();
  std::vector<std::vector<BlockId>> ids(layout.parts().size(), std::vector<BlockId>(1));
  std::vector<std::vector<Generation>> generations(ids.size());
  std::vector<GroupBlocks> blocks(ids.size());
  for (std::size_t part = 0; part < ids.size(); ++part) {
    ASSERT_EQ(cache_.tables().blocks_of(first, ids[part], static_cast<std::int32_t>(part)).value(),
              1);
    generations[part] = {cache_.manager().generation(ids[part][0])};
    blocks[part] = {0, ids[part], generations[part]};
  }
  const SequenceOptions its{.cross_tokens = 3};
  const SequenceId shared = cache_.create_sequence_from(16, blocks, its).value();
  blocks[static_cast<std::size_t>(layout.part_of(4))] = {};
  const SequenceId own = cache_.create_sequence_from(16, blocks, its).value();
  const SequenceId imported = cache_.import_sequence(16, its).value();
  ASSERT_OK(cache_.publish_import(imported));
  begin({{shared, 1}, {imported, 1}});
  EXPECT_OK(attend());
  ASSERT_OK(cache_.end_step());
  begin({{own, 1}});
  EXPECT_FAILS(attend(), failed_precondition, layer);
  ASSERT_OK(cache_.end_step());
}

}  // namespace
}  // namespace kvarena
