// Memory of K and V by hand-worked examples.

#include "kvarena/capacity/kv_memory.hpp"

#include "kvarena/capacity/model_presets.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvarena::capacity {
namespace {

std::vector<GroupMemory> groups_of(std::string_view name, KeptTokens kept,
                                   std::string_view format = "bf16", std::int32_t tp = 1) {
  return group_memory(*find_model_preset(name),
                      {.format = *find_storage_format(format), .kept = kept, .tensor_parallel = tp})
      .value();
}

TEST(KvMemory, OfPhi3WholeAndInItsWindow) {
  const auto whole = groups_of("Phi-3-mini-4k-instruct", KeptTokens::full);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].bytes_per_token, 393'216);
  EXPECT_EQ(whole[0].unit_bytes, 16 * 393'216);
  EXPECT_EQ(bytes_at(whole, 4096), 1'610'612'736);
  EXPECT_EQ(formula_of(whole[0]), "0 + 393,216 B x tokens");
  const auto window = groups_of("Phi-3-mini-4k-instruct", KeptTokens::model);
  EXPECT_EQ(bytes_at(window, 4096), 1'610'612'736 / 2);
  EXPECT_EQ(peak_bytes(window, 4096), 129 * 16 * 393'216);
  EXPECT_EQ(formula_of(window[0]), "0 + 393,216 B x min(tokens, 2,047)");
}

TEST(KvMemory, CountsTheBlocksOfAWindow) {
  GroupMemory group{.kind = CacheKind::window, .limit_tokens = 5, .block_size_tokens = 4};
  std::int64_t most = 0;
  for (std::int64_t length = 0; length < 40; ++length) {
    std::vector<bool> held(20);
    for (std::int64_t i = std::max<std::int64_t>(0, length - 5); i < length; ++i) {
      held[static_cast<std::size_t>(i / 4)] = true;
    }
    EXPECT_EQ(units_at(group, length), std::ranges::count(held, true)) << length;
    most = std::max(most, units_at(group, length));
    EXPECT_EQ(peak_units(group, length), most) << length;
  }
  group.kind = CacheKind::chunked;
  for (const std::int64_t chunk : {5, 8}) {
    group.limit_tokens = chunk;
    most = 0;
    for (std::int64_t length = 1; length < 60; ++length) {
      const std::int64_t first = (length - 1) / chunk * chunk;
      EXPECT_EQ(units_at(group, length), (length - 1) / 4 - first / 4 + 1) << length;
      most = std::max(most, units_at(group, length));
      EXPECT_GE(peak_units(group, length), most) << length;
    }
    EXPECT_EQ(peak_units(group, 60), most);
  }
}

TEST(KvMemory, OfEveryKindOfLayer) {
  const auto latent = groups_of("DeepSeek-V3.2", KeptTokens::full);
  EXPECT_EQ(latent[0].bytes_per_token, 70'272);
  EXPECT_EQ(latent[0].index_bytes_per_token, 61 * (128 + 4));
  EXPECT_EQ(latent[0].unit_bytes, 16 * (70'272 + 61 * (128 + 4)));
  EXPECT_EQ(groups_of("DeepSeek-V3", KeptTokens::full, "bf16", 8)[0].bytes_per_token, 70'272)
      << "every rank has the whole latent";
  const auto hybrid = groups_of("Qwen3.5-27B", KeptTokens::full);
  ASSERT_EQ(hybrid.size(), 2U);
  EXPECT_EQ(hybrid[0].bytes_per_token, 65'536);
  EXPECT_EQ(hybrid[1].block_size_tokens, 0);
  EXPECT_EQ(hybrid[1].unit_bytes, 48 * (48 * 128 * 128 * 4 + (2 * 16 + 48) * 128 * 3 * 2));
  EXPECT_EQ(units_at(hybrid[1], 1'000'000), 1);
  const auto gemma = groups_of("Gemma-3-27B", KeptTokens::model);
  ASSERT_EQ(gemma.size(), 2U);
  EXPECT_EQ(gemma[0].num_layers, 10);
  EXPECT_EQ(gemma[1].limit_tokens, 1024);
  EXPECT_EQ(groups_of("Gemma-3-27B", KeptTokens::full).size(), 1U);
  const auto scout = groups_of("Llama-4-Scout-17B-16E", KeptTokens::model);
  EXPECT_EQ(scout[1].kind, CacheKind::chunked);
  EXPECT_EQ(units_at(scout[1], 8193), 1);
}

// FlashMLA's rows of sparse attention: 512 elements in 8 bits, an f32 for each 128 of them, 64
// positional elements in 16 bits. The index is 128 elements in 8 bits and an f32 in any case.
TEST(KvMemory, OfSparseAttentionIn8Bits) {
  const auto sparse = groups_of("DeepSeek-V3.2", KeptTokens::full, "fp8_e4m3")[0];
  EXPECT_EQ(sparse.bytes_per_token / 61, 512 + 16 + 128);
  EXPECT_EQ(sparse.index_bytes_per_token / 61, 132);
  EXPECT_EQ(sparse.unit_bytes, 16 * 61 * 788);
  EXPECT_EQ(units_at(sparse, 975'424) * sparse.unit_bytes, 46'886'680'832);
  EXPECT_EQ(groups_of("DeepSeek-V3", KeptTokens::full, "fp8_e4m3")[0].bytes_per_token, 61 * 576)
      << "without an index the whole latent is in 8 bits";
}

TEST(KvMemory, StatesDoNotFollowTheTypeOfKAndV) {
  for (const char* model : {"Qwen3.5-27B", "Nemotron-3-Nano-30B-A3B"}) {
    const auto own = groups_of(model, KeptTokens::full);
    for (const char* format : {"fp8_e4m3", "f32", "q4_0"}) {
      EXPECT_EQ(groups_of(model, KeptTokens::full, format)[1].unit_bytes, own[1].unit_bytes)
          << model << " " << format;
    }
  }
}

TEST(KvMemory, OfQuantisedElementsWithTheirScales) {
  EXPECT_EQ(groups_of("Llama-3.1-8B", KeptTokens::full, "fp8_e4m3")[0].bytes_per_token, 65'536);
  EXPECT_EQ(groups_of("Llama-3.1-8B", KeptTokens::full, "q8_0")[0].bytes_per_token,
            131'072 / 2 * 34 / 32);
  EXPECT_EQ(groups_of("Llama-3.1-8B", KeptTokens::full, "q4_0")[0].bytes_per_token,
            131'072 / 2 * 18 / 32);
  const auto scaled =
      group_memory(*find_model_preset("Llama-3.1-8B"),
                   {.format = *find_storage_format("int8"), .scale = ScaleKind::per_token_head});
  ASSERT_OK(scaled.status());
  EXPECT_EQ((*scaled)[0].bytes_per_token, 32 * 2 * 8 * (128 + 4));
}

TEST(KvMemory, ShowsItsArithmetic) {
  const auto block_of = [](CacheGroup group, std::string_view format, std::int32_t block_size = 16,
                           ScaleKind scale = ScaleKind::none) {
    ModelSpec model;
    model.shape.num_layers = group.num_layers;
    model.groups = {group};
    return group_memory(
        model,
        {.format = *find_storage_format(format), .scale = scale, .block_size_tokens = block_size});
  };
  const CacheGroup heads{.num_layers = 32, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
  const auto bf16 = block_of(heads, "bf16").value()[0];
  EXPECT_EQ(bf16.arithmetic, "16 tokens x 32 layers x 8 heads x (128 + 128) elements x 2 B");
  EXPECT_EQ(bf16.unit_bytes, 16 * 32 * 8 * (128 + 128) * 2);
  EXPECT_EQ(block_of(heads, "q8_0").value()[0].arithmetic,
            "16 tokens x 32 layers x 8 heads x (128 / 32 + 128 / 32) blocks x 34 B");
  const auto scaled = block_of(heads, "int8", 16, ScaleKind::per_token_head).value()[0];
  EXPECT_EQ(scaled.arithmetic,
            "16 tokens x 32 layers x 8 heads x ((128 + 128) elements x 1 B + 2 x 4 B of scales)");
  EXPECT_EQ(scaled.unit_bytes, 16 * 32 * 8 * ((128 + 128) + 2 * 4));

  CacheGroup odd = heads;
  odd.head_dim_k = odd.head_dim_v = 80;
  const auto q4 = block_of(odd, "q4_0").value()[0];
  EXPECT_EQ(q4.arithmetic,
            "16 tokens x 32 layers x 8 heads x (ceil(80 / 32) + ceil(80 / 32)) blocks x 18 B");
  EXPECT_EQ(q4.unit_bytes, 16 * 32 * 8 * (3 + 3) * 18);
  const CacheGroup tiny{.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 1, .head_dim_v = 1};
  const auto padded = block_of(tiny, "bf16", 1).value()[0];
  EXPECT_EQ(padded.unit_bytes, 32);
  EXPECT_EQ(padded.arithmetic,
            "1 tokens x 1 layers x 1 heads x (1 + 1) elements x 2 B + 28 B of padding");
  const CacheGroup latent{
      .kind = CacheKind::latent, .num_layers = 61, .latent_dim = 576, .index_dim = 128};
  EXPECT_EQ(block_of(latent, "bf16").value()[0].arithmetic,
            "16 tokens x 61 layers x (576 elements x 2 B + 132 B of the index)");
  const CacheGroup chunks{.kind = CacheKind::chunked,
                          .num_layers = 1,
                          .num_kv_heads = 1,
                          .head_dim_k = 8,
                          .head_dim_v = 8,
                          .limit_tokens = 8192};
  ModelSpec model;
  model.shape.num_layers = 1;
  model.groups = {chunks};
  EXPECT_EQ(formula_of(group_memory(model, {.format = *find_storage_format("bf16"),
                                            .kept = KeptTokens::model})
                           .value()[0]),
            "0 + 32 B x (tokens in the current aligned chunk of 8,192)");

  EXPECT_FAILS(block_of(heads, "q4_K"), unsupported, dtype) << "256 elements are two heads";
  EXPECT_FAILS(block_of(latent, "q6_K"), unsupported, dtype);
  odd.head_dim_k = odd.head_dim_v = 256;
  EXPECT_EQ(block_of(odd, "q4_K").value()[0].unit_bytes, 16 * 32 * 8 * 2 * 144);
}

TEST(KvMemory, LayersOfGroupsAreMixed) {
  const auto stages = [](KeptTokens kept) {
    std::vector<std::vector<std::int32_t>> layers;
    for (std::int32_t stage = 0; stage < 3; ++stage) {
      const auto groups =
          group_memory(*find_model_preset("Gemma-3-27B"), {.format = *find_storage_format("bf16"),
                                                           .kept = kept,
                                                           .pipeline_parallel = 3,
                                                           .stage = stage});
      auto& here = layers.emplace_back();
      for (const GroupMemory& group : groups.value()) here.push_back(group.num_layers);
    }
    return layers;
  };
  using Layers = std::vector<std::vector<std::int32_t>>;
  EXPECT_EQ(stages(KeptTokens::full), (Layers{{21}, {21}, {20}}));
  EXPECT_EQ(stages(KeptTokens::model), (Layers{{3, 18}, {4, 17}, {3, 17}}))
      << "as where every sixth layer keeps all";
}

/// Blocks that a sequence of `computed` tokens holds while `added` more are computed: those that it
/// had before the step, and those of the new tokens.
std::int64_t blocks_of_step(const GroupMemory& group, std::int64_t computed, std::int64_t added) {
  if (added == 0) return units_at(group, computed);
  std::int64_t first =
      std::max<std::int64_t>(0, computed - 1) / group.limit_tokens * group.limit_tokens;
  if (group.kind == CacheKind::window) {
    first = std::max<std::int64_t>(0, computed - group.limit_tokens);
  }
  const std::int64_t block = group.block_size_tokens;
  return (computed + added - 1) / block - first / block + 1;
}

/// The most blocks that so many sequences of up to `length` tokens hold, by their number and the
/// tokens of a step, however these are dealt out.
std::vector<std::vector<std::int64_t>> most_blocks(const GroupMemory& group, std::size_t sequences,
                                                   std::int64_t length, std::size_t step_tokens) {
  std::vector<std::int64_t> of_one(step_tokens + 1);
  for (std::size_t added = 0; added <= step_tokens; ++added) {
    const auto tokens = static_cast<std::int64_t>(added);
    for (std::int64_t computed = 0; computed + tokens <= length; ++computed) {
      of_one[added] = std::max(of_one[added], blocks_of_step(group, computed, tokens));
    }
  }
  std::vector most(sequences + 1, std::vector<std::int64_t>(step_tokens + 1));
  for (std::size_t count = 1; count <= sequences; ++count) {
    for (std::size_t tokens = 0; tokens <= step_tokens; ++tokens) {
      for (std::size_t own = 0; own <= tokens; ++own) {
        most[count][tokens] =
            std::max(most[count][tokens], most[count - 1][tokens - own] + of_one[own]);
      }
    }
  }
  return most;
}

TEST(KvMemory, APoolHasRoomForAnyStep) {
  constexpr std::size_t kSequences = 4;
  constexpr std::size_t kTokens = 24;
  for (const CacheKind kind : {CacheKind::window, CacheKind::chunked}) {
    for (const std::int64_t limit : {1, 2, 3, 5, 8, 11, 12, 16}) {
      for (const std::int32_t block : {1, 2, 3, 4, 7, 16}) {
        const GroupMemory group{.kind = kind, .limit_tokens = limit, .block_size_tokens = block};
        const bool is_tight = kind == CacheKind::window && limit % block == 0 && block > 2;
        for (const std::int64_t length : {1, 2, 7, 16, 19, 64}) {
          const auto most = most_blocks(group, kSequences, length, kTokens);
          for (std::size_t count = 1; count <= kSequences; ++count) {
            for (std::size_t tokens = 1; tokens <= kTokens; ++tokens) {
              const std::int64_t planned = pool_units(group, static_cast<std::int64_t>(count),
                                                      length, static_cast<std::int64_t>(tokens));
              const std::int64_t needed = most[count][tokens];
              EXPECT_GE(planned, needed)
                  << name_of(kind) << " of " << limit << " in blocks of " << block << ": " << count
                  << " sequences of " << length << ", a step of " << tokens;
              if (is_tight && length == 64) {
                EXPECT_EQ(planned, needed) << limit << " / " << block;
              }
            }
          }
        }
      }
    }
  }
  const GroupMemory window{.kind = CacheKind::window, .limit_tokens = 16, .block_size_tokens = 16};
  EXPECT_EQ(pool_units(window, 2, 64, 4), 6) << "two new tokens each reach into a third block";
}

TEST(KvMemory, SharesHeadsAndLayers) {
  EXPECT_EQ(groups_of("Llama-3.1-8B", KeptTokens::full, "bf16", 8)[0].bytes_per_token, 16'384);
  EXPECT_EQ(groups_of("Llama-3.1-8B", KeptTokens::full, "bf16", 16)[0].bytes_per_token, 16'384)
      << "more ranks than heads hold copies";
  std::int64_t sum = 0;
  for (std::int32_t stage = 0; stage < 5; ++stage) {
    sum += group_memory(
               *find_model_preset("Llama-3.1-8B"),
               {.format = *find_storage_format("bf16"), .pipeline_parallel = 5, .stage = stage})
               .value()[0]
               .bytes_per_token;
  }
  EXPECT_EQ(sum, 131'072);
}

}  // namespace
}  // namespace kvarena::capacity
