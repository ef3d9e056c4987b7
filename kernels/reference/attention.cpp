#include "kernels/reference/attention.hpp"

#include "kernels/reference/element.hpp"
#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace kvarena::kernels::reference {
namespace {

/// K or V of one kv head of one paged sequence. It finds element (token, dim) in any tile order.
struct PagedHead {
  const PlaneView* plane;
  const BlockTableView* tables;
  std::int32_t row;
  std::int32_t block_size;
  std::int32_t head;
  float scale;

  double at(std::int64_t token, std::int32_t dim) const {
    const std::int64_t block = tables->block(row, token / block_size).value;
    const auto in_block = static_cast<std::int32_t>(token % block_size);
    const auto bytes = static_cast<std::int32_t>(bytes_of(plane->dtype));
    if (plane->dtype == DType::latent_fp8) {
      return load_latent_fp8(plane->base + element_offset(*plane, bytes, block, head, in_block, 0),
                             dim);
    }
    const std::byte* element =
        plane->base + element_offset(*plane, bytes, block, head, in_block, dim);
    const double value = load_element(element, plane->dtype, 0);
    if (plane->scales_offset == 0) return value * static_cast<double>(scale);
    const std::int64_t at = scale_byte(*plane, block_size, block, head, in_block);
    return value * static_cast<double>(load_f32(plane->base + at, DType::f32, 0));
  }
};

/// K or V of one kv head of one contiguous sequence.
struct ContiguousHead {
  const void* base;
  DType dtype;
  std::int32_t num_heads;
  std::int32_t head_dim;
  std::int32_t head;

  double at(std::int64_t token, std::int32_t dim) const {
    return load_f32(base, dtype, (token * num_heads + head) * head_dim + dim);
  }
};

/// The elements of the tokens of a PagedHead or ContiguousHead that have been asked for: several
/// query heads read each.
template <class Head>
class Elements {
 public:
  Elements(const Head& head, std::int32_t head_dim) : head_(head), head_dim_(head_dim) {}

  /// Returns the elements of a token. They stay where they are.
  const double* token(std::int64_t at) {
    const auto index = static_cast<std::size_t>(at);
    if (index >= tokens_.size()) tokens_.resize(index + 1);
    std::vector<double>& token = tokens_[index];
    if (token.empty()) {
      token.resize(static_cast<std::size_t>(head_dim_));
      for (std::int32_t d = 0; d < head_dim_; ++d)
        token[static_cast<std::size_t>(d)] = head_.at(at, d);
    }
    return token.data();
  }

 private:
  Head head_;
  std::int32_t head_dim_;
  std::vector<std::vector<double>> tokens_;
};

/// One query head of one query token.
struct Query {
  const void* q;
  DType dtype;
  std::int64_t first;  // index of the element of the head's dim 0
  std::int32_t head_dim_k;
  std::int32_t head_dim_v;
  std::int64_t position;  // of its own token; negative: it sees none
  std::int32_t window_tokens;
  double scale;
  double soft_cap;
  const float* sink;            // logit, or null
  bool has_tree = false;        // the query tokens are a draft tree
  std::int64_t first_new = 0;   // tree: position of query token 0 of the row
  std::int64_t num_new = 0;     // tree: query tokens of the row
  std::uint64_t tree_mask = 0;  // tree: bit j: it sees query token j
};

/// Returns whether a query token sees the token at `position`, without a window.
bool sees(const Query& query, std::int64_t position) {
  if (!query.has_tree) return position <= query.position;
  const std::int64_t j = position - query.first_new;
  if (j < 0 || position == query.position) return true;
  return j < query.num_new && (query.tree_mask >> j & 1) != 0;
}

/// Returns the positions of the tokens that a query token sees, in order.
std::vector<std::int64_t> visible(const Query& query) {
  std::vector<std::int64_t> tokens;
  if (query.position < 0) return tokens;
  const std::int64_t end = query.has_tree ? query.first_new + query.num_new : query.position + 1;
  for (std::int64_t t = 0; t < end; ++t) {
    if (sees(query, t)) tokens.push_back(t);
  }
  const auto window = static_cast<std::size_t>(query.window_tokens);
  if (window > 0 && tokens.size() > window) {
    tokens.erase(tokens.begin(), tokens.end() - query.window_tokens);
  }
  return tokens;
}

/// Appends the dot products of a query and some tokens. Several sums are under way at once, because
/// each is a chain of additions; the order of each is that of the dims.
template <class Head>
void append_dots(const std::vector<double>& q, Elements<Head>& key,
                 const std::vector<std::int64_t>& tokens, std::vector<double>& dots) {
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t first = 0; first < tokens.size(); first += kAtOnce) {
    std::array<const double*, kAtOnce> rows{};
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      rows[i] = key.token(tokens[std::min(first + i, tokens.size() - 1)]);
    }
    std::array<double, kAtOnce> sums{};
    for (std::size_t d = 0; d < q.size(); ++d) {
      for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] += q[d] * rows[i][d];
    }
    for (std::size_t i = 0; i < std::min(kAtOnce, tokens.size() - first); ++i) {
      dots.push_back(sums[i]);
    }
  }
}

/// Sets out[dim] = sum_t softmax(logit)_t * value(t, dim) over the visible tokens. Returns the
/// log-sum-exp.
template <class Head>
double attend(const Query& query, Elements<Head>& key, Elements<Head>& value, double* out) {
  std::fill_n(out, query.head_dim_v, 0.0);
  const std::vector<std::int64_t> tokens = visible(query);
  if (tokens.empty()) return -std::numeric_limits<double>::infinity();

  std::vector<double> q;
  for (std::int32_t d = 0; d < query.head_dim_k; ++d) {
    q.push_back(load_f32(query.q, query.dtype, query.first + d));
  }
  std::vector<double> weight;
  weight.reserve(tokens.size());
  append_dots(q, key, tokens, weight);
  double largest = -std::numeric_limits<double>::infinity();
  for (double& logit : weight) {
    logit *= query.scale;
    if (query.soft_cap > 0.0) logit = query.soft_cap * std::tanh(logit / query.soft_cap);
    largest = std::max(largest, logit);
  }
  double total = 0.0;
  for (double& w : weight) {
    w = std::exp(w - largest);
    total += w;
  }
  if (query.sink != nullptr) total += std::exp(static_cast<double>(*query.sink) - largest);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double share = weight[i] / total;
    const double* const its = value.token(tokens[i]);
    for (std::int32_t d = 0; d < query.head_dim_v; ++d) out[d] += share * its[d];
  }
  return largest + std::log(total);
}

/// Calls sink(q_token, q_head, out, lse) for every query head of every query token of the batch.
template <class Sink>
void for_each_output(const AttentionParams& p, Sink&& sink) {
  const std::int32_t group = p.num_q_heads / p.kv.key.num_heads;
  std::vector<double> out(static_cast<std::size_t>(p.kv.value.head_dim));
  for (std::int32_t row = 0; row < p.batch.num_rows; ++row) {
    const std::int64_t first = p.q_offsets != nullptr ? p.q_offsets[row] : row;
    const std::int64_t count = p.q_offsets != nullptr ? p.q_offsets[row + 1] - first : 1;
    const std::int64_t seq_len = p.batch.seq_lens[row];
    for (std::int32_t kv_head = 0; kv_head < p.kv.key.num_heads; ++kv_head) {
      const auto elements = [&](const PlaneView& of, const float* scales) {
        const bool has_scale = of.dtype == DType::fp8_e4m3;
        const PagedHead head{
            &of,     &p.batch.tables,
            row,     p.kv.block_size,
            kv_head, has_scale ? scale_of(scales, p.scales.per_head, kv_head) : 1.0F};
        return Elements<PagedHead>(head, of.head_dim);
      };
      Elements<PagedHead> key = elements(p.kv.key, p.scales.key);
      Elements<PagedHead> value = elements(p.kv.value, p.scales.value);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const Query query{p.q,
                            p.q_dtype,
                            (first + i) * (p.q_stride() / bytes_of(p.q_dtype)) +
                                std::int64_t{head} * p.kv.key.head_dim,
                            p.kv.key.head_dim,
                            p.kv.value.head_dim,
                            seq_len == 0 ? -1 : seq_len - count + i,
                            p.window_tokens,
                            static_cast<double>(p.scale),
                            static_cast<double>(p.soft_cap),
                            p.sinks != nullptr ? p.sinks + head : nullptr,
                            p.tree_mask != nullptr,
                            seq_len - count,
                            count,
                            p.tree_mask != nullptr ? p.tree_mask[first + i] : 0};
          const double lse = attend(query, key, value, out.data());
          sink(first + i, head, out.data(), lse);
        }
      }
    }
  }
}

/// Writes one head of the output.
void store(const double* from, std::int32_t head_dim, void* out, DType dtype, std::int64_t first) {
  for (std::int32_t d = 0; d < head_dim; ++d) {
    store_f32(out, dtype, first + d, static_cast<float>(from[d]));
  }
}

}  // namespace

void attention_contiguous(const ContiguousAttentionParams& p) {
  const std::int32_t group = p.num_q_heads / p.num_kv_heads;
  std::vector<double> out(static_cast<std::size_t>(p.head_dim_v));
  for (std::int32_t head = 0; head < p.num_q_heads; ++head) {
    Elements<ContiguousHead> key({p.key, p.kv_dtype, p.num_kv_heads, p.head_dim_k, head / group},
                                 p.head_dim_k);
    Elements<ContiguousHead> value(
        {p.value, p.kv_dtype, p.num_kv_heads, p.head_dim_v, head / group}, p.head_dim_v);
    for (std::int64_t i = 0; i < p.num_q_tokens; ++i) {
      const std::int64_t index = i * p.num_q_heads + head;
      const Query query{p.q,
                        p.q_dtype,
                        index * p.head_dim_k,
                        p.head_dim_k,
                        p.head_dim_v,
                        p.seq_len == 0 ? -1 : p.seq_len - p.num_q_tokens + i,
                        p.window_tokens,
                        static_cast<double>(p.scale),
                        static_cast<double>(p.soft_cap),
                        p.sinks != nullptr ? p.sinks + head : nullptr};
      const double lse = attend(query, key, value, out.data());
      store(out.data(), p.head_dim_v, p.out, p.out_dtype, index * p.head_dim_v);
      if (p.lse != nullptr) p.lse[index] = static_cast<float>(lse);
    }
  }
}

void attention_paged(const AttentionParams& p) {
  for_each_output(p, [&p](std::int64_t token, std::int32_t head, const double* out, double lse) {
    store(out, p.kv.value.head_dim, p.out, p.out_dtype,
          token * (p.out_stride() / bytes_of(p.out_dtype)) +
              std::int64_t{head} * p.kv.value.head_dim);
    if (p.lse != nullptr) p.lse[token * p.num_q_heads + head] = static_cast<float>(lse);
  });
}

void attention_paged_exact(const AttentionParams& p, double* exact) {
  for_each_output(p, [&](std::int64_t token, std::int32_t head, const double* out, double lse) {
    const std::int64_t index = token * p.num_q_heads + head;
    std::copy_n(out, p.kv.value.head_dim, exact + index * p.kv.value.head_dim);
    if (p.lse != nullptr) p.lse[index] = static_cast<float>(lse);
  });
}

}  // namespace kvarena::kernels::reference
