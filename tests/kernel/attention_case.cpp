#include "kernel/attention_case.hpp"

#include "kernels/reference/attention.hpp"
#include "kernels/reference/element.hpp"
#include "kvarena/base/latent_fp8.hpp"
#include "kvarena/base/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

namespace kvarena::test {
namespace {

constexpr std::int32_t kLayers = 2;  // the problem is layer 1 of 2
constexpr std::int32_t kPageShift = 2;
constexpr float kHugeSink = 150.0F;  // its weight against any logit is more than a float holds
constexpr std::int32_t kPageEntries = 1 << kPageShift;

using kernels::reference::load_element;
using kernels::reference::store_element;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::int64_t blocks_of(std::int32_t seq_len, std::int32_t block_size) {
  return (seq_len + block_size - 1) / block_size;
}

template <class T>
void print(std::ostream& out, const char* name, const std::vector<T>& values) {
  out << ' ' << name << "=[";
  for (const T& value : values) out << value << ' ';
  out << ']';
}

/// Fills a row in the format latent_fp8. All bytes of a NaN row are 0xFF.
void fill_latent_fp8(std::byte* row, Poison poison) {
  const bool is_nan = poison == Poison::nan;
  std::memset(row, is_nan ? 0xFF : 0, size(kLatentFp8Bytes));
  if (poison != Poison::infinity) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::int32_t dim = 0; dim < kLatentFp8Dim; ++dim) {
    const DType dtype = dim < kLatentFp8ValueDim ? DType::fp8_e4m3 : DType::bf16;
    store_element(row + latent_fp8_byte(dim), dtype, 0, kInfinity);
  }
  for (std::int32_t run = 0; run < kLatentFp8ValueDim / kLatentFp8Run; ++run) {
    store_element(row + kLatentFp8ScalesAt, DType::f32, run, kInfinity);
  }
}

/// fp8 has no infinity: its largest number stands for it.
void store_poison(void* array, DType dtype, std::int64_t index, Poison poison) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  store_element(array, dtype, index,
                poison == Poison::nan        ? kNan
                : poison == Poison::infinity ? kInfinity
                                             : 0.0F);
}

}  // namespace

std::string to_string(const AttentionCase& c) {
  std::ostringstream out;
  out << "case seed=" << c.seed << " k=" << name_of(c.key_dtype) << " v=" << name_of(c.value_dtype)
      << " q=" << name_of(c.q_dtype) << " out=" << name_of(c.out_dtype)
      << " kv_heads=" << c.num_kv_heads << " group=" << c.group << " dk=" << c.head_dim_k
      << " dv=" << c.head_dim_v << " block_size=" << c.block_size << " window=" << c.window_tokens
      << " cap=" << c.soft_cap << " paged=" << c.paged_table << " block_major=" << c.block_major
      << " order=" << (c.tile_order == TileOrder::rows ? "rows" : "chunked")
      << " alias=" << c.value_aliases_key << " scales=" << static_cast<int>(c.scales)
      << " odd_scales=" << c.has_odd_scales << " latent_scale=" << c.latent_scale
      << " zero_rows=" << c.has_zero_rows << " sinks=" << c.has_sinks << " tree=" << c.has_tree;
  print(out, "lens", c.seq_lens);
  print(out, "q", c.q_counts);
  for (const SharedBlocks& s : c.shared_blocks) {
    out << ' ' << s.row << '=' << s.from << '[' << s.first << ',' << s.end << ')';
  }
  return out.str();
}

AttentionProblem::AttentionProblem(const AttentionCase& c, Poison poison) : case_(c) {
  q_offsets_.push_back(0);
  for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
    q_offsets_.push_back(q_offsets_.back() + (c.q_counts.empty() ? 1 : c.q_counts[row]));
  }
  total_q_ = q_offsets_.back();
  build_tables();
  lay_out_planes();
  fill_pool(poison);

  std::mt19937_64 random(c.seed + 17);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  q_.resize(size(lse_elements() * c.head_dim_k * bytes_of(c.q_dtype)));
  for (std::int64_t i = 0; i < lse_elements() * c.head_dim_k; ++i) {
    store_f32(q_.data(), c.q_dtype, i, normal(random));
  }
  // They do not depend on the number of query tokens.
  std::mt19937_64 random_scale(c.seed + 19);
  std::uniform_real_distribution<float> scale(0.02F, 2.0F);
  if (c.scales != ScaleKind::none) {
    const std::int32_t count = c.scales == ScaleKind::per_head ? c.num_kv_heads : 1;
    for (std::int32_t i = 0; i < count; ++i) {
      key_scales_.push_back(scale(random_scale));
      value_scales_.push_back(scale(random_scale));
    }
  }
  for (std::int32_t i = 0; c.has_sinks && i < c.num_kv_heads * c.group; ++i) {
    sinks_.push_back(random() % 4 == 0 ? kHugeSink : 2.0F * normal(random));
  }
  if (c.has_tree) grow_trees();
  exact_.resize(size(out_elements()));
  exact_lse_.resize(size(lse_elements()));
  kernels::reference::attention_paged_exact(params(), exact_.data());
}

kernels::AttentionParams AttentionProblem::params() {
  const AttentionArgs a = args(nullptr, exact_lse_.data());
  return {
      a.kv,
      a.batch,
      a.q_offsets,
      a.q,
      a.out,
      a.lse,
      a.num_q_heads,
      a.window_tokens,
      a.scale,
      a.soft_cap,
      a.q_dtype,
      a.out_dtype,
      {key_scales_.empty() ? nullptr : key_scales_.data(),
       value_scales_.empty() ? nullptr : value_scales_.data(), case_.scales == ScaleKind::per_head},
      sinks_.empty() ? nullptr : sinks_.data(),
      tree_masks_.empty() ? nullptr : tree_masks_.data()};
}

// The parent of each query token is the row's last old token or a query token before it.
void AttentionProblem::grow_trees() {
  std::mt19937_64 random(case_.seed + 29);
  for (std::size_t row = 0; row + 1 < q_offsets_.size(); ++row) {
    const std::size_t first = tree_masks_.size();
    for (std::int64_t i = 0; i < q_offsets_[row + 1] - q_offsets_[row]; ++i) {
      const std::uint64_t parent = random() % static_cast<std::uint64_t>(i + 1);
      const std::uint64_t path = parent == 0 ? 0 : tree_masks_[first + parent - 1];
      tree_masks_.push_back(path | std::uint64_t{1} << i);
    }
  }
}

std::int64_t AttentionProblem::num_pool_blocks() const {
  std::int64_t used = 0;
  for (const std::int32_t n : num_blocks_) used += n;
  return used + used / 3 + 2;
}

// Blocks in random order over the pool; in the paged form each row's pages lie in random order too.
void AttentionProblem::build_tables() {
  std::mt19937_64 random(case_.seed);
  for (const std::int32_t length : case_.seq_lens) {
    num_blocks_.push_back(static_cast<std::int32_t>(blocks_of(length, case_.block_size)));
  }
  std::vector<std::int32_t> ids(size(num_pool_blocks()));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  std::size_t next = 0;
  if (!case_.paged_table) {
    for (const std::int32_t blocks : num_blocks_) {
      row_offsets_.push_back(static_cast<std::int64_t>(entries_.size()));
      for (std::int32_t j = 0; j < blocks; ++j) entries_.emplace_back(ids[next++]);
    }
    for (const SharedBlocks& s : case_.shared_blocks) {
      for (std::int32_t j = s.first; j < s.end; ++j) {
        entries_[size(row_offsets_[size(s.row)] + j)] =
            entries_[size(row_offsets_[size(s.from)] + j)];
      }
    }
    return;
  }
  for (const std::int32_t blocks : num_blocks_) {
    row_offsets_.push_back(static_cast<std::int64_t>(pages_.size()));
    for (std::int32_t j = 0; j < blocks; j += kPageEntries) {
      pages_.push_back(static_cast<std::int32_t>(pages_.size()));
    }
  }
  std::shuffle(pages_.begin(), pages_.end(), random);
  entries_.assign(pages_.size() * size(kPageEntries), BlockId{1 << 28});
  for (std::size_t row = 0; row < num_blocks_.size(); ++row) {
    for (std::int32_t j = 0; j < num_blocks_[row]; ++j) {
      const std::int32_t page = pages_[size(row_offsets_[row] + j / kPageEntries)];
      entries_[size(page * kPageEntries + j % kPageEntries)] = BlockId{ids[next++]};
    }
  }
}

void AttentionProblem::lay_out_planes() {
  const AttentionCase& c = case_;
  const auto plane = [&c](std::int32_t dim, DType dtype) {
    PlaneView view;
    view.num_heads = c.num_kv_heads;
    view.head_dim = dim;
    view.dtype = dtype;
    view.token_stride = row_bytes(dtype, dim);
    view.head_stride = view.token_stride * c.block_size;
    view.tile_order = c.tile_order;
    return view;
  };
  kv_.key = plane(c.head_dim_k, c.key_dtype);
  kv_.value = plane(c.head_dim_v, c.value_dtype);
  kv_.block_size = c.block_size;
  kv_.num_blocks = num_pool_blocks();
  const auto padded = [](const PlaneView& p) {
    return (p.head_stride * p.num_heads + 15) / 16 * 16;
  };
  const std::int64_t key_bytes = padded(kv_.key);
  const std::int64_t value_bytes = c.value_aliases_key ? 0 : padded(kv_.value);
  const std::int64_t block_bytes = kLayers * (key_bytes + value_bytes);
  pool_.resize(size(block_bytes * kv_.num_blocks));
  if (c.block_major) {
    kv_.key.base = pool_.data() + key_bytes + value_bytes;
    kv_.value.base = kv_.key.base + key_bytes;
    kv_.key.block_stride = block_bytes;
    kv_.value.block_stride = block_bytes;
  } else {
    kv_.key.base = pool_.data() + (key_bytes + value_bytes) * kv_.num_blocks;
    kv_.value.base = kv_.key.base + key_bytes * kv_.num_blocks;
    kv_.key.block_stride = key_bytes;
    kv_.value.block_stride = value_bytes;
  }
  if (c.value_aliases_key) {
    const std::int32_t dim = kv_.value.head_dim;
    kv_.value = kv_.key;
    kv_.value.head_dim = dim;
  }
}

void AttentionProblem::fill_pool(Poison poison) {
  const std::int64_t key_bytes = bytes_of(case_.key_dtype);
  if (case_.key_dtype == DType::latent_fp8) {
    for (std::size_t at = 0; at < pool_.size(); at += size(kLatentFp8Bytes)) {
      fill_latent_fp8(pool_.data() + at, poison);
    }
  } else if (key_bytes == bytes_of(case_.value_dtype)) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(pool_.size()) / key_bytes; ++i) {
      store_poison(pool_.data(), case_.key_dtype, i, poison);
    }
  } else {
    std::fill(pool_.begin(), pool_.end(), poison == Poison::zero ? std::byte{0} : std::byte{0xFF});
  }
  std::mt19937_64 random(case_.seed + 5);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const BatchView batch = args(nullptr, nullptr).batch;
  const auto write = [&](const PlaneView& plane, std::int32_t row, std::int32_t token) {
    const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
    const std::int64_t block = batch.tables.block(row, token / case_.block_size).value;
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      if (plane.dtype == DType::latent_fp8) {
        std::vector<float> latent(size(kLatentFp8Dim));
        for (float& value : latent) value = normal(random) * case_.latent_scale;
        if (case_.has_zero_rows && token % 3 == 1) std::ranges::fill(latent, 0.0F);
        std::byte* const to =
            plane.base + element_offset(plane, 1, block, head, token % case_.block_size, 0);
        kernels::reference::store_latent_fp8(latent, to);
        // Other engines' scales are no powers of two.
        for (std::int32_t run = 0; case_.has_odd_scales && run < 4; ++run) {
          std::byte* const scale = to + kLatentFp8ScalesAt;
          const float its = load_element(scale, DType::f32, run);
          store_element(scale, DType::f32, run, its * (run == token % 4 ? 1.0F : 0.83F));
        }
        continue;
      }
      for (std::int32_t d = 0; d < plane.head_dim; ++d) {
        const std::int64_t at =
            element_offset(plane, bytes, block, head, token % case_.block_size, d);
        store_element(plane.base + at, plane.dtype, 0, normal(random));
      }
    }
  };
  for (std::int32_t row = 0; row < batch.num_rows; ++row) {
    for (std::int32_t token = 0; token < batch.seq_lens[row]; ++token) {
      write(kv_.key, row, token);
      if (!case_.value_aliases_key) write(kv_.value, row, token);
    }
  }
}

std::vector<std::byte> AttentionProblem::pool_with(Poison poison) const {
  std::vector<std::byte> pool = pool_;
  const DType dtype = case_.key_dtype;
  for (std::size_t at = 0; dtype == DType::latent_fp8 && at < pool.size();
       at += size(kLatentFp8Bytes)) {
    const std::span row(pool_.data() + at, size(kLatentFp8Bytes));
    const bool is_free = std::ranges::all_of(row, [](std::byte b) { return b == std::byte{0xFF}; });
    if (is_free) fill_latent_fp8(pool.data() + at, poison);
  }
  if (dtype == DType::latent_fp8) return pool;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(pool.size()) / bytes_of(dtype); ++i) {
    if (std::isnan(load_element(pool_.data(), dtype, i))) {
      store_poison(pool.data(), dtype, i, poison);
    }
  }
  return pool;
}

AttentionArgs AttentionProblem::args(void* out, float* lse) const {
  const auto rows = static_cast<std::int32_t>(case_.seq_lens.size());
  AttentionArgs a;
  a.kv = kv_;
  a.batch.tables = {entries_.data(), case_.paged_table ? pages_.data() : nullptr,
                    row_offsets_.data(), kPageShift, rows};
  a.batch.seq_lens = case_.seq_lens.data();
  a.batch.num_blocks = num_blocks_.data();
  a.batch.num_rows = rows;
  a.q_offsets = case_.q_counts.empty() ? nullptr : q_offsets_.data();
  a.q = q_.data();
  a.q_dtype = case_.q_dtype;
  a.out = out;
  a.out_dtype = case_.out_dtype;
  a.lse = lse;
  a.num_q_heads = case_.num_kv_heads * case_.group;
  a.scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim_k));
  a.window_tokens = case_.window_tokens;
  a.soft_cap = case_.soft_cap;
  a.sinks = sinks_.empty() ? nullptr : sinks_.data();
  a.tree_mask = tree_masks_.empty() ? nullptr : tree_masks_.data();
  return a;
}

AttentionLimits AttentionProblem::limits(std::int32_t num_threads, CpuPath path) const {
  AttentionLimits limits;
  limits.max_rows = std::max(1, static_cast<std::int32_t>(case_.seq_lens.size()));
  limits.max_q_tokens = std::max<std::int64_t>(1, total_q_);
  limits.num_q_heads = case_.num_kv_heads * case_.group;
  limits.num_kv_heads = case_.num_kv_heads;
  limits.head_dim_k = case_.head_dim_k;
  limits.head_dim_v = case_.head_dim_v;
  limits.num_threads = num_threads;
  limits.path = path;
  limits.draft_trees = case_.has_tree;
  return limits;
}

std::int64_t AttentionProblem::lse_elements() const {
  return total_q_ * case_.num_kv_heads * case_.group;
}

std::int64_t AttentionProblem::out_elements() const { return lse_elements() * case_.head_dim_v; }

AttentionOutput run_case(const AttentionProblem& problem, const AttentionLimits& limits,
                         std::int32_t num_workers, std::int32_t only_row) {
  AttentionOutput output;
  output.out.assign(size(problem.out_elements() * bytes_of(problem.shape().out_dtype)),
                    std::byte{0xFF});
  output.lse.assign(size(problem.lse_elements()), std::numeric_limits<float>::quiet_NaN());
  auto workers = CpuWorkers::create(num_workers);
  const auto bytes = attention_workspace_bytes(limits);
  if (!workers.is_ok() || !bytes.is_ok()) {
    ADD_FAILURE() << describe_attention(bytes.status());
    return output;
  }
  std::vector<std::byte> storage(size(bytes.value() + 64), std::byte{0xFF});
  const std::size_t skip = (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64) % 64;
  AttentionArgs args = problem.args(output.out.data(), output.lse.data());
  if (only_row >= 0) {
    args.batch.num_rows = args.batch.tables.num_rows = 1;
    args.batch.tables.row_offsets += only_row;
    args.batch.seq_lens += only_row;
    args.batch.num_blocks += only_row;
    args.q_offsets += only_row;
  }
  const Status valid = validate(args, Validation::checked);
  EXPECT_TRUE(valid.is_ok()) << describe_attention(valid);
  const auto plan = plan_attention(args, limits, std::span(storage).subspan(skip, size(*bytes)));
  if (!plan.is_ok()) {
    ADD_FAILURE() << describe_attention(plan.status());
    return output;
  }
  const Status status = run_attention(*plan, args, *workers);
  EXPECT_TRUE(status.is_ok()) << describe_attention(status);
  return output;
}

double L2Error::bound(DType out_dtype) const {
  return 2.0 * of_rounding + (out_dtype == DType::f32 ? 2e-6 * norm : 0.0);
}

L2Error l2_error(std::span<const double> exact, const std::byte* out, DType out_dtype) {
  L2Error sums;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    std::uint32_t cell = 0;
    store_f32(&cell, out_dtype, 0, static_cast<float>(exact[i]));
    const double rounded = static_cast<double>(load_f32(&cell, out_dtype, 0)) - exact[i];
    const double ours =
        static_cast<double>(load_f32(out, out_dtype, static_cast<std::int64_t>(i))) - exact[i];
    sums.norm += exact[i] * exact[i];
    sums.of_rounding += rounded * rounded;
    sums.of_output += ours * ours;
  }
  return {std::sqrt(sums.norm), std::sqrt(sums.of_output), std::sqrt(sums.of_rounding)};
}

void expect_close(const AttentionProblem& problem, const AttentionOutput& output,
                  const std::string& what, float lse_error) {
  const DType dtype = problem.shape().out_dtype;
  const L2Error error = l2_error(problem.exact(), output.out.data(), dtype);
  // A NaN compares false, so that it fails too.
  EXPECT_TRUE(error.of_output <= error.bound(dtype))
      << what << ": L2 error " << error.of_output << " > " << error.bound(dtype) << ", of rounding "
      << error.of_rounding << ", norm " << error.norm << "; " << to_string(problem.shape());
  // With a scale that is no power of two the kernels round element * scale to bf16.
  const float near = problem.shape().has_odd_scales ? 5e-3F : lse_error;
  const float of_large = problem.shape().latent_scale > 1.0F ? 1e-6F : 0.0F;
  for (std::int64_t i = 0; i < problem.lse_elements(); ++i) {
    const float want = problem.exact_lse()[size(i)];
    const float have = output.lse[size(i)];
    if (std::isinf(want)) {
      ASSERT_EQ(have, want) << what << " lse " << i << "; " << to_string(problem.shape());
    } else {
      ASSERT_NEAR(have, want, near + of_large * std::abs(want))
          << what << " lse " << i << "; " << to_string(problem.shape());
    }
  }
}

}  // namespace kvarena::test
