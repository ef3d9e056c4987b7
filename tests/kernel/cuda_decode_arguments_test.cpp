// What the launchers of decode attention refuse. Nothing is launched, so that these tests need no
// GPU; pointers are the host's.

#include "kernels/decode/decode.h"

#include "support/status_matchers.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace kvarena::test {
namespace {

using kernels::DecodeLimits;
using kernels::DecodeParams;
using kernels::DecodeScheduleParams;
using kernels::launch_decode;
using kernels::launch_decode_schedule;

// The same limits by the same names from both launches and from the size of a workspace.
TEST(CudaDecodeArguments, OfLimitsNameWhatIsWrongAndItsRange) {
  DecodeLimits good;
  good.max_rows = good.num_kv_heads = good.num_q_heads = good.num_sms = 1;
  good.head_dim = 64;
  EXPECT_GT(kernels::decode_workspace_bytes(good), 0);
  const auto fails = [&](auto change, Resource resource, std::string_view range) {
    DecodeLimits limits = good;
    change(limits);
    DecodeScheduleParams schedule;
    schedule.limits = limits;
    DecodeParams params;
    params.limits = limits;
    EXPECT_EQ(kernels::decode_workspace_bytes(limits), 0) << name_of(resource) << ", " << range;
    for (const Status& status :
         {launch_decode_schedule(schedule, nullptr), launch_decode(params, false, nullptr)}) {
      EXPECT_TRUE(fails_with(status, StatusCode::invalid_argument, resource));
      const std::string text = describe(status);
      EXPECT_NE(text.find(range), std::string::npos) << text << " without " << range;
    }
  };
  using L = DecodeLimits&;
  for (const std::int32_t rows : {0, -1, (1 << 20) + 1}) {
    fails([=](L l) { l.max_rows = rows; }, Resource::num_sequences, "1 to 1048576");
  }
  for (const std::int32_t tokens : {0, 17}) {
    fails([=](L l) { l.q_len = tokens; }, Resource::num_tokens, "1 to 16");
  }
  for (const std::int64_t tokens : {std::int64_t{-1}, kernels::kMaxFixedDecodeTokens + 1}) {
    fails([=](L l) { l.fixed_tokens = tokens; }, Resource::num_tokens, "0 to 17179869184");
  }
  for (const std::int32_t heads : {0, -1, 4097, 0x7fffffff}) {
    fails([=](L l) { l.num_kv_heads = l.num_q_heads = heads; }, Resource::num_kv_heads,
          "1 to 4096");
  }
  for (const std::int32_t heads : {1, 3, 33}) {
    fails([=](L l) { l.num_kv_heads = 2, l.num_q_heads = heads; }, Resource::num_q_heads,
          "a multiple of the 2 KV heads, up to 32");
  }
  for (const std::int32_t sms : {0, 4097}) {
    fails([=](L l) { l.num_sms = sms; }, Resource::device, "1 to 4096");
  }
}

TEST(CudaDecodeArguments, OfPointersNameWhatIsWrong) {
  alignas(256) static std::byte memory[512];
  const auto fails = [&](auto change, Resource resource) {
    DecodeParams p;
    p.limits = {.max_rows = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 64, .num_sms = 1};
    p.q = p.key = p.value = p.out = p.workspace = memory;
    p.block_tables = reinterpret_cast<const BlockId*>(memory);
    p.num_rows = 1;
    p.workspace_bytes = kernels::decode_workspace_bytes(p.limits);
    change(p);
    EXPECT_TRUE(
        fails_with(launch_decode(p, false, nullptr), StatusCode::invalid_argument, resource));
  };
  using P = DecodeParams&;
  fails([](P p) { p.q = p.out = nullptr; }, Resource::pointer);
  fails([](P p) { p.value = nullptr; }, Resource::pointer);
  fails([](P p) { p.workspace = nullptr; }, Resource::pointer);
  fails([](P p) { p.out = memory + 4; }, Resource::alignment);
  fails([](P p) { p.value = memory + 8; }, Resource::alignment);
  fails([](P p) { p.head_stride = 24; }, Resource::alignment);
  fails([](P p) { p.q_token_stride = 132; }, Resource::alignment);
  fails([](P p) { p.out_token_stride = 132; }, Resource::alignment);
  fails([](P p) { p.q_token_stride = 64; }, Resource::span_size);
  fails([](P p) { p.out_token_stride = -1; }, Resource::span_size);
  fails([](P p) { p.workspace = memory + 128; }, Resource::alignment);
  fails([](P p) { p.num_rows = -1; }, Resource::num_sequences);
  fails([](P p) { p.num_rows = kernels::kMaxDecodeRows + 1; }, Resource::num_sequences);
}

TEST(CudaDecodeArguments, FixedPartsNeedTheirLimit) {
  alignas(256) static std::byte memory[512];
  DecodeScheduleParams p;
  p.limits = {.max_rows = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 64, .num_sms = 1};
  p.workspace = memory;
  p.workspace_bytes = kernels::decode_workspace_bytes(p.limits);
  p.fixed_parts = true;
  EXPECT_TRUE(fails_with(launch_decode_schedule(p, nullptr), StatusCode::invalid_argument,
                         Resource::num_tokens));
}

}  // namespace
}  // namespace kvarena::test
