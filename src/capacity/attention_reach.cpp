#include "capacity/attention_reach.hpp"

#include <algorithm>

namespace kvarena::capacity {
namespace {

// 1 + 2 + ... + n.
double triangle(double n) noexcept { return n * (n + 1.0) / 2.0; }

// The first `new_tokens` of a window see all before them; the others see `window` tokens.
double window_pairs(double context, double new_tokens, double window) noexcept {
  const double growing = std::clamp(window - context, 0.0, new_tokens);
  return growing * context + triangle(growing) + (new_tokens - growing) * window;
}

// Pairs of tokens 0 .. n - 1: whole chunks, and the rest of the last.
double chunked_pairs(std::int64_t n, std::int64_t chunk) noexcept {
  return static_cast<double>(n / chunk) * triangle(static_cast<double>(chunk)) +
         triangle(static_cast<double>(n % chunk));
}

}  // namespace

double attended_pairs(const AttentionLayers& layers, const StepTimeRow& row) noexcept {
  const auto context = static_cast<double>(row.context_tokens);
  const auto fresh = static_cast<double>(row.new_tokens);
  const std::int64_t limit = layers.limit_tokens;
  switch (layers.kind) {
    case CacheKind::window: return window_pairs(context, fresh, static_cast<double>(limit));
    case CacheKind::chunked:
      return chunked_pairs(row.context_tokens + row.new_tokens, limit) -
             chunked_pairs(row.context_tokens, limit);
    case CacheKind::cross: return fresh * static_cast<double>(limit);
    case CacheKind::recurrent: return 0.0;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return fresh * context + triangle(fresh);
}

double attended_tokens(const AttentionLayers& layers, const StepTimeRow& row) noexcept {
  const std::int64_t end = row.context_tokens + row.new_tokens;
  const std::int64_t limit = layers.limit_tokens;
  switch (layers.kind) {
    case CacheKind::window: return static_cast<double>(std::min(end, limit + row.new_tokens - 1));
    case CacheKind::chunked: return static_cast<double>(end - row.context_tokens / limit * limit);
    case CacheKind::cross: return static_cast<double>(limit);
    case CacheKind::recurrent: return 0.0;
    case CacheKind::full:
    case CacheKind::latent: break;
  }
  return static_cast<double>(end);
}

}  // namespace kvarena::capacity
