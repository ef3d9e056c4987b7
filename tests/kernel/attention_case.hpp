#pragma once

/// @file
/// One attention problem for tests: a pool whose every byte is poison but the tokens of the batch,
/// block tables in random order, and the exact answer from the reference. Same case, same bytes.

#include "kvarena/attention/attention.hpp"

#include "kernels/params.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvarena::test {

/// The scales of fp8 K and V.
enum class ScaleKind : std::uint8_t { none, per_tensor, per_head };

/// Entries first .. end - 1 of a row's table are those of another row.
struct SharedBlocks {
  std::int32_t row = 0;
  std::int32_t from = 0;
  std::int32_t first = 0;
  std::int32_t end = 0;
};

/// What a problem looks like. Printed when a test fails.
struct AttentionCase {
  std::uint64_t seed = 1;
  DType key_dtype = DType::bf16;
  DType value_dtype = DType::bf16;
  DType q_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  std::int32_t num_kv_heads = 2;
  std::int32_t group = 4;
  std::int32_t head_dim_k = 64;
  std::int32_t head_dim_v = 64;
  std::int32_t block_size = 16;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> q_counts;  ///< empty: one a row, no q_offsets
  std::int32_t window_tokens = 0;
  float soft_cap = 0.0F;
  bool paged_table = false;
  bool block_major = true;
  TileOrder tile_order = TileOrder::rows;
  bool value_aliases_key = false;      ///< needs head_dim_v <= head_dim_k and equal dtypes
  ScaleKind scales = ScaleKind::none;  ///< fp8 K and V only
  bool has_odd_scales = false;         ///< latent_fp8: most scales are no powers of two
  float latent_scale = 1.0F;           ///< latent_fp8: a factor of all elements
  bool has_zero_rows = false;          ///< latent_fp8: every third token is zeros
  bool has_sinks = false;              ///< attention sinks
  bool has_tree = false;               ///< the query tokens of each row are a random draft tree
  std::vector<SharedBlocks> shared_blocks;  ///< taken over one after the other; contiguous tables
};

/// All of a case in one line.
std::string to_string(const AttentionCase& c);

/// What unowned slots hold.
enum class Poison : std::uint8_t { nan, infinity, zero };

/// A case with its memory.
class AttentionProblem {
 public:
  explicit AttentionProblem(const AttentionCase& c, Poison poison = Poison::nan);

  /// Arguments that point into this object; out and lse are the caller's. Without scales.
  AttentionArgs args(void* out, float* lse) const;
  /// The same for kernels, with scales and sinks; out is null, lse the exact one.
  kernels::AttentionParams params();
  /// Limits that fit exactly.
  AttentionLimits limits(std::int32_t num_threads, CpuPath path) const;
  /// Elements of the output.
  std::int64_t out_elements() const;
  /// Query tokens times query heads.
  std::int64_t lse_elements() const;
  /// The answer in double precision, [total_q, num_q_heads, head_dim_v].
  const std::vector<double>& exact() const { return exact_; }
  /// The log-sum-exp of the reference.
  const std::vector<float>& exact_lse() const { return exact_lse_; }

  /// All bytes of the pool.
  const std::vector<std::byte>& pool() const { return pool_; }
  /// The pool with other poison in unowned slots. K and V are of one dtype.
  std::vector<std::byte> pool_with(Poison poison) const;
  /// Table entries, page numbers (empty: contiguous rows) and where rows begin.
  const std::vector<std::int32_t>& pages() const { return pages_; }
  const std::vector<std::int64_t>& row_offsets() const { return row_offsets_; }
  /// First query token of each row, and one past the last row's.
  const std::vector<std::int64_t>& q_offsets() const { return q_offsets_; }
  /// All bytes of q.
  const std::vector<std::byte>& q() const { return q_; }
  /// Scales of K and V: empty, one, or one for each KV head.
  const std::vector<float>& key_scales() const { return key_scales_; }
  const std::vector<float>& value_scales() const { return value_scales_; }
  /// Logits of the sinks, one for each query head; or empty.
  const std::vector<float>& sinks() const { return sinks_; }
  /// The tokens that each query token of a draft tree sees, one word a query token; or empty.
  const std::vector<std::uint64_t>& tree_masks() const { return tree_masks_; }
  /// Table entries, for tests that spoil them.
  std::vector<BlockId>& entries() { return entries_; }
  const std::vector<BlockId>& entries() const { return entries_; }
  /// The case.
  const AttentionCase& shape() const { return case_; }

 private:
  void lay_out_planes();
  void build_tables();
  void fill_pool(Poison poison);
  void grow_trees();
  std::int64_t num_pool_blocks() const;

  AttentionCase case_;
  std::int64_t total_q_ = 0;
  std::vector<std::byte> pool_;
  KvLayerView kv_;
  std::vector<BlockId> entries_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int64_t> row_offsets_;
  std::vector<std::int32_t> num_blocks_;
  std::vector<std::int64_t> q_offsets_;
  std::vector<std::byte> q_;
  std::vector<float> key_scales_;
  std::vector<float> value_scales_;
  std::vector<float> sinks_;
  std::vector<std::uint64_t> tree_masks_;
  std::vector<double> exact_;
  std::vector<float> exact_lse_;
};

/// What a run gave.
struct AttentionOutput {
  std::vector<std::byte> out;
  std::vector<float> lse;
};

/// Plans with `limits` and runs with `num_workers` threads, all rows or only one; out is filled
/// with 0xFF first. Fails
/// the test when a status is not ok.
AttentionOutput run_case(const AttentionProblem& problem, const AttentionLimits& limits,
                         std::int32_t num_workers, std::int32_t only_row = -1);

/// L2 norms: of the exact answer, of an output's distance from it, and of its own rounding to the
/// output's type.
struct L2Error {
  double norm = 0.0;
  double of_output = 0.0;
  double of_rounding = 0.0;

  /// The largest distance allowed: twice the rounding; an f32 output shows the f32 arithmetic as
  /// well, 2e-6 of the norm.
  double bound(DType out_dtype) const;
};

/// Norms over all elements.
L2Error l2_error(std::span<const double> exact, const std::byte* out, DType out_dtype);

/// Fails the test, printing the case, unless the output is within the bound of L2Error and lse
/// within `lse_error`.
void expect_close(const AttentionProblem& problem, const AttentionOutput& output,
                  const std::string& what, float lse_error = 1e-4F);

}  // namespace kvarena::test
