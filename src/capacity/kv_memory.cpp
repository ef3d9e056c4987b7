#include "kvarena/capacity/kv_memory.hpp"

#include "base/grouped.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "capacity/amount.hpp"
#include "capacity/formula.hpp"
#include "capacity/planning.hpp"
#include "capacity/share.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kMostBlockSize = 65536;

/// K and V, or the latent that is both, of one layer.
std::vector<PlaneSpec> planes_of(const CacheGroup& group, std::int32_t num_kv_heads, DType dtype,
                                 ScaleKind scale, std::int32_t layer) {
  const bool latent = group.kind == CacheKind::latent;
  PlaneSpec key{.layer = layer,
                .kind = PlaneKind::key,
                .num_heads = latent ? 1 : num_kv_heads,
                .head_dim = latent ? group.latent_dim : group.head_dim_k,
                .dtype = dtype,
                .scale = scale};
  PlaneSpec value = key;
  value.kind = PlaneKind::value;
  if (latent) return {key};
  value.head_dim = group.head_dim_v;
  return {key, value};
}

std::int64_t padded(std::int64_t bytes) noexcept {
  return times(ceil_div(bytes, KvLayout::kPlaneAlignment), KvLayout::kPlaneAlignment);
}

/// How a model's layers of a rank are kept.
struct Keeping {
  const KvMemoryOptions& options;
  const StorageFormat& own;  // the model's type of K and V
  bool is_sparse = false;    // some of its layers have a sparse-attention index

  std::int64_t scale_bytes() const noexcept {
    return options.scale == ScaleKind::per_token_head ? bytes_of(DType::f32) : 0;
  }
  bool has_sparse_rows(const CacheGroup& group) const noexcept {
    return is_sparse && kvarena::capacity::has_sparse_rows(group, options.format);
  }
};

/// `elements` of a row in blocks of the format: "128", "128 / 32", "ceil(80 / 32)".
Formula blocks_of(std::int64_t elements, const StorageFormat& format) {
  return rounded_up(elements, format.elements);
}
Formula bytes_of_blocks(const Formula& blocks, const StorageFormat& format) {
  return blocks.of(format.elements == 1 ? "elements" : "blocks") * Formula(format.bytes, "B");
}

/// K and V, or the latent that is both, of a token of one layer.
Formula token_row(const CacheGroup& group, std::int32_t num_kv_heads, const Keeping& keeping) {
  const StorageFormat& format = keeping.options.format;
  const Formula scale(keeping.scale_bytes(), "B of scales");
  // The rows that FlashMLA reads: the latent in 8 bits, an f32 for every 128 elements of it, the
  // positional part in 16 bits.
  if (keeping.has_sparse_rows(group)) {
    return bytes_of_blocks(group.latent_value_dim, format) +
           rounded_up(group.latent_value_dim, kIndexBlock) * Formula(4, "B of scales") +
           Formula(group.latent_dim - group.latent_value_dim, "positional elements") *
               Formula(2, "B");
  }
  if (group.kind == CacheKind::latent) {
    const Formula row = bytes_of_blocks(blocks_of(group.latent_dim, format), format);
    return scale.value() > 0 ? row + scale : row;
  }
  const Formula head = bytes_of_blocks(
      blocks_of(group.head_dim_k, format) + blocks_of(group.head_dim_v, format), format);
  return Formula(num_kv_heads, "heads") * (scale.value() > 0 ? head + Formula(2) * scale : head);
}

/// A block of one layer, padded as pools of this format are.
Result<std::int64_t> layer_block_bytes(const CacheGroup& group, std::int32_t num_kv_heads,
                                       const Keeping& keeping) {
  const KvMemoryOptions& o = keeping.options;
  if (keeping.has_sparse_rows(group)) {
    return padded(times(token_row(group, num_kv_heads, keeping).value(), o.block_size_tokens));
  }
  if (const auto dtype = dtype_of(o.format)) {
    GroupSpec spec{.planes = planes_of(group, num_kv_heads, *dtype, o.scale, 0),
                   .block_size_tokens = o.block_size_tokens};
    const Result<KvLayout> layout = KvLayout::create(std::span<const GroupSpec>(&spec, 1));
    if (!layout) return layout.status();
    return layout->block_bytes();
  }
  std::int64_t bytes = 0;
  for (const PlaneSpec& plane : planes_of(group, num_kv_heads, DType::f16, o.scale, 0)) {
    const std::int64_t head = plus(stored_bytes(o.format, plane.head_dim), keeping.scale_bytes());
    bytes = plus(bytes, padded(times(times(plane.num_heads, head), o.block_size_tokens)));
  }
  return bytes;
}

// A state is kept in f32 and a convolution in the model's own type, whatever K and V are kept in.
GroupMemory state_memory(const CacheGroup& group, const Keeping& keeping) {
  const std::int64_t ranks = keeping.options.tensor_parallel;
  const std::int64_t state = times(ceil_div(group.state_elements, ranks), bytes_of(DType::f32));
  const std::int64_t conv = stored_bytes(keeping.own, ceil_div(group.conv_elements, ranks));
  const Formula unit = Formula(group.num_layers, "layers") *
                       (Formula(state, "B of state") + Formula(conv, "B of convolution"));
  return {.kind = group.kind,
          .num_layers = group.num_layers,
          .unit_bytes = unit.value(),
          .arithmetic = unit.text(),
          .paged = {.kind = PagedKind::state,
                    .num_layers = group.num_layers,
                    .layer_bytes = plus(padded(state), padded(conv))}};
}

/// Blocks of a format that are longer than this are no row of a head: they must be whole.
constexpr std::int64_t kLongestPaddedBlock = 32;

/// ok, or unsupported (dtype) for heads that the format's blocks do not divide.
Status check_heads(const CacheGroup& group, const StorageFormat& format) noexcept {
  if (format.elements <= kLongestPaddedBlock) return {};
  for (const std::int64_t dim : {group.head_dim_k, group.head_dim_v, group.latent_dim}) {
    if (dim % format.elements != 0) {
      return unsupported(Resource::dtype, static_cast<std::uint64_t>(dim));
    }
  }
  return {};
}

PagedKind paged_kind(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::window: return PagedKind::window;
    case CacheKind::chunked: return PagedKind::chunk;
    case CacheKind::recurrent: return PagedKind::state;
    case CacheKind::cross: return PagedKind::cross;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return PagedKind::full;
}

Result<GroupMemory> memory_of(const CacheGroup& group, const Keeping& keeping) {
  if (group.kind == CacheKind::recurrent) return state_memory(group, keeping);
  const KvMemoryOptions& o = keeping.options;
  if (Status status = check_heads(group, o.format); !status) return status;
  const std::int32_t heads =
      group.kind == CacheKind::latent ? 1 : heads_of_rank(group.num_kv_heads, o.tensor_parallel);
  const Result<std::int64_t> block = layer_block_bytes(group, heads, keeping);
  if (!block) return block.status();
  const Formula layers(group.num_layers, "layers");
  const Formula row = token_row(group, heads, keeping);
  const std::int64_t index = index_row_bytes(group.index_dim);
  GroupMemory memory{.kind = group.kind,
                     .num_layers = group.num_layers,
                     .num_kv_heads = heads,
                     .head_dim_k = group.head_dim_k,
                     .head_dim_v = group.head_dim_v,
                     .bytes_per_token = (layers * row).value(),
                     .index_bytes_per_token = times(group.num_layers, index),
                     .limit_tokens = group.limit_tokens};
  const std::int64_t layer_block = plus(*block, padded(times(index, o.block_size_tokens)));
  memory.paged = {.kind = paged_kind(group.kind),
                  .num_layers = group.num_layers,
                  .layer_bytes = layer_block,
                  .block_size_tokens = o.block_size_tokens,
                  .limit_tokens = group.limit_tokens};
  if (group.kind == CacheKind::cross) {
    const Formula unit = Formula(group.limit_tokens, "tokens") * layers * row;
    memory.unit_bytes = unit.value();
    memory.arithmetic = unit.text();
    return memory;
  }
  memory.block_size_tokens = o.block_size_tokens;
  Formula unit = Formula(o.block_size_tokens, "tokens") * layers *
                 (index > 0 ? row + Formula(index, "B of the index") : row);
  const std::int64_t whole = times(group.num_layers, layer_block);
  if (whole != unit.value()) unit = unit + Formula(whole - unit.value(), "B of padding");
  memory.unit_bytes = unit.value();
  memory.arithmetic = unit.text();
  return memory;
}

Status check(const KvMemoryOptions& o) noexcept {
  if (Status s = check_option(Option::block_size_tokens, o.block_size_tokens, 1, kMostBlockSize);
      !s) {
    return s;
  }
  if (Status s = check_enum(Option::scale, o.scale, ScaleKind::per_token_head); !s) return s;
  if (Status s = check_enum(Option::kept, o.kept, KeptTokens::model); !s) return s;
  return check_ranks(o.tensor_parallel, o.pipeline_parallel, o.stage);
}

}  // namespace

Result<std::vector<GroupMemory>> group_memory(const ModelSpec& model,
                                              const KvMemoryOptions& options) try {
  if (Status status = validate(model); !status) return status;
  if (Status status = check(options); !status) return status;
  const StorageFormat* own = find_storage_format(model.kv_format);
  const Keeping keeping{.options = options,
                        .own = own != nullptr ? *own : *find_storage_format("bf16"),
                        .is_sparse = is_sparse(model)};
  std::vector<GroupMemory> all;
  for (const CacheGroup& group : kept_groups(model, options)) {
    Result<GroupMemory> memory = memory_of(group, keeping);
    if (!memory) return memory.status();
    all.push_back(*std::move(memory));
  }
  return all;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
