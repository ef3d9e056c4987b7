// Members of the C structs that few callers set have their effect: the same steps through C and
// through C++ give the same bits and the same refusals, and each member changes something.

#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/kvarena.h"
#include "support/gpu.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kHeads = 2;
constexpr std::int32_t kDim = 16;
constexpr std::int32_t kPrompt = 6;
constexpr std::int32_t kDrafts = 4;
constexpr std::size_t kRow = std::size_t{kHeads} * kDim;

/// Every member is given by its name: a member that moved is found by the compiler or the bits.
struct Wishes {
  float scale = 0.3F;
  float soft_cap = 2.0F;
  bool sinks = true;
  bool tree_mask = true;
  bool lse = true;
};

struct Answer {
  std::vector<float> out = std::vector<float>(kDrafts * kRow);
  std::vector<float> lse = std::vector<float>(kDrafts * kHeads);
};

std::vector<float> numbers(std::int32_t tokens, int seed) {
  std::vector<float> made(static_cast<std::size_t>(tokens) * kRow);
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = 2.0F * std::sin(static_cast<float>(i * 37 + static_cast<std::size_t>(seed) * 11));
  }
  return made;
}

constexpr std::array<float, kHeads> kSinks{0.5F, -1.0F};
/// Two branches: token 2 does not see token 1, and token 3 sees 0 and 2.
constexpr std::array<std::uint64_t, kDrafts> kTree{0b0001, 0b0011, 0b0101, 0b1101};

Answer by_cpp(const Wishes& wishes) {
  auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCacheOptions options{
      .layout = {.num_layers = 1, .num_kv_heads = kHeads, .head_dim_k = kDim, .dtype = DType::f32}};
  options.size.num_blocks = 8;
  options.num_q_heads = kHeads;
  options.max_step_tokens = 64;
  options.num_threads = 1;
  options.max_decode_tokens = kDrafts;
  options.draft_trees = true;
  options.batch_invariant_tokens = 64;
  KvCache cache = KvCache::create(*device, options).value();
  const SequenceId sequence = cache.create_sequence().value();
  Answer answer;
  for (const std::int32_t tokens : {kPrompt, kDrafts}) {
    const std::vector<float> kv = numbers(tokens, 1);
    const std::vector<float> q = numbers(tokens, 2);
    std::vector<float> out(kv.size());
    const std::array demand{AppendDemand{sequence, tokens}};
    EXPECT_OK(cache.begin_step());
    EXPECT_OK(cache.append(demand));
    EXPECT_OK(
        cache.write_kv({.layer = 0, .key = kv.data(), .value = kv.data(), .dtype = DType::f32}));
    const bool drafts = tokens == kDrafts;
    EXPECT_OK(cache.attend({.layer = 0,
                            .q = q.data(),
                            .q_dtype = DType::f32,
                            .out = drafts ? answer.out.data() : out.data(),
                            .out_dtype = DType::f32,
                            .lse = drafts && wishes.lse ? answer.lse.data() : nullptr,
                            .scale = wishes.scale,
                            .soft_cap = wishes.soft_cap,
                            .sinks = wishes.sinks ? kSinks.data() : nullptr,
                            .tree_mask = drafts && wishes.tree_mask ? kTree.data() : nullptr}));
    EXPECT_OK(cache.end_step());
    EXPECT_OK(cache.synchronize());
  }
  return answer;
}

#define EXPECT_C(call) EXPECT_EQ((call).code, KVARENA_OK)

Answer by_c(const Wishes& wishes) {
  kvarena_device* device = nullptr;
  kvarena_cache* cache = nullptr;
  EXPECT_C(kvarena_device_open_host(nullptr, &device));
  const kvarena_cache_options options{.struct_size = sizeof options,
                                      .num_layers = 1,
                                      .num_kv_heads = kHeads,
                                      .head_dim_k = kDim,
                                      .dtype = KVARENA_F32,
                                      .num_blocks = 8,
                                      .num_q_heads = kHeads,
                                      .max_step_tokens = 64,
                                      .batch_invariant_tokens = 64,
                                      .num_threads = 1,
                                      .max_decode_tokens = kDrafts,
                                      .draft_trees = 1};
  EXPECT_C(kvarena_cache_create(device, &options, &cache));
  kvarena_cache_options taken{.struct_size = sizeof taken};
  EXPECT_C(kvarena_cache_ask(cache, &taken));
  EXPECT_EQ(taken.batch_invariant_tokens, 64);
  EXPECT_EQ(taken.max_decode_tokens, kDrafts);
  EXPECT_EQ(taken.draft_trees, 1);
  kvarena_sequence sequence = 0;
  EXPECT_C(kvarena_sequence_create(cache, nullptr, &sequence));
  Answer answer;
  for (const std::int32_t tokens : {kPrompt, kDrafts}) {
    const std::vector<float> kv = numbers(tokens, 1);
    const std::vector<float> q = numbers(tokens, 2);
    std::vector<float> out(kv.size());
    const kvarena_demand demand{.sequence = sequence, .num_tokens = tokens};
    kvarena_batch batch{.struct_size = sizeof batch};
    EXPECT_C(kvarena_step_begin(cache, nullptr));
    EXPECT_C(kvarena_step_append(cache, &demand, 1, KVARENA_URGENCY_DEFAULT, &batch));
    kvarena_write_args write{
        .struct_size = sizeof write, .key = kv.data(), .value = kv.data(), .dtype = KVARENA_F32};
    EXPECT_C(kvarena_step_write(cache, &write));
    const bool drafts = tokens == kDrafts;
    kvarena_attend_args attend{.struct_size = sizeof attend,
                               .q = q.data(),
                               .out = drafts ? answer.out.data() : out.data(),
                               .lse = drafts && wishes.lse ? answer.lse.data() : nullptr,
                               .sinks = wishes.sinks ? kSinks.data() : nullptr,
                               .tree_mask = drafts && wishes.tree_mask ? kTree.data() : nullptr,
                               .q_dtype = KVARENA_F32,
                               .out_dtype = KVARENA_F32,
                               .scale = wishes.scale,
                               .soft_cap = wishes.soft_cap};
    EXPECT_C(kvarena_step_attend(cache, &attend));
    EXPECT_C(kvarena_step_end(cache));
    EXPECT_C(kvarena_cache_synchronize(cache));
  }
  EXPECT_C(kvarena_cache_release(cache));
  EXPECT_C(kvarena_device_release(device));
  return answer;
}

TEST(CApiAttend, MembersHaveTheEffectThatTheyHaveInCpp) {
  const Answer all = by_c({});
  EXPECT_EQ(all.out, by_cpp({}).out);
  EXPECT_EQ(all.lse, by_cpp({}).lse);
  const std::array<Wishes, 5> others{Wishes{.scale = 0.0F}, Wishes{.soft_cap = 0.0F},
                                     Wishes{.sinks = false}, Wishes{.tree_mask = false},
                                     Wishes{.lse = false}};
  for (std::size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    const Answer found = by_c(others[i]);
    const Answer expected = by_cpp(others[i]);
    EXPECT_EQ(found.out, expected.out);
    EXPECT_EQ(found.lse, expected.lse);
    EXPECT_NE(std::tie(found.out, found.lse), std::tie(all.out, all.lse));
  }
}

/// Numbers on a GPU, in memory of a device of the C interface. Devices of one process share the
/// GPU.
class OnGpu {
 public:
  OnGpu(kvarena_device* device, const std::vector<float>& numbers)
      : device_(device), bytes_(numbers.size() * sizeof(float)) {
    const kvarena_allocation request{
        .struct_size = sizeof request, .bytes = bytes_, .purpose = KVARENA_INTERMEDIATE_BUFFERS};
    EXPECT_C(kvarena_memory_allocate(device_, &request, &memory_));
    EXPECT_C(kvarena_stream_create(device_, &stream_));
    EXPECT_C(kvarena_memory_copy(device_, memory_, numbers.data(), bytes_, stream_));
    EXPECT_C(kvarena_stream_synchronize(device_, stream_));
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() {
    EXPECT_C(kvarena_memory_free(device_, memory_));
    EXPECT_C(kvarena_stream_destroy(device_, stream_));
  }
  float* data() const { return static_cast<float*>(memory_); }
  std::vector<float> host() const {
    std::vector<float> numbers(bytes_ / sizeof(float));
    EXPECT_C(kvarena_memory_copy(device_, numbers.data(), memory_, bytes_, stream_));
    EXPECT_C(kvarena_stream_synchronize(device_, stream_));
    return numbers;
  }

 private:
  kvarena_device* device_;
  std::size_t bytes_;
  void* memory_ = nullptr;
  void* stream_ = nullptr;
};

constexpr std::int32_t kWide = 64;

/// One step of kPrompt tokens over fp8 K and V, with scales by head or one for all.
void fp8_by_cpp(const OnGpu& kv, const OnGpu& scales, bool per_head, const OnGpu& out) {
  const auto device = test::make_cuda();
  ASSERT_NE(device, nullptr);
  KvCacheOptions options{
      .layout = {
          .num_layers = 1, .num_kv_heads = kHeads, .head_dim_k = kWide, .dtype = DType::fp8_e4m3}};
  options.size.num_blocks = 8;
  options.num_q_heads = kHeads;
  KvCache cache = KvCache::create(*device, options).value();
  const std::array demand{AppendDemand{cache.create_sequence().value(), kPrompt}};
  const QuantScales its{scales.data(), scales.data(), per_head};
  ASSERT_OK(cache.begin_step());
  ASSERT_OK(cache.append(demand));
  ASSERT_OK(cache.write_kv(
      {.layer = 0, .key = kv.data(), .value = kv.data(), .dtype = DType::f32, .scales = its}));
  ASSERT_OK(cache.attend({.layer = 0,
                          .q = kv.data(),
                          .q_dtype = DType::f32,
                          .out = out.data(),
                          .out_dtype = DType::f32,
                          .scales = its}));
  ASSERT_OK(cache.end_step());
  ASSERT_OK(cache.synchronize());
}

void fp8_by_c(kvarena_device* device, const OnGpu& kv, const OnGpu& scales, bool per_head,
              const OnGpu& out) {
  const kvarena_cache_options options{.struct_size = sizeof options,
                                      .num_layers = 1,
                                      .num_kv_heads = kHeads,
                                      .head_dim_k = kWide,
                                      .dtype = KVARENA_FP8_E4M3,
                                      .num_blocks = 8,
                                      .num_q_heads = kHeads};
  kvarena_cache* cache = nullptr;
  EXPECT_C(kvarena_cache_create(device, &options, &cache));
  kvarena_demand demand{.num_tokens = kPrompt};
  kvarena_batch batch{.struct_size = sizeof batch};
  EXPECT_C(kvarena_sequence_create(cache, nullptr, &demand.sequence));
  EXPECT_C(kvarena_step_begin(cache, nullptr));
  EXPECT_C(kvarena_step_append(cache, &demand, 1, 0, &batch));
  const kvarena_write_args write{.struct_size = sizeof write,
                                 .key = kv.data(),
                                 .value = kv.data(),
                                 .dtype = KVARENA_F32,
                                 .key_scale = scales.data(),
                                 .value_scale = scales.data(),
                                 .scale_per_head = per_head ? 1 : 0};
  EXPECT_C(kvarena_step_write(cache, &write));
  const kvarena_attend_args attend{.struct_size = sizeof attend,
                                   .q = kv.data(),
                                   .out = out.data(),
                                   .q_dtype = KVARENA_F32,
                                   .out_dtype = KVARENA_F32,
                                   .key_scale = scales.data(),
                                   .value_scale = scales.data(),
                                   .scale_per_head = per_head ? 1 : 0};
  EXPECT_C(kvarena_step_attend(cache, &attend));
  EXPECT_C(kvarena_step_end(cache));
  EXPECT_C(kvarena_cache_synchronize(cache));
  EXPECT_C(kvarena_cache_release(cache));
}

TEST(CApiAttend, ScalesOfFp8AreThoseOfCpp) {
  KVARENA_NEEDS_GPU();
  kvarena_device* device = nullptr;
  EXPECT_C(kvarena_device_open_cuda(nullptr, &device));
  {
    std::vector<float> numbers(std::size_t{kPrompt} * kHeads * kWide);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    const OnGpu kv(device, numbers);
    const OnGpu scales(device, {0.02F, 0.003F});
    const OnGpu by_c(device, numbers);
    const OnGpu by_cpp(device, numbers);
    std::vector<float> last;
    for (const bool per_head : {false, true}) {
      SCOPED_TRACE(per_head);
      fp8_by_c(device, kv, scales, per_head, by_c);
      fp8_by_cpp(kv, scales, per_head, by_cpp);
      EXPECT_EQ(by_c.host(), by_cpp.host());
      EXPECT_NE(by_c.host(), last);
      last = by_c.host();
    }
  }
  EXPECT_C(kvarena_device_release(device));
}

/// What layer 2 reads, and what the first append after an aborted step answers.
struct GroupAnswer {
  float shared = 0.0F;
  int code = 0;
  int resource = 0;
  std::uint64_t available = 0;
  friend bool operator==(const GroupAnswer&, const GroupAnswer&) = default;
};

GroupAnswer groups_by_cpp(bool loses_on_abort) {
  const std::array<GroupLayer, 2> attention{GroupLayer{.layer = 0},
                                            GroupLayer{.layer = 2, .reads_layer = 0}};
  const std::array<GroupLayer, 1> recurrent{GroupLayer{.layer = 1}};
  const StatePlane plane{.dtype = DType::f32, .num_dims = 1, .shape = {4}};
  const std::array<LayerGroup, 2> groups{
      LayerGroup{
          .layers = attention, .num_kv_heads = kHeads, .head_dim_k = kDim, .dtype = DType::f32},
      LayerGroup{.kind = PagedKind::state,
                 .layers = recurrent,
                 .planes = {&plane, 1},
                 .keeps_for_undo = !loses_on_abort}};
  auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  KvCacheOptions options;
  options.groups = groups;
  options.size.num_blocks = 16;
  options.num_q_heads = kHeads;
  KvCache cache = KvCache::create(*device, options).value();
  const std::array demand{AppendDemand{cache.create_sequence().value(), 2}};
  const std::vector<float> kv = numbers(2, 1);
  std::vector<float> out(kv.size());
  GroupAnswer answer;
  for (const bool aborts : {false, true}) {
    EXPECT_OK(cache.begin_step());
    EXPECT_OK(cache.append(demand));
    EXPECT_OK(
        cache.write_kv({.layer = 0, .key = kv.data(), .value = kv.data(), .dtype = DType::f32}));
    EXPECT_OK(cache.attend({.layer = 2,
                            .q = kv.data(),
                            .q_dtype = DType::f32,
                            .out = out.data(),
                            .out_dtype = DType::f32}));
    EXPECT_OK(aborts ? cache.abort_step() : cache.end_step());
    EXPECT_OK(cache.synchronize());
  }
  answer.shared = out.back();
  EXPECT_OK(cache.begin_step());
  const Status status = cache.append(demand).status();
  answer.code = static_cast<int>(status.code);
  answer.resource = static_cast<int>(status.resource);
  answer.available = status.available;
  EXPECT_OK(cache.abort_step());
  return answer;
}

GroupAnswer groups_by_c(bool loses_on_abort) {
  const std::array<kvarena_group_layer, 2> attention{
      kvarena_group_layer{.layer = 0, .reads_layer = 0},
      kvarena_group_layer{.layer = 2, .reads_layer = 0}};
  const kvarena_group_layer recurrent{.layer = 1, .reads_layer = 1};
  const kvarena_state_plane plane{.shape = {4}, .num_dims = 1, .dtype = KVARENA_F32};
  const std::array<kvarena_layer_group, 2> groups{
      kvarena_layer_group{.struct_size = sizeof(kvarena_layer_group),
                          .layers = attention.data(),
                          .num_layers = 2,
                          .num_kv_heads = kHeads,
                          .head_dim_k = kDim,
                          .dtype = KVARENA_F32},
      kvarena_layer_group{.struct_size = sizeof(kvarena_layer_group),
                          .layers = &recurrent,
                          .num_layers = 1,
                          .kind = KVARENA_GROUP_STATE,
                          .num_planes = 1,
                          .planes = &plane,
                          .loses_on_abort = loses_on_abort ? 1 : 0}};
  kvarena_device* device = nullptr;
  kvarena_cache* cache = nullptr;
  EXPECT_C(kvarena_device_open_host(nullptr, &device));
  const kvarena_cache_options options{.struct_size = sizeof options,
                                      .num_blocks = 16,
                                      .num_q_heads = kHeads,
                                      .groups = groups.data(),
                                      .num_groups = 2};
  EXPECT_C(kvarena_cache_create(device, &options, &cache));
  kvarena_demand demand{.num_tokens = 2};
  kvarena_batch batch{.struct_size = sizeof batch};
  EXPECT_C(kvarena_sequence_create(cache, nullptr, &demand.sequence));
  const std::vector<float> kv = numbers(2, 1);
  std::vector<float> out(kv.size());
  for (const bool aborts : {false, true}) {
    EXPECT_C(kvarena_step_begin(cache, nullptr));
    EXPECT_C(kvarena_step_append(cache, &demand, 1, 0, &batch));
    const kvarena_write_args write{.struct_size = sizeof write,
                                   .key = kv.data(),
                                   .value = kv.data(),
                                   .layer = 0,
                                   .dtype = KVARENA_F32};
    EXPECT_C(kvarena_step_write(cache, &write));
    const kvarena_attend_args attend{.struct_size = sizeof attend,
                                     .q = kv.data(),
                                     .out = out.data(),
                                     .layer = 2,
                                     .q_dtype = KVARENA_F32,
                                     .out_dtype = KVARENA_F32};
    EXPECT_C(kvarena_step_attend(cache, &attend));
    EXPECT_C(aborts ? kvarena_step_abort(cache) : kvarena_step_end(cache));
    EXPECT_C(kvarena_cache_synchronize(cache));
  }
  EXPECT_C(kvarena_step_begin(cache, nullptr));
  const kvarena_status status = kvarena_step_append(cache, &demand, 1, 0, &batch);
  EXPECT_C(kvarena_step_abort(cache));
  EXPECT_C(kvarena_cache_release(cache));
  EXPECT_C(kvarena_device_release(device));
  return {out.back(), status.code, status.resource, status.available};
}

TEST(CApiAttend, GroupsShareLayersAndLoseStatesAlike) {
  const GroupAnswer keeps = groups_by_c(false);
  const GroupAnswer loses = groups_by_c(true);
  EXPECT_EQ(keeps, groups_by_cpp(false));
  EXPECT_EQ(loses, groups_by_cpp(true));
  EXPECT_NE(keeps.shared, 0.0F);
  EXPECT_EQ(keeps.code, KVARENA_OK);
  EXPECT_EQ(loses.code, KVARENA_FAILED_PRECONDITION);
  EXPECT_EQ(loses.resource, KVARENA_RESOURCE_SEQUENCE_LENGTH);
}

}  // namespace
}  // namespace kvarena
