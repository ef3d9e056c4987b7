#include "kvarena/capacity/kv_memory.hpp"

#include "base/grouped.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"
#include "capacity/stage_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kMostBlockSize = 65536;

bool is_attention(CacheKind kind) noexcept {
  return kind == CacheKind::full || kind == CacheKind::window || kind == CacheKind::chunked;
}

bool is_alike(const CacheGroup& a, const CacheGroup& b) noexcept {
  return a.kind == b.kind && a.num_kv_heads == b.num_kv_heads && a.head_dim_k == b.head_dim_k &&
         a.head_dim_v == b.head_dim_v && a.limit_tokens == b.limit_tokens &&
         a.latent_dim == b.latent_dim && a.index_dim == b.index_dim &&
         a.state_elements == b.state_elements && a.conv_elements == b.conv_elements;
}

/// The groups as they are kept: windows that are kept whole are full attention, like its other
/// layers.
std::vector<CacheGroup> kept_groups(std::span<const CacheGroup> layers, KeptTokens kept) {
  std::vector<CacheGroup> groups;
  for (CacheGroup group : layers) {
    if (kept == KeptTokens::full && is_attention(group.kind)) {
      group.kind = CacheKind::full;
      group.limit_tokens = 0;
    }
    const auto alike = std::ranges::find_if(
        groups, [&](const CacheGroup& other) { return is_alike(group, other); });
    if (alike == groups.end()) {
      groups.push_back(group);
    } else {
      alike->num_layers += group.num_layers;
    }
  }
  return groups;
}

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

/// Bytes of one token of one layer, and of a block of one layer.
struct LayerBytes {
  std::int64_t token = 0;
  std::int64_t block = 0;
};

std::int64_t padded(std::int64_t bytes) noexcept {
  return times(ceil_div(bytes, KvLayout::kPlaneAlignment), KvLayout::kPlaneAlignment);
}

/// What pools of this format are sized by.
Result<LayerBytes> layer_bytes(const CacheGroup& group, std::int32_t num_kv_heads,
                               const KvMemoryOptions& o) {
  LayerBytes bytes;
  if (const auto dtype = dtype_of(o.format)) {
    GroupSpec spec{.planes = planes_of(group, num_kv_heads, *dtype, o.scale, 0),
                   .block_size_tokens = o.block_size_tokens};
    const Result<KvLayout> layout = KvLayout::create(std::span<const GroupSpec>(&spec, 1));
    if (!layout) return layout.status();
    return LayerBytes{layout->bytes_per_token(), layout->block_bytes()};
  }
  const std::int64_t scale = o.scale == ScaleKind::per_token_head ? bytes_of(DType::f32) : 0;
  for (const PlaneSpec& plane : planes_of(group, num_kv_heads, DType::f16, o.scale, 0)) {
    const std::int64_t head = plus(stored_bytes(o.format, plane.head_dim), scale);
    const std::int64_t token = times(plane.num_heads, head);
    bytes.token = plus(bytes.token, token);
    bytes.block = plus(bytes.block, padded(times(token, o.block_size_tokens)));
  }
  return bytes;
}

GroupMemory state_memory(const CacheGroup& group, std::int32_t num_layers,
                         const KvMemoryOptions& o) {
  const std::int64_t state =
      times(ceil_div(group.state_elements, o.tensor_parallel), bytes_of(DType::f32));
  const std::int64_t conv =
      stored_bytes(o.format, ceil_div(group.conv_elements, o.tensor_parallel));
  return {.kind = group.kind,
          .num_layers = num_layers,
          .unit_bytes = times(num_layers, plus(state, conv)),
          .arithmetic = fmt::format("{} layers x ({} B of state + {} B of convolution)", num_layers,
                                    grouped(state), grouped(conv))};
}

/// Elements of a head in blocks of the format: "128", "128 / 32", "ceil(80 / 32)".
std::string blocks_of(std::int64_t elements, const StorageFormat& format) {
  if (format.elements == 1) return fmt::format("{}", elements);
  const std::string blocks = fmt::format("{} / {}", elements, format.elements);
  return elements % format.elements == 0 ? blocks : fmt::format("ceil({})", blocks);
}

/// What all layers keep of a token.
std::string token_arithmetic(const CacheGroup& group, const GroupMemory& memory,
                             const KvMemoryOptions& o) {
  const bool latent = group.kind == CacheKind::latent;
  std::string elements = blocks_of(latent ? group.latent_dim : group.head_dim_k, o.format);
  if (!latent) elements += " + " + blocks_of(group.head_dim_v, o.format);
  if (group.index_dim > 0)
    elements += " + " + blocks_of(group.index_dim, o.format) + " of the index";
  const bool is_sum = !latent || group.index_dim > 0;
  std::string bytes = fmt::format("{} {} x {} B", is_sum ? fmt::format("({})", elements) : elements,
                                  o.format.elements == 1 ? "elements" : "blocks", o.format.bytes);
  if (o.scale == ScaleKind::per_token_head) {
    bytes = fmt::format("({} + {} x 4 B of scales)", bytes, latent ? 1 : 2);
  }
  return latent ? fmt::format("{} layers x {}", memory.num_layers, bytes)
                : fmt::format("{} layers x {} heads x {}", memory.num_layers, memory.num_kv_heads,
                              bytes);
}

/// Blocks of a format that are longer than this are no row of a head: they must be whole.
constexpr std::int64_t kLongestPaddedBlock = 32;

/// ok, or unsupported (dtype) for heads that the format's blocks do not divide.
Status check_heads(const CacheGroup& group, const StorageFormat& format) noexcept {
  if (format.elements <= kLongestPaddedBlock) return {};
  for (const std::int64_t dim :
       {group.head_dim_k, group.head_dim_v, group.latent_dim, group.index_dim}) {
    if (dim % format.elements != 0) {
      return unsupported(Resource::dtype, static_cast<std::uint64_t>(dim));
    }
  }
  return {};
}

Result<GroupMemory> memory_of(const CacheGroup& group, const KvMemoryOptions& o) {
  const std::int32_t num_layers = group.num_layers;
  if (group.kind == CacheKind::recurrent) return state_memory(group, num_layers, o);
  if (Status status = check_heads(group, o.format); !status) return status;
  const std::int32_t heads =
      group.kind == CacheKind::latent ? 1 : heads_of_rank(group.num_kv_heads, o.tensor_parallel);
  const Result<LayerBytes> layer = layer_bytes(group, heads, o);
  if (!layer) return layer.status();
  const std::int64_t index = stored_bytes(o.format, group.index_dim);
  GroupMemory memory{.kind = group.kind,
                     .num_layers = num_layers,
                     .num_kv_heads = heads,
                     .head_dim_k = group.head_dim_k,
                     .head_dim_v = group.head_dim_v,
                     .bytes_per_token = times(num_layers, layer->token),
                     .index_bytes_per_token = times(num_layers, index),
                     .limit_tokens = group.limit_tokens};
  memory.arithmetic = token_arithmetic(group, memory, o);
  if (group.kind == CacheKind::cross) {
    memory.unit_bytes = times(memory.bytes_per_token, group.limit_tokens);
    memory.arithmetic =
        fmt::format("{} tokens x {}", grouped(group.limit_tokens), memory.arithmetic);
    return memory;
  }
  memory.block_size_tokens = o.block_size_tokens;
  memory.unit_bytes =
      times(num_layers, plus(layer->block, padded(times(index, o.block_size_tokens))));
  memory.arithmetic = fmt::format("{} tokens x {}", o.block_size_tokens, memory.arithmetic);
  const std::int64_t token = plus(memory.bytes_per_token, memory.index_bytes_per_token);
  const std::int64_t unpadded = times(token, o.block_size_tokens);
  if (unpadded != memory.unit_bytes) {
    memory.arithmetic += fmt::format(" + {} B of padding", grouped(memory.unit_bytes - unpadded));
  }
  return memory;
}

/// The groups with the layers that a stage has of them, without those of which it has none.
std::vector<CacheGroup> groups_of_stage(const ModelSpec& model, const KvMemoryOptions& o) {
  std::vector<CacheGroup> groups = model.groups;
  if (o.pipeline_parallel == 1) return groups;
  const auto shares = layers_by_stage(groups, o.pipeline_parallel);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].num_layers = shares[static_cast<std::size_t>(o.stage)][i];
  }
  std::erase_if(groups, [](const CacheGroup& group) { return group.num_layers == 0; });
  return groups;
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

/// The most tokens between the beginning of the first block with a token that is kept and the last
/// token; kMostAmount where all are kept.
std::int64_t spanned_tokens(const GroupMemory& group) noexcept {
  const std::int64_t begun = group.block_size_tokens - 1;
  if (group.kind == CacheKind::window) return plus(group.limit_tokens, begun);
  if (group.kind != CacheKind::chunked) return kMostAmount;
  const bool is_whole = group.limit_tokens % group.block_size_tokens == 0;
  return is_whole ? group.limit_tokens : plus(group.limit_tokens, begun);
}

}  // namespace

Result<std::vector<GroupMemory>> group_memory(const ModelSpec& model,
                                              const KvMemoryOptions& options) try {
  if (Status status = validate(model); !status) return status;
  if (Status status = check(options); !status) return status;
  std::vector<GroupMemory> all;
  for (const CacheGroup& group : kept_groups(groups_of_stage(model, options), options.kept)) {
    Result<GroupMemory> memory = memory_of(group, options);
    if (!memory) return memory.status();
    all.push_back(*std::move(memory));
  }
  return all;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::int64_t units_at(const GroupMemory& group, std::int64_t length_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return 1;
  if (length_tokens == 0) return 0;
  std::int64_t first = 0;
  if (group.kind == CacheKind::window) {
    first = std::max<std::int64_t>(0, length_tokens - group.limit_tokens);
  } else if (group.kind == CacheKind::chunked) {
    first = (length_tokens - 1) / group.limit_tokens * group.limit_tokens;
  }
  return (length_tokens - 1) / block - first / block + 1;
}

std::int64_t peak_units(const GroupMemory& group, std::int64_t length_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return 1;
  return ceil_div(std::min(length_tokens, spanned_tokens(group)), block);
}

// A sequence of t new tokens spans t - 1 more than between steps. With `first` of them it may begin
// one block more, with each further block of them another: most blocks are begun by as many
// sequences as can have `first` each.
std::int64_t pool_units(const GroupMemory& group, std::int64_t sequences,
                        std::int64_t length_tokens, std::int64_t step_tokens) noexcept {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0 || sequences == 0) return sequences;
  const std::int64_t all = times(sequences, ceil_div(length_tokens, block));
  const std::int64_t peaks = times(sequences, peak_units(group, length_tokens));
  const std::int64_t past = (spanned_tokens(group) - 1) % block + 1;  // of the last block
  const std::int64_t first = std::min(block - past + 2, block);
  const std::int64_t beginning = std::min(sequences, step_tokens / first);
  const std::int64_t begun = beginning + (step_tokens - beginning * first) / block;
  return std::min(all, plus(peaks, begun));
}

std::int64_t bytes_at(std::span<const GroupMemory> groups, std::int64_t length_tokens) noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& g : groups) {
    sum = plus(sum, times(units_at(g, length_tokens), g.unit_bytes));
  }
  return sum;
}

std::int64_t peak_bytes(std::span<const GroupMemory> groups, std::int64_t length_tokens) noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& g : groups) {
    sum = plus(sum, times(peak_units(g, length_tokens), g.unit_bytes));
  }
  return sum;
}

std::string formula_of(const GroupMemory& group) {
  if (group.block_size_tokens == 0)
    return fmt::format("{} B + 0 x tokens", grouped(group.unit_bytes));
  const std::string token =
      grouped(plus(group.bytes_per_token, group.index_bytes_per_token)) + " B";
  if (group.kind == CacheKind::window) {
    return fmt::format("0 + {} x min(tokens, {})", token, grouped(group.limit_tokens));
  }
  if (group.kind == CacheKind::chunked) {
    return fmt::format("0 + {} x (tokens in the current aligned chunk of {})", token,
                       grouped(group.limit_tokens));
  }
  return fmt::format("0 + {} x tokens", token);
}

}  // namespace kvarena::capacity
