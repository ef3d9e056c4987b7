// What a CudaStepMemory reads back and compares.

#include "verify/cuda/cuda_step_memory.hpp"

#include "kernels/gather/gather.h"

#include <algorithm>

namespace kvarena::verify {

// ---- a sequence --------------------------------------------------------------------------------

Status CudaStepMemory::open_sequence(std::span<const BlockId> blocks,
                                     std::span<const std::uint64_t> hashes) {
  length_ = std::ssize(hashes);
  constexpr std::int64_t kFirstRow = 0;
  if (Status s = copy(hashes_.data(), hashes.data(), length_ * 8); !s) return s;
  if (Status s = copy(table_.data(), &kFirstRow, sizeof kFirstRow); !s) return s;
  if (Status s = copy(table_.data() + 8, blocks.data(), std::ssize(blocks) * 4); !s) return s;
  return cache_.synchronize();
}

/// Tokens whose K and V of one layer the staging holds.
std::int64_t CudaStepMemory::gather_tokens() const noexcept {
  return std::min(length_, (kv_.bytes() - 2 * kAlignment) / (token_.key + token_.value));
}

/// Queues reading tokens of the opened sequence into the staging.
Status CudaStepMemory::gather(std::int32_t layer, std::int64_t first_token,
                              std::int64_t num_tokens) {
  const Result<KvLayerView> view = cache_.arena().layer_view(layer);
  if (!view) return view.status();
  // A token that nobody reads must not look like one.
  const Status poisoned =
      device_.fill(kv_.data(), kNotANumber, static_cast<std::uint64_t>(token_.kv_layer(num_tokens)),
                   cache_.stream());
  if (!poisoned) return poisoned;
  const BlockTableView tables{.entries = reinterpret_cast<const BlockId*>(table_.data() + 8),
                              .row_offsets = table_.data<std::int64_t>(),
                              .num_rows = 1};
  return on_gpu([&](cudaStream_t stream) {
    return kernels::launch_gather({.kv = *view,
                                   .tables = tables,
                                   .row = 0,
                                   .first_token = static_cast<std::int32_t>(first_token),
                                   .num_tokens = num_tokens,
                                   .key = kv_.data(),
                                   .value = value_staging(num_tokens),
                                   .dtype = shape_.dtype},
                                  stream);
  });
}

Result<LayerContent> CudaStepMemory::read_layer(std::int32_t layer) {
  key_.resize(static_cast<std::size_t>(length_ * token_.key));
  value_.resize(static_cast<std::size_t>(length_ * token_.value));
  const std::int64_t at_a_time = gather_tokens();
  for (std::int64_t first = 0; first < length_; first += at_a_time) {
    const std::int64_t count = std::min(at_a_time, length_ - first);
    if (Status s = gather(layer, first, count); !s) return s;
    std::byte* const key = key_.data() + first * token_.key;
    std::byte* const value = value_.data() + first * token_.value;
    if (Status s = copy(key, kv_.data(), count * token_.key); !s) return s;
    if (Status s = copy(value, value_staging(count), count * token_.value); !s) return s;
  }
  if (Status s = cache_.synchronize(); !s) return s;
  return LayerContent{key_.data(), value_.data()};
}

Result<std::int64_t> CudaStepMemory::count_wrong_words(std::int32_t layer) {
  std::int64_t wrong = 0;
  const std::int64_t at_a_time = gather_tokens();
  for (std::int64_t first = 0; first < length_; first += at_a_time) {
    const std::int64_t count = std::min(at_a_time, length_ - first);
    if (Status s = gather(layer, first, count); !s) return s;
    const auto* hashes = hashes_.data<std::uint64_t>() + first;
    ContentRows keys = rows_of(RowKind::key, hashes, kv_.data(), count);
    ContentRows values = rows_of(RowKind::value, hashes, value_staging(count), count);
    keys.first_layer = values.first_layer = layer;
    for (const ContentRows& rows : {keys, values}) {
      const Status compared = on_gpu([&](cudaStream_t stream) {
        const auto found = verify::count_wrong_words(rows, workspace_.data(), stream);
        if (found) wrong += *found;
        return found.status();
      });
      if (!compared) return compared;
    }
  }
  return wrong;
}

// ---- comparing attention -----------------------------------------------------------------------

/// The longest run of the first tokens that fits. Sequences follow one another in the hashes.
CudaStepMemory::Batch CudaStepMemory::next_batch(
    std::span<const QueryToken> tokens) const noexcept {
  Batch batch;
  batch.first_hash = tokens.front().first_hash;
  std::size_t count = 0;
  for (const QueryToken& token : tokens) {
    const std::int64_t hashes =
        std::max(batch.num_hashes, token.first_hash + token.seq_len - batch.first_hash);
    const std::int64_t longest = std::max<std::int64_t>(batch.longest, token.seq_len);
    const std::int64_t bytes = static_cast<std::int64_t>(count + 1) *
                               partial_bytes(longest, options_.num_q_heads, shape_.head_dim_v);
    const bool fits = hashes * 8 <= hashes_.bytes() && bytes <= partials_.bytes() &&
                      static_cast<std::int64_t>(count) < kMaxExactItems;
    if (count > 0 && !fits) break;
    batch.num_hashes = hashes;
    batch.longest = longest;
    ++count;
  }
  batch.tokens = tokens.first(count);
  return batch;
}

/// Everything but the layers.
ExactAttention CudaStepMemory::comparison_of(const Batch& batch) const noexcept {
  return {.hashes = hashes_.data<std::uint64_t>(),
          .tokens = query_tokens_.data<QueryToken>(),
          .num_tokens = static_cast<std::int32_t>(batch.tokens.size()),
          .longest_tokens = static_cast<std::int32_t>(batch.longest),
          .num_q_heads = options_.num_q_heads,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim_k = shape_.head_dim_k,
          .head_dim_v = shape_.head_dim_v,
          .dtype = shape_.dtype,
          .out_dtype = shape_.dtype,
          .layer_stride = aligned(num_tokens() * token_.out),
          .partials = partials_.data<double>(),
          .sums = sums_.data<AttentionSums>()};
}

/// `sums` begins with the batch's first token in the first layer.
Status CudaStepMemory::compare_batch(std::span<const std::uint64_t> hashes, const Batch& batch,
                                     std::span<AttentionSums> sums, std::int64_t sums_stride) {
  std::vector<QueryToken> tokens(batch.tokens.begin(), batch.tokens.end());
  for (QueryToken& token : tokens) token.first_hash -= batch.first_hash;
  const std::int64_t count = std::ssize(tokens);
  if (Status s = copy(hashes_.data(), hashes.data() + batch.first_hash, batch.num_hashes * 8); !s) {
    return s;
  }
  if (Status s = copy(query_tokens_.data(), tokens.data(), count * std::int64_t{sizeof tokens[0]});
      !s) {
    return s;
  }
  ExactAttention params = comparison_of(batch);
  const std::int64_t token_bytes =
      partial_bytes(batch.longest, options_.num_q_heads, shape_.head_dim_v);
  const auto at_a_time = static_cast<std::int32_t>(
      std::min({std::int64_t{attended_layers_}, partials_.bytes() / (count * token_bytes),
                kMaxExactItems / count}));
  std::vector<AttentionSums> found(static_cast<std::size_t>(at_a_time * count));
  for (std::int32_t first = 0; first < attended_layers_; first += at_a_time) {
    const std::int32_t layers = std::min(at_a_time, attended_layers_ - first);
    params.first_layer = attended_first_ + first;
    params.num_layers = layers;
    params.out = out_ + first * params.layer_stride;
    const Status launched =
        on_gpu([&](cudaStream_t stream) { return launch_exact_attention(params, stream); });
    if (!launched) return launched;
    if (Status s =
            copy(found.data(), sums_.data(), layers * count * std::int64_t{sizeof(AttentionSums)});
        !s) {
      return s;
    }
    if (Status s = cache_.synchronize(); !s) return s;
    for (std::int32_t i = 0; i < layers; ++i) {
      std::copy_n(found.begin() + i * count, count, sums.begin() + (first + i) * sums_stride);
    }
  }
  return {};
}

Status CudaStepMemory::compare_attention(std::span<const std::uint64_t> hashes,
                                         std::span<const QueryToken> tokens,
                                         std::vector<AttentionSums>& sums) {
  if (partials_.bytes() == 0) return unsupported(Resource::workspace);
  sums.assign(tokens.size() * static_cast<std::size_t>(attended_layers_), {});
  for (std::size_t first = 0; first < tokens.size();) {
    const Batch batch = next_batch(tokens.subspan(first));
    const Status compared =
        compare_batch(hashes, batch, std::span(sums).subspan(first), std::ssize(tokens));
    if (!compared) return compared;
    first += batch.tokens.size();
  }
  return {};
}

}  // namespace kvarena::verify
