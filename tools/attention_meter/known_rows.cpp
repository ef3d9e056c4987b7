#include "tools/attention_meter/known_rows.hpp"

#include <algorithm>
#include <array>

namespace kvarena::meter {
namespace {

constexpr std::array kPresets = {
    Preset{"llama-3-8b", 32, 8, 128},
    Preset{"phi-3-mini", 32, 32, 96},
    Preset{"qwen2.5-0.5b", 14, 2, 64},
    Preset{"70b-shard", 8, 1, 128},
};

// Targets: 1.03 from 1 GB, 1.06 from 250 MB, 1.10 from 128 MB, floor + 4 us below.
constexpr double kFrom1Gb = 1.03;
constexpr double kFrom250Mb = 1.06;
constexpr double kFrom128Mb = 1.10;
constexpr double below(double floor_us) { return (floor_us + 4.0) / floor_us; }

constexpr DType kBf16 = DType::bf16;
constexpr DType kFp8 = DType::fp8_e4m3;
constexpr std::string_view kLlama = "llama-3-8b";
constexpr std::string_view kPhi = "phi-3-mini";
constexpr std::string_view kQwen = "qwen2.5-0.5b";
constexpr std::string_view kShard = "70b-shard";

constexpr std::array kRows = {
    KnownRow{kLlama, "A 1x1k", kBf16, 1, 1024, 2.4, 7.8, "cuDNN", below(2.4)},
    KnownRow{kLlama, "A 1x4k", kBf16, 1, 4096, 5.1, 12.6, "cuDNN", below(5.1)},
    KnownRow{kLlama, "A 1x32k", kBf16, 1, 32768, 30.8, 41.3, "cuDNN", kFrom128Mb},
    KnownRow{kLlama, "A 1x128k", kBf16, 1, 131072, 118.5, 133.0, "cuDNN", kFrom250Mb},
    KnownRow{kLlama, "A 8x4k", kBf16, 8, 4096, 30.8, 40.9, "cuDNN", kFrom128Mb},
    KnownRow{kLlama, "A 32x4k", kBf16, 32, 4096, 118.6, 131.2, "FlashInfer", kFrom250Mb},
    KnownRow{kLlama, "A 64x1k", kBf16, 64, 1024, 60.1, 71.0, "cuDNN", kFrom250Mb},
    KnownRow{kLlama, "A 64x8k", kBf16, 64, 8192, 466.0, 492.0, "cuDNN", kFrom1Gb},
    KnownRow{kLlama, "A 256x1k", kBf16, 256, 1024, 235.0, 254.0, "cuDNN", kFrom1Gb},
    KnownRow{kLlama, "A 256x4k", kBf16, 256, 4096, 929.0, 969.0, "cuDNN", kFrom1Gb},
    KnownRow{kPhi, "B 1x4k", kBf16, 1, 4096, 12.4, 21.1, "cuDNN", below(12.4)},
    KnownRow{kPhi, "B 8x4k", kBf16, 8, 4096, 89.2, 107.0, "cuDNN", kFrom250Mb},
    KnownRow{kPhi, "B 32x4k", kBf16, 32, 4096, 350.0, 398.0, "cuDNN", kFrom1Gb},
    KnownRow{kPhi, "B 128x1k", kBf16, 128, 1024, 350.0, 391.0, "cuDNN", kFrom1Gb},
    KnownRow{kQwen, "C 1x4k", kBf16, 1, 4096, 1.9, 7.8, "cuDNN", below(1.9)},
    KnownRow{kQwen, "C 32x4k", kBf16, 32, 4096, 16.1, 24.9, "cuDNN, XQA", below(16.1)},
    KnownRow{kQwen, "C 128x4k", kBf16, 128, 4096, 60.1, 69.1, "cuDNN", kFrom250Mb},
    KnownRow{kQwen, "C 256x1k", kBf16, 256, 1024, 30.8, 40.4, "cuDNN", kFrom128Mb},
    KnownRow{kShard, "D 1x32k", kBf16, 1, 32768, 5.1, 16.1, "cuDNN", below(5.1)},
    KnownRow{kShard, "D 64x4k", kBf16, 64, 4096, 30.8, 41.5, "cuDNN", kFrom128Mb},
    KnownRow{kShard, "D 256x4k", kBf16, 256, 4096, 118.5, 132.7, "FlashInfer", kFrom250Mb},
    KnownRow{kLlama, "E skewed", kBf16, 64, 0, 116.7, 145.0, "FlashAttention-3", kFrom250Mb},
    KnownRow{kLlama, "F 64x8k", kFp8, 64, 8192, 235.0, 433.0, "FlashInfer", kFrom1Gb},
    KnownRow{kLlama, "F 128x4k", kFp8, 128, 4096, 235.0, 443.0, "FlashInfer", kFrom1Gb},
};

constexpr std::array<std::int32_t, 64> kSkewed = {
    508,  1340, 560,  1006, 1112, 691,  1439, 841,  812,  65536, 988,  689,  635,  330, 449,  829,
    968,  722,  491,  1105, 1181, 573,  1094, 1599, 932,  742,   1120, 644,  461,  831, 1191, 516,
    776,  1690, 946,  1532, 635,  1340, 816,  2083, 2332, 990,   939,  625,  952,  533, 1240, 607,
    1011, 1250, 1921, 1815, 1047, 801,  630,  938,  598,  343,   1235, 3382, 1289, 913, 524,  1660};

}  // namespace

std::span<const Preset> presets() noexcept { return kPresets; }

const Preset* find_preset(std::string_view name) noexcept {
  const auto* found = std::find_if(kPresets.begin(), kPresets.end(),
                                   [name](const Preset& preset) { return preset.name == name; });
  return found == kPresets.end() ? nullptr : found;
}

std::span<const KnownRow> known_rows() noexcept { return kRows; }

std::span<const std::int32_t> skewed_lengths() noexcept { return kSkewed; }

std::vector<std::int32_t> lengths_of(const KnownRow& row) {
  if (row.context == 0) return {kSkewed.begin(), kSkewed.end()};
  return std::vector<std::int32_t>(static_cast<std::size_t>(row.batch), row.context);
}

const KnownRow* find_known_row(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  if (shape.block_size != 16 || shape.q_len != 1 || shape.window_tokens != 0) return nullptr;
  if (shape.soft_cap > 0.0F || !problem.query_tokens.empty() || problem.shared_tokens > 0) {
    return nullptr;
  }
  for (const KnownRow& row : kRows) {
    const Preset& preset = *find_preset(row.preset);
    if (preset.num_q_heads == shape.num_q_heads && preset.num_kv_heads == shape.num_kv_heads &&
        preset.head_dim == shape.head_dim && row.dtype == shape.dtype &&
        lengths_of(row) == problem.lengths) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace kvarena::meter
