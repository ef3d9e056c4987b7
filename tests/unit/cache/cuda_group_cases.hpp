#pragma once

/// @file
/// The models and pools of the tests of caches with groups on a GPU.

#include "unit/cache/group_engine.hpp"

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

inline constexpr double kF32 = 2e-4;
inline constexpr double kF16 = 6e-3;
inline constexpr double kBf16 = 4e-2;

struct GpuCase {
  std::string name;
  GroupEngineOptions options;
  int steps = 120;
};

inline void PrintTo(const GpuCase& its, std::ostream* out) { *out << its.name; }

struct Kv {
  DType dtype = DType::bf16;
  std::int32_t heads = 2;
  std::int32_t dim = 64;
  std::int32_t block_size = 16;
};

inline EngineGroup group(PagedKind kind, std::vector<GroupLayer> layers, const Kv& kv,
                         std::int64_t limit = 0) {
  return {.group = {.kind = kind,
                    .layers = {},
                    .num_kv_heads = kv.heads,
                    .head_dim_k = kv.dim,
                    .dtype = kv.dtype,
                    .block_size_tokens = kv.block_size,
                    .limit_tokens = limit},
          .layers = std::move(layers)};
}

inline GpuCase gpu_case(std::string name, std::vector<EngineGroup> groups, DType io,
                        std::int64_t pages) {
  GpuCase made{.name = std::move(name), .options = {}};
  made.options.groups = std::move(groups);
  made.options.device = DeviceKind::cuda;
  made.options.num_pages = pages;
  made.options.io = io;
  made.options.tolerance = io == DType::f32 ? kF32 : io == DType::f16 ? kF16 : kBf16;
  made.options.one_head = true;
  made.options.lag = 3;
  made.options.mirrors_host = true;
  return made;
}

inline constexpr auto kFull = PagedKind::full;
inline constexpr auto kWindow = PagedKind::window;
inline constexpr auto kChunk = PagedKind::chunk;
inline constexpr auto kCross = PagedKind::cross;

inline std::vector<GpuCase> plain_cases() {
  constexpr DType bf16 = DType::bf16;
  constexpr DType f16 = DType::f16;
  constexpr DType f32 = DType::f32;
  const Kv small{.dtype = f32, .heads = 2, .dim = 8, .block_size = 4};
  std::vector<GpuCase> all;
  all.push_back(gpu_case("FullAndWindowPlain",
                         {group(kFull, {{0}, {3}}, small),
                          group(kWindow, {{1}, {2}, {4, 2}, {5}},
                                {.dtype = f32, .heads = 1, .dim = 16, .block_size = 4}, 9)},
                         f32, 80));
  all.push_back(gpu_case(
      "FullAndWindowBf16",
      {group(kFull, {{0}, {3}}, {}), group(kWindow, {{1}, {2}, {4, 2}, {5}}, {}, 40)}, bf16, 60));
  all.push_back(
      gpu_case("FullAndWindowF16Wide",
               {group(kFull, {{2}}, {.dtype = f16, .heads = 1, .dim = 128}),
                group(kWindow, {{0}, {1}, {3, 1}}, {.dtype = f16, .heads = 1, .dim = 128}, 17)},
               f16, 60));
  all.push_back(gpu_case(
      "FewPages", {group(kFull, {{0}}, {}), group(kWindow, {{1}, {2}, {3}}, {}, 16)}, bf16, 16));
  all.push_back(gpu_case("LargeBlocks",
                         {group(kFull, {{0}}, {.dtype = f16, .dim = 96, .block_size = 32}),
                          group(kWindow, {{1}, {2}, {3}, {4}}, {.dtype = f16, .dim = 64}, 33)},
                         f16, 60));
  all.push_back(
      gpu_case("Fp8",
               {group(kFull, {{0}}, {.dtype = DType::fp8_e4m3, .dim = 128}),
                group(kWindow, {{1}, {2}}, {.dtype = DType::fp8_e4m3, .heads = 2, .dim = 64}, 25)},
               bf16, 90));
  all.back().options.mirrors_host = false;  // the CPU has no fp8 layers
  all.push_back(gpu_case("WindowAlone", {group(kWindow, {{0}, {1}}, {}, 50)}, bf16, 60));
  all.push_back(gpu_case("WindowOfOneToken",
                         {group(kWindow, {{0}}, {}, 1), group(kFull, {{1}}, {.dim = 128})}, bf16,
                         120));
  all.push_back(gpu_case("BatchInvariant",
                         {group(kFull, {{0}}, {}), group(kWindow, {{1}, {2}}, {}, 21)}, bf16, 60));
  all.back().options.batch_invariant_tokens = 6 * GroupEngine::kLongest;
  all.push_back(gpu_case(
      "Mixed",
      {group(kFull, {{0}}, {.dtype = f16}), group(kWindow, {{1}, {2}}, {.dtype = f16}, 30)}, f16,
      90));
  for (EngineGroup& its : all.back().options.groups) its.group.head_dim_v = 32;
  all.push_back(gpu_case("Latent", {group(kFull, {{0}, {1}}, {.heads = 1, .dim = 96})}, bf16, 60));
  all.back().options.groups[0].group.value_in_key = true;
  all.back().options.groups[0].group.head_dim_v = 64;
  all.push_back(
      gpu_case("LatentOfMlaBf16", {group(kFull, {{0}, {1}}, {.heads = 1, .dim = 576})}, bf16, 60));
  all.back().options.groups[0].group.value_in_key = true;
  all.back().options.groups[0].group.head_dim_v = 512;
  // The CPU has none of these.
  const auto add_latents = [&all](const char* name, DType dtype, DType io) {
    all.push_back(gpu_case(
        name, {group(kFull, {{0}, {1}}, {.dtype = dtype, .heads = 1, .dim = 576})}, io, 60));
    all.back().options.groups[0].group.value_in_key = true;
    all.back().options.groups[0].group.head_dim_v = 512;
    all.back().options.mirrors_host = false;
  };
  add_latents("LatentFp8", DType::latent_fp8, bf16);
  add_latents("LatentFp8OfF16", DType::latent_fp8, f16);
  add_latents("LatentOfMlaFp8", DType::fp8_e4m3, bf16);
  add_latents("LatentFp8Indexed", DType::latent_fp8, bf16);
  all.back().options.groups[0].group.index_dim = 128;
  const auto add_scaled = [&all](const char* name, DType io, std::int32_t dim) {
    all.push_back(gpu_case(
        name,
        {group(kFull, {{0}}, {.dtype = DType::fp8_e4m3, .dim = dim}),
         group(kWindow, {{1}, {2}}, {.dtype = DType::fp8_e4m3, .heads = 4, .dim = 64}, 25)},
        io, 90));
    for (EngineGroup& its : all.back().options.groups) {
      its.group.scale = ScaleKind::per_token_head;
    }
    all.back().options.mirrors_host = false;
  };
  add_scaled("ScalesOfTokens", bf16, 128);
  add_scaled("ScalesOfTokensF32", f32, 100);
  all.back().options.groups[0].group.head_dim_v = 36;
  for (GpuCase& its : all) its.options.steps_in_flight = 1 + static_cast<int>(its.name.size()) % 3;
  return all;
}

/// Groups whose layers see other tokens than all or the last ones.
inline std::vector<GpuCase> split_cases() {
  constexpr DType bf16 = DType::bf16;
  constexpr DType f16 = DType::f16;
  constexpr DType f32 = DType::f32;
  const Kv small{.dtype = f32, .heads = 2, .dim = 8, .block_size = 4};
  std::vector<GpuCase> all;
  all.push_back(gpu_case(
      "ChunksPlain", {group(kFull, {{1}}, small), group(kChunk, {{0}, {2}}, small, 8)}, f32, 120));
  all.push_back(gpu_case("ChunksBf16",
                         {group(kFull, {{1}}, {}), group(kChunk, {{0}, {2}, {3, 2}}, {}, 48)}, bf16,
                         90));
  all.push_back(
      gpu_case("ChunksF16Wide",
               {group(kFull, {{3}}, {.dtype = f16, .heads = 1, .dim = 128}),
                group(kChunk, {{0}, {1}, {2}}, {.dtype = f16, .heads = 1, .dim = 128}, 16)},
               f16, 90));
  all.push_back(gpu_case(
      "EncoderPlain",
      {group(kFull, {{0}, {2}}, small),
       group(kCross, {{1}, {3}}, {.dtype = f32, .heads = 4, .dim = 8, .block_size = 8}, 21)},
      f32, 90));
  all.push_back(gpu_case(
      "EncoderBf16", {group(kFull, {{0}, {2}}, {}), group(kCross, {{1}, {3}}, {}, 70)}, bf16, 70));
  all.push_back(gpu_case(
      "ManyKindsPlain",
      {group(kFull, {{0}}, {.dtype = f32, .heads = 2, .dim = 8, .block_size = 8}),
       group(kWindow, {{1}, {2}}, {.dtype = f32, .heads = 1, .dim = 8, .block_size = 2}, 7),
       group(kChunk, {{3}}, {.dtype = f32, .heads = 4, .dim = 8, .block_size = 4}, 12),
       group(kWindow, {{4}}, small, 40)},
      f32, 200));
  all.push_back(gpu_case("ManyKindsF16",
                         {group(kFull, {{0}}, {.dtype = f16}),
                          group(kWindow, {{1}, {2}}, {.dtype = f16, .heads = 1}, 19),
                          group(kChunk, {{3}}, {.dtype = f16, .heads = 4, .dim = 128}, 64),
                          group(kCross, {{5}}, {.dtype = f16, .heads = 2, .dim = 128}, 40),
                          group(kWindow, {{4}}, {.dtype = f16, .block_size = 32}, 90)},
                         f16, 120));
  return all;
}

/// Types of V that are not those of K, fp8 and scales in every kind, and latents in every kind.
inline std::vector<GpuCase> format_cases() {
  constexpr DType bf16 = DType::bf16;
  constexpr DType f16 = DType::f16;
  constexpr DType fp8 = DType::fp8_e4m3;
  std::vector<GpuCase> all;
  const auto add = [&all](const char* name, std::vector<EngineGroup> groups, DType io,
                          bool is_on_host) {
    all.push_back(gpu_case(name, std::move(groups), io, 90));
    all.back().options.mirrors_host = is_on_host;
  };
  add("ValuesOfOtherTypes",
      {group(kFull, {{0}}, {.dtype = f16}), group(kWindow, {{1}, {2}}, {.dtype = bf16}, 30)}, f16,
      true);
  all.back().options.groups[0].group.dtype_v = DType::f32;
  all.back().options.groups[1].group.dtype_v = f16;
  all.back().options.groups[1].group.head_dim_v = 32;
  add("ValuesInFp8", {group(kFull, {{0}}, {}), group(kChunk, {{1}, {2}}, {}, 48)}, bf16, false);
  for (EngineGroup& its : all.back().options.groups) its.group.dtype_v = fp8;
  add("ChunksFp8",
      {group(kFull, {{1}}, {.dtype = fp8, .dim = 128}),
       group(kChunk, {{0}, {2}}, {.dtype = fp8, .heads = 4, .dim = 128}, 32)},
      bf16, false);
  add("EncoderFp8",
      {group(kFull, {{0}}, {.dtype = fp8}), group(kCross, {{1}, {2}}, {.dtype = fp8}, 70)}, bf16,
      false);
  add("EncoderFp8Scaled",
      {group(kFull, {{0}}, {.dtype = fp8}), group(kCross, {{1}, {2}}, {.dtype = fp8}, 70)}, bf16,
      false);
  all.back().options.kv_scale = 0.25F;
  add("ScalesOfTokensEverywhere",
      {group(kFull, {{0}}, {.dtype = fp8}), group(kChunk, {{1}}, {.dtype = fp8}, 32),
       group(kCross, {{2}}, {.dtype = fp8}, 40)},
      bf16, false);
  for (EngineGroup& its : all.back().options.groups) its.group.scale = ScaleKind::per_token_head;
  add("ScalesOfTokensLatent", {group(kFull, {{0}, {1}}, {.dtype = fp8, .heads = 1, .dim = 96})},
      bf16, false);
  all.back().options.groups[0].group.scale = ScaleKind::per_token_head;
  add("LatentInWindowsAndChunks",
      {group(kFull, {{0}}, {.heads = 1, .dim = 96}),
       group(kWindow, {{1}}, {.heads = 1, .dim = 96}, 21),
       group(kChunk, {{2}}, {.heads = 1, .dim = 96}, 32)},
      bf16, true);
  add("LatentOfMlaInWindowsAndChunks",
      {group(kWindow, {{0}}, {.heads = 1, .dim = 576}, 40),
       group(kChunk, {{1}}, {.heads = 1, .dim = 576}, 32)},
      bf16, true);
  for (std::size_t i = all.size() - 3; i < all.size(); ++i) {
    for (EngineGroup& its : all[i].options.groups) {
      its.group.value_in_key = true;
      its.group.head_dim_v = its.group.head_dim_k == 576 ? 512 : 64;
    }
  }
  return all;
}

inline std::vector<GpuCase> all_gpu_cases() {
  std::vector<GpuCase> all = plain_cases();
  for (GpuCase& its : split_cases()) all.push_back(std::move(its));
  for (GpuCase& its : format_cases()) all.push_back(std::move(its));
  for (const char* name : {"FullAndWindowPlain", "FullAndWindowBf16", "Fp8", "LatentOfMlaBf16",
                           "LatentFp8", "ChunksPlain"}) {
    all.push_back(*std::ranges::find(all, name, &GpuCase::name));
    all.back().name = "Cached" + all.back().name;
    all.back().options.prefix_cache = true;
  }
  for (const char* name : {"FullAndWindowBf16", "LatentFp8Indexed", "EncoderBf16",
                           "ScalesOfTokensEverywhere", "CachedFp8", "ManyKindsF16"}) {
    all.push_back(*std::ranges::find(all, name, &GpuCase::name));
    all.back().name = "Scrubbed" + all.back().name;
    all.back().options.scrub = Scrub::always;
  }
  return all;
}

}  // namespace kvarena::test
