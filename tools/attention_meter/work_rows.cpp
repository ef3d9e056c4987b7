#include "tools/attention_meter/work_rows.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::meter {
namespace {

/// Attention heads of a row.
struct Heads {
  std::int32_t q = 32;
  std::int32_t kv = 8;
  std::int32_t dim = 128;
};

constexpr std::array<std::int32_t, 32> kRagged = {
    10305, 4285, 5974, 11412, 10782, 8784, 575,  7728, 4180,  10732, 949,
    2669,  1954, 6191, 7785,  4139,  6338, 9008, 1770, 9503,  4185,  314,
    3650,  6787, 4679, 3083,  6480,  2714, 1278, 2373, 10224, 10216};

/// `batch` sequences of `query_tokens` behind `cached` tokens.
AttentionProblem batch_of(const std::string& name, std::size_t batch, std::int32_t query_tokens,
                          std::int32_t cached, const Heads& heads = {}) {
  AttentionProblem problem;
  problem.name = name;
  problem.shape.num_q_heads = heads.q;
  problem.shape.num_kv_heads = heads.kv;
  problem.shape.head_dim = heads.dim;
  problem.shape.q_len = query_tokens;
  problem.lengths.assign(batch, query_tokens + cached);
  return problem;
}

AttentionProblem prompts(const std::string& name, std::size_t batch, std::int32_t tokens,
                         const Heads& heads = {}) {
  return batch_of(name, batch, tokens, 0, heads);
}

AttentionProblem ragged_prompts() {
  AttentionProblem problem = prompts("ragged", 1, 1);
  problem.lengths.assign(kRagged.begin(), kRagged.end());
  problem.query_tokens = problem.lengths;
  return problem;
}

/// The bf16 rows that have fp8 ones beside them.
std::vector<AttentionProblem> plain_prompts() {
  std::vector<AttentionProblem> rows = {
      prompts("1x1k", 1, 1024),
      prompts("1x4k", 1, 4096),
      prompts("1x8k", 1, 8192),
      prompts("1x32k", 1, 32768),
      prompts("8x1k", 8, 1024),
      prompts("8x4k", 8, 4096),
      prompts("2x16k", 2, 16384),
      prompts("16x512", 16, 512),
      prompts("64x256", 64, 256),
      ragged_prompts(),
      batch_of("1x512+8k", 1, 512, 8192),
      batch_of("1x2k+32k", 1, 2048, 32768),
      batch_of("4x2k+6k", 4, 2048, 6144),
      prompts("d96-1x4k", 1, 4096, {32, 32, 96}),
      prompts("d64-4x4k", 4, 4096, {14, 2, 64}),
      prompts("64/8-1x8k", 1, 8192, {64, 8, 128}),
      prompts("d80-1x4k", 1, 4096, {32, 8, 80}),
      prompts("d192-1x4k", 1, 4096, {32, 8, 192}),
      prompts("d256-1x4k", 1, 4096, {32, 8, 256}),
  };
  return rows;
}

/// 64 decode rows of 4k and two prompts of 2k in one batch. The prompts stand behind all others, or
/// among them.
AttentionProblem mixed(const std::string& name, bool is_sorted) {
  AttentionProblem decode = batch_of("", 64, 1, 4095);
  AttentionProblem prefill = prompts("", 2, 2048);
  AttentionProblem problem = decode;
  problem.name = name;
  problem.query_tokens.assign(64, 1);
  for (const std::ptrdiff_t at : {20, 45}) {
    const std::ptrdiff_t place =
        is_sorted ? static_cast<std::ptrdiff_t>(problem.lengths.size()) : at;
    problem.lengths.insert(problem.lengths.begin() + place, 2048);
    problem.query_tokens.insert(problem.query_tokens.begin() + place, 2048);
  }
  problem.beside = {std::move(decode), std::move(prefill)};
  return problem;
}

/// 200 sequences of 50 to 20,000 tokens, half of them below 118.
AttentionProblem short_ragged() {
  constexpr std::int32_t kCount = 200;
  AttentionProblem problem = batch_of("200-short", kCount, 1, 0);
  for (std::int32_t i = 0; i < kCount; ++i) {
    // Of the odds o of quantile (i + 1/2) / 200: 50 + 67 o + o^2, in an order without a trend.
    const std::int32_t up = 2 * i + 1;
    const std::int32_t down = 2 * kCount - up;
    const std::int32_t tokens = 50 + (67 * up * down + up * up) / (down * down);
    problem.lengths[static_cast<std::size_t>(i * 77 % kCount)] = std::min(tokens, 20'000);
  }
  return problem;
}

AttentionProblem shared(const std::string& name, std::size_t batch, std::int32_t shared_tokens,
                        std::int32_t own_tokens, std::int32_t groups) {
  AttentionProblem problem = batch_of(name, batch, 1, shared_tokens + own_tokens - 1);
  problem.shared_tokens = shared_tokens;
  problem.num_groups = groups;
  return with_comparison(std::move(problem));
}

}  // namespace

AttentionProblem with_comparison(AttentionProblem problem) {
  if (!problem.beside.empty()) return problem;
  AttentionProblem other = problem;
  other.name.clear();
  if (problem.shared_tokens > 0) {
    other.reads_shared = false;
    problem.beside.push_back(std::move(other));
    return problem;
  }
  bool has_cached = false;
  other.query_tokens.clear();
  for (std::size_t row = 0; row < problem.lengths.size(); ++row) {
    const std::int32_t queries = problem.queries_of(row);
    has_cached = has_cached || queries < problem.lengths[row];
    other.lengths[row] = prompt_of_equal_work(queries, problem.lengths[row] - queries);
  }
  if (!has_cached || most_columns(problem) <= kMostColumns) return problem;
  other.query_tokens = other.lengths;
  problem.beside.push_back(std::move(other));
  return problem;
}

AttentionProblem batch_invariant(AttentionProblem problem) {
  problem.beside.clear();
  AttentionProblem other = problem;
  other.name.clear();
  problem.batch_invariant = true;
  problem.beside.push_back(std::move(other));
  return problem;
}

std::vector<AttentionProblem> prefill_rows() {
  std::vector<AttentionProblem> rows;
  for (AttentionProblem& row : plain_prompts()) rows.push_back(with_comparison(std::move(row)));
  for (AttentionProblem& row : plain_prompts()) {
    AttentionProblem fp8 = row;
    fp8.name = "fp8-" + row.name;
    fp8.shape.dtype = DType::fp8_e4m3;
    fp8.beside.push_back(std::move(row));
    rows.push_back(std::move(fp8));
  }
  rows.push_back(prompts("window-1x8k", 1, 8192));
  rows.back().shape.window_tokens = 1024;
  rows.push_back(prompts("cap-1x8k", 1, 8192));
  rows.back().shape.soft_cap = 50.0F;
  rows.push_back(mixed("mixed", true));
  rows.push_back(mixed("mixed-among", false));
  return rows;
}

std::vector<AttentionProblem> columns_rows() {
  constexpr Heads kGroupOf16{64, 4, 128};
  std::vector<AttentionProblem> rows = {
      batch_of("64x4k-q4", 64, 4, 4092),
      batch_of("16x4k-q8", 16, 8, 4088),
      batch_of("64/8-32x4k-q4", 32, 4, 4092, {64, 8, 128}),
      batch_of("64/4-32x4k", 32, 1, 4095, kGroupOf16),
      batch_of("16/1-32x4k", 32, 1, 4095, {16, 1, 128}),
      batch_of("128/8-16x4k", 16, 1, 4095, {128, 8, 128}),
      batch_of("32x2k-q4", 32, 4, 2044),
      batch_of("32x2k-q8", 32, 8, 2040),
      batch_of("32x4k-q8", 32, 8, 4088),
      batch_of("32x2k-q16", 32, 16, 2032),
      batch_of("32x4k-q16", 32, 16, 4080),
      batch_of("32x2k-q32", 32, 32, 2016),
      batch_of("32x4k-q32", 32, 32, 4064),
      batch_of("1x64k-q4", 1, 4, 65532),
      batch_of("3x22k-q4", 3, 4, 22524),
      short_ragged(),
      batch_of("512x512", 512, 1, 511),
      batch_of("fp8-64x4k-q4", 64, 4, 4092),
  };
  rows.back().shape.dtype = DType::fp8_e4m3;
  return rows;
}

std::vector<AttentionProblem> latent_rows() {
  constexpr std::int32_t kDim = 576;
  std::vector<AttentionProblem> rows;
  const auto add = [&](const std::string& name, std::size_t batch, std::int32_t tokens,
                       std::int32_t context, std::int32_t heads) {
    rows.push_back(batch_of(name, batch, tokens, context - tokens, {heads, 1, kDim}));
    rows.back().shape.latent_value_dim = 512;
  };
  add("mla16-128x4k", 128, 1, 4096, 16);
  add("mla16-128x8k", 128, 1, 8192, 16);
  add("mla32-128x4k", 128, 1, 4096, 32);
  add("mla16-128x4k-q2", 128, 2, 4096, 16);
  add("mla16-32x4k", 32, 1, 4096, 16);
  add("mla32-32x4k", 32, 1, 4096, 32);
  add("mla16-1x32k", 1, 1, 32768, 16);
  add("mla64-128x4k", 128, 1, 4096, 64);
  add("mla32-128x4k-q2", 128, 2, 4096, 32);
  add("mla16-128x4k-q4", 128, 4, 4096, 16);
  add("mla128-128x4k", 128, 1, 4096, 128);
  add("mla128-128x8k", 128, 1, 8192, 128);
  add("mla64-128x4k-q2", 128, 2, 4096, 64);
  add("mla128-128x4k-q4", 128, 4, 4096, 128);
  add("mla16-1x4k-prompt", 1, 4096, 4096, 16);
  add("mla128-4x2k+6k", 4, 2048, 8192, 128);
  add("mla16-64-skewed", 64, 1, 1, 16);
  for (std::size_t row = 0; row < rows.back().lengths.size(); ++row) {
    rows.back().lengths[row] = kRagged[row % kRagged.size()];
  }
  const std::size_t num_rows = rows.size();
  for (std::size_t row = 0; row < num_rows; ++row) {
    rows.push_back(rows[row]);
    rows.back().name = "fp8-" + rows.back().name;
    rows.back().shape.dtype = DType::latent_fp8;
  }
  return rows;
}

std::vector<AttentionProblem> kinds_rows() {
  std::vector<AttentionProblem> rows;
  const auto add = [&](const std::string& name, std::size_t batch, std::int32_t context,
                       const Heads& heads, std::int32_t window) {
    rows.push_back(batch_of(name, batch, 1, context - 1, heads));
    rows.back().shape.window_tokens = window;
  };
  add("gemma-3-64x8k", 64, 8192, {32, 16, 128}, 1024);
  add("phi-3-32x4k", 32, 4096, {32, 32, 96}, 2047);
  add("gpt-oss-256x8k", 256, 8192, {64, 8, 64}, 128);
  // A chunk of 8,192 tokens ends before the last 4,096 of 12,288.
  add("llama-4-32x12k", 32, 4096, {40, 8, 128}, 0);
  add("k192-v128-32x4k", 32, 4096, {64, 4, 192}, 0);
  rows.back().shape.own_value_dim = 128;
  rows.push_back(prompts("k192-v128-1x4k", 1, 4096, {64, 4, 192}));
  rows.back().shape.own_value_dim = 128;
  return rows;
}

std::vector<AttentionProblem> shared_prefix_rows() {
  return {shared("64x8k+1k", 64, 8192, 1024, 1), shared("256x2k+256", 256, 2048, 256, 1),
          shared("32x3k+1k-in-8", 32, 3072, 1024, 8)};
}

}  // namespace kvarena::meter
