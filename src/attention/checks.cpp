#include "attention/checks.hpp"

#include "base/half.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "kernels/common/launch_checks.h"
#include "kvarena/attention/attention.hpp"

#include <spdlog/fmt/fmt.h>

#include <limits>
#include <new>
#include <string>

namespace kvarena {
namespace attention {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxBlockSize = 65536;

/// Checks K or V of a layer for the CPU kernels.
Status check_plane(const PlaneView& plane, bool is_key) noexcept {
  const auto pick = [is_key](Check key, Check value) { return is_key ? key : value; };
  if (Status s = cpu_dtype(pick(Check::key_dtype, Check::value_dtype), plane.dtype); !s) return s;
  const Check order = pick(Check::key_order, Check::value_order);
  if (Status s = check_enum(Resource::tile_order, plane.tile_order, TileOrder::chunked); !s) {
    return with(order, s);
  }
  if (plane.tile_order != TileOrder::rows) {
    return with(order,
                unsupported(Resource::tile_order, static_cast<std::uint64_t>(plane.tile_order)));
  }
  const Check heads = pick(Check::key_heads, Check::value_heads);
  if (Status s = in_range(heads, Resource::num_kv_heads, plane.num_heads, 1, kMaxHeads); !s)
    return s;
  const Check dim = pick(Check::head_dim_k, Check::head_dim_v);
  if (Status s = in_range(dim, Resource::head_dim, plane.head_dim, 1, kMaxHeadDim); !s) return s;
  const Check misaligned = pick(Check::key_alignment, Check::value_alignment);
  const Check null = pick(Check::key_pointer, Check::value_pointer);
  if (Status s = element_pointer(null, misaligned, plane.base, plane.dtype); !s) return s;
  for (const std::int64_t stride : {plane.block_stride, plane.head_stride, plane.token_stride}) {
    if (Status s = aligned(misaligned, stride, bytes_of(plane.dtype)); !s) return s;
  }
  return {};
}

/// Names the argument and says what it must be. The Status has the value.
std::string_view sentence_of(Check check) noexcept {
  switch (check) {
    case Check::none: return "";
    case Check::key_pointer:
      return "kv.key.base is null; give the address of block 0 of the K plane";
    case Check::value_pointer:
      return "V is null: kv.value.base, or `value` while V does not alias K";
    case Check::tables_pointer:
      return "batch.tables.entries is null; rows with blocks need a table";
    case Check::row_offsets_pointer: return "batch.tables.row_offsets is null; give [num_rows]";
    case Check::seq_lens_pointer: return "batch.seq_lens is null; give [num_rows]";
    case Check::num_blocks_pointer: return "batch.num_blocks is null; give [num_rows]";
    case Check::q_pointer: return "q is null; give [total_q, num_q_heads, head_dim_k]";
    case Check::out_pointer: return "out is null; give [total_q, num_q_heads, head_dim_v]";
    case Check::slots_pointer: return "slots is null; give [num_tokens]";
    case Check::region_pointer: return "a region's base is null; give the address of block 0";
    case Check::key_dtype: return "dtype of K";
    case Check::value_dtype: return "dtype of V";
    case Check::q_dtype: return "dtype of q";
    case Check::out_dtype: return "dtype of out";
    case Check::input_dtype: return "dtype of the new K and V";
    case Check::key_order: return "tile order of K: the CPU reads `rows` only";
    case Check::value_order: return "tile order of V: the CPU reads `rows` only";
    case Check::key_heads: return "heads of K";
    case Check::value_heads: return "heads of V, which must equal those of K";
    case Check::head_dim_k: return "head_dim of K";
    case Check::head_dim_v: return "head_dim of V";
    case Check::block_size: return "block_size (tokens)";
    case Check::num_blocks: return "num_blocks of the pool";
    case Check::q_heads: return "num_q_heads, which must be a multiple of the KV heads";
    case Check::key_alignment:
      return "K plane: address and strides must be multiples of the element";
    case Check::value_alignment:
      return "V plane: address and strides must be multiples of the element";
    case Check::q_alignment: return "q: its address must be a multiple of the element";
    case Check::out_alignment: return "out: its address must be a multiple of the element";
    case Check::input_alignment: return "new K and V: addresses must be multiples of the element";
    case Check::q_stride:
      return "q_token_stride_bytes: 0, or a multiple of the element and at least a dense token";
    case Check::out_stride:
      return "out_token_stride_bytes: 0, or a multiple of the element and at least a dense token";
    case Check::input_stride:
      return "token stride of the new K or V: 0, or a multiple of the element and at least a dense "
             "token";
    case Check::workspace_alignment: return "workspace: its address must be a multiple of 64";
    case Check::scale: return "scale, in millionths, which must be finite and positive";
    case Check::window: return "window_tokens (0: none)";
    case Check::soft_cap: return "soft_cap, in millionths, which must be finite (0: none)";
    case Check::num_rows: return "batch.num_rows; batch.tables must have as many";
    case Check::page_shift: return "batch.tables.page_shift";
    case Check::seq_len: return "a row's seq_len, which its blocks must hold";
    case Check::row_blocks: return "a row's number of blocks";
    case Check::q_count:
      return "a row's query tokens (q_offsets must not decrease), at most its seq_len";
    case Check::table_entry:
      return "a table entry that the batch reads: it must be a block of the pool";
    case Check::num_tokens: return "num_tokens";
    case Check::slot: return "a slot (-1: skip), which must lie in the pool";
    case Check::copy_block: return "a block of a copy: in the pool, source and target distinct";
    case Check::region_bytes: return "bytes of a region, at most its block_stride";
    case Check::limit_rows: return "rows, against limits.max_rows";
    case Check::limit_q_tokens: return "query tokens, against limits.max_q_tokens";
    case Check::limit_threads: return "limits.num_threads";
    case Check::limit_path: return "limits.path: this CPU lacks AVX-512 F, BW, DQ, VL; use `best`";
    case Check::limit_shape: return "heads or head_dim differ from the limits of the plan";
    case Check::plan_rows: return "batch.num_rows, which must be the plan's";
    case Check::plan_q_tokens: return "query tokens, which must be the plan's";
    case Check::plan_window: return "window_tokens, which must be the plan's";
    case Check::plan_kv_tokens:
      return "tokens of all sequences, which must be the plan's: plan again when lengths change";
    case Check::workspace_bytes:
      return "workspace is too small; ask attention_workspace_bytes(limits)";
    case Check::tree_mask:
      return "tree_mask must be null here; it needs draft_trees in the limits or the shape. On a "
             "GPU it also needs no soft cap, few query tokens in each row (row_classes), and q and "
             "out of the type of K and V, or over fp8 both bf16 or both f16";
    case Check::chunk:
      return "chunk_tokens (0: none): not on a GPU, and without a window and a tree_mask";
    case Check::sees_all:
      return "sees_all: not on a GPU, and without a window, a chunk and a tree_mask";
    case Check::plan_visible: return "chunk_tokens or sees_all, which must be the plan's";
    case Check::q_offsets_alignment: return "q_offsets: its address must be a multiple of 8";
    case Check::seq_lens_alignment: return "batch.seq_lens: its address must be a multiple of 4";
    case Check::tables_alignment:
      return "batch.tables: the address of entries must be a multiple of 4, of row_offsets of 8";
    case Check::row_slots_alignment: return "row_slots: its address must be a multiple of 4";
    case Check::table_stride: return "table_stride, entries from one table to the next";
  }
  return "";
}

}  // namespace

Status cpu_dtype(Check check, DType dtype) noexcept {
  if (Status s = check_enum(Resource::dtype, dtype, DType::latent_fp8); !s) return with(check, s);
  if (is_cpu_float(dtype)) return {};
  return with(check, unsupported(Resource::dtype, static_cast<std::uint64_t>(dtype)));
}

Status aligned(Check check, std::int64_t value, std::int64_t alignment) noexcept {
  if (value % alignment == 0) return {};
  return with(check, invalid_argument(Resource::alignment, value % alignment, 0, 0));
}

Status token_stride(Check check, std::int64_t stride, std::int64_t num_heads, std::int64_t head_dim,
                    DType dtype) noexcept {
  const Status status = kernels::check_token_stride(stride, num_heads, head_dim, dtype);
  return status ? status : with(check, status);
}

Status element_pointer(Check null, Check misaligned, const void* pointer, DType dtype) noexcept {
  if (Status s = not_null(null, pointer); !s) return s;
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
  return aligned(misaligned, address, bytes_of(dtype));
}

Status check_layer(const KvLayerView& kv) noexcept {
  if (Status s = in_range(Check::block_size, Resource::block_size, kv.block_size, 1, kMaxBlockSize);
      !s) {
    return s;
  }
  if (Status s =
          in_range(Check::num_blocks, Resource::num_blocks, kv.num_blocks, 1, KvLayout::kMaxBlocks);
      !s) {
    return s;
  }
  if (Status s = check_plane(kv.key, true); !s) return s;
  if (Status s = check_plane(kv.value, false); !s) return s;
  return in_range(Check::value_heads, Resource::num_kv_heads, kv.value.num_heads, kv.key.num_heads,
                  kv.key.num_heads);
}

}  // namespace attention

std::string describe_attention(const Status& status) noexcept try {
  const auto check = static_cast<attention::Check>(status.native);
  const std::string_view sentence = attention::sentence_of(check);
  const auto value = static_cast<std::int64_t>(status.subject);
  const auto smallest = static_cast<std::int64_t>(status.required);
  const auto largest = static_cast<std::int64_t>(status.available);
  if (kernels::has_supported_list(status)) return kernels::describe_launch(status);
  if (status.is_ok() || sentence.empty()) return describe(status);
  if (status.code == StatusCode::unsupported && status.resource == Resource::dtype) {
    return fmt::format("unsupported {}: got {}; supported: f32, f16, bf16", sentence,
                       name_of(static_cast<DType>(status.subject)));
  }
  if (status.code == StatusCode::unsupported) return fmt::format("unsupported {}", sentence);
  if (status.code == StatusCode::limit_exceeded) {
    return fmt::format("{}: {} bytes needed, {} given", sentence, smallest, largest);
  }
  if (status.resource == Resource::pointer) return fmt::format("invalid argument: {}", sentence);
  if (status.resource == Resource::alignment) {
    return fmt::format("misaligned {}; got {} bytes past one", sentence, value);
  }
  const std::string given = value == std::numeric_limits<std::int64_t>::min()
                                ? "a number that is not finite or too large"
                                : std::to_string(value);
  if (largest == std::numeric_limits<std::int64_t>::max()) {
    return fmt::format("invalid {}: got {}, expected at least {}", sentence, given, smallest);
  }
  return fmt::format("invalid {}: got {}, expected {} to {}", sentence, given, smallest, largest);
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

}  // namespace kvarena
