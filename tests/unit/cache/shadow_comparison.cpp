// What a ShadowEngine compares: outputs with contiguous attention, the pool's bytes with the
// shadow.

#include "kernels/reference/attention.hpp"
#include "unit/cache/shadow_engine.hpp"

#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvarena::test {
namespace {

/// What rounding the output alone may cost, and the order of a sum.
double tolerance(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return 2e-5;
    case DType::f16: return 1e-3;
    default: return 8e-3;
  }
}

}  // namespace

PlaneView ShadowEngine::view_of(const PlaneSpec& plane) const {
  const KvLayerView layer = *cache_->arena().layer_view(plane.layer);
  return plane.kind == PlaneKind::key ? layer.key : layer.value;
}

/// Bytes from a block's plane to element `e` of [num_heads, head_dim] of one of its tokens.
std::int64_t ShadowEngine::offset_of(const PlaneView& view, const PlaneSpec& plane,
                                     std::int64_t token, std::int64_t e) const {
  return element_offset(view, static_cast<std::int32_t>(bytes_of(plane.dtype)), 0,
                        static_cast<std::int32_t>(e / plane.head_dim),
                        static_cast<std::int32_t>(token),
                        static_cast<std::int32_t>(e % plane.head_dim));
}

/// Bytes of the device, for the host to look at until the next read. Waits for the cache's stream.
std::span<const std::byte> ShadowEngine::read(const std::byte* device_bytes, std::size_t count) {
  if (device_.kind() == DeviceKind::host) return {device_bytes, count};
  read_.resize(count);
  const Status copied = device_.copy(read_.data(), device_bytes, count, cache_->stream());
  const Status waited = device_.synchronize(cache_->stream());
  note(copied.is_ok() && waited.is_ok(), 0, 0, [] { return "reading the device"; });
  return read_;
}

void ShadowEngine::compare(Record& record) {
  record.is_pending = false;
  std::vector<std::pair<const Row*, std::int64_t>> tokens;
  for (const Row& row : record.rows) {
    for (std::int64_t i = 0; i < row.num_tokens; ++i) tokens.emplace_back(&row, i);
  }
  const bool sampled = options_.checked_outputs > 0;
  const auto num_layers = std::ssize(record.layers);
  const std::int64_t all = std::ssize(tokens) * num_layers;
  const std::int64_t count = sampled ? std::min<std::int64_t>(all, options_.checked_outputs) : all;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto pick = static_cast<std::size_t>(sampled ? random_() % static_cast<std::uint64_t>(all)
                                                       : static_cast<std::uint64_t>(n));
    const auto index = pick % static_cast<std::size_t>(num_layers);
    const auto& [row, token] = tokens[pick / static_cast<std::size_t>(num_layers)];
    const Layer& layer = record.layers[index];
    compare_token(*row, token, {&layer, static_cast<std::int32_t>(index), false});
    if (options_.cache.window_tokens == 0) continue;
    compare_token(*row, token, {&layer, static_cast<std::int32_t>(index), true});
  }
}

void ShadowEngine::compare_token(const Row& row, std::int64_t token, const Output& output) {
  const std::int64_t visible = std::ssize(row.seeds) - row.num_tokens + token + 1;
  const DType kv_dtype = options_.cache.layout.dtype;
  const auto resize = [&](std::vector<std::byte>& to, std::int64_t elements) {
    to.resize(static_cast<std::size_t>(elements * bytes_of(kv_dtype)));
  };
  resize(keys_, visible * kv_heads_ * dim_k_);
  resize(values_, visible * kv_heads_ * dim_v_);
  std::vector<std::byte> given(bytes(kv_heads_ * std::max(dim_k_, dim_v_)));
  const auto store = [&](std::uint32_t seed, Content what, std::int64_t first, std::int64_t count,
                         std::vector<std::byte>& to) {
    inputs_.write(seed, output.layer_index, what, count, given.data());
    for (std::int64_t e = 0; e < count; ++e) {
      store_f32(to.data(), kv_dtype, first + e, load_f32(given.data(), options_.io_dtype, e));
    }
  };
  for (std::int64_t t = 0; t < visible; ++t) {
    const std::uint32_t seed = row.seeds[static_cast<std::size_t>(t)];
    store(seed, Content::key, t * kv_heads_ * dim_k_, kv_heads_ * dim_k_, keys_);
    store(seed, Content::value, t * kv_heads_ * dim_v_, kv_heads_ * dim_v_, values_);
  }
  const std::int64_t index = row.first_token + token;
  expected_.resize(static_cast<std::size_t>(q_heads_ * dim_v_));
  std::vector<float> lse(static_cast<std::size_t>(q_heads_));
  const float scale =
      options_.scale == 0.0F ? 1.0F / std::sqrt(static_cast<float>(dim_k_)) : options_.scale;
  kernels::reference::attention_contiguous(
      {.key = keys_.data(),
       .value = values_.data(),
       .q = output.layer->query.data() + static_cast<std::size_t>(index) * strides().query,
       .out = expected_.data(),
       .lse = lse.data(),
       .seq_len = visible,
       .num_q_tokens = 1,
       .num_q_heads = static_cast<std::int32_t>(q_heads_),
       .num_kv_heads = static_cast<std::int32_t>(kv_heads_),
       .head_dim_k = static_cast<std::int32_t>(dim_k_),
       .head_dim_v = static_cast<std::int32_t>(dim_v_),
       .window_tokens = output.windowed ? options_.cache.window_tokens : 0,
       .scale = scale,
       .soft_cap = options_.soft_cap,
       .kv_dtype = kv_dtype,
       .q_dtype = options_.io_dtype,
       .out_dtype = DType::f32,
       .sinks = sinks_.empty() ? nullptr : sinks_.data()});
  const auto where = [&] {
    return "sequence " + std::to_string(row.sequence.value) + ", token " +
           std::to_string(visible - 1) + ", layer " + std::to_string(output.layer_index) +
           (output.windowed ? ", windowed" : "");
  };
  const auto& out = output.windowed ? output.layer->windowed_out : output.layer->out;
  const auto& got_lse = output.windowed ? output.layer->windowed_lse : output.layer->lse;
  const std::byte* const at = out.data() + static_cast<std::size_t>(index) * strides().out;
  check_padding(out, static_cast<std::size_t>(index));
  for (std::int64_t e = 0; e < q_heads_ * dim_v_; ++e) {
    const auto got = static_cast<double>(load_f32(at, options_.io_dtype, e));
    const auto expected = static_cast<double>(expected_[static_cast<std::size_t>(e)]);
    note(std::abs(got - expected) <= tolerance(options_.io_dtype), got, expected, where);
  }
  for (std::int64_t h = 0; h < q_heads_; ++h) {
    const auto got = static_cast<double>(got_lse[static_cast<std::size_t>(index * q_heads_ + h)]);
    const auto expected = static_cast<double>(lse[static_cast<std::size_t>(h)]);
    note(std::abs(got - expected) <= 1e-4, got, expected, [&] { return where() + ", lse"; });
  }
}

/// The bytes behind an output token are as they were.
void ShadowEngine::check_padding(const std::vector<std::byte>& out, std::size_t index) {
  const std::size_t used = bytes(q_heads_ * dim_v_);
  for (std::size_t byte = used; byte < strides().out; ++byte) {
    const auto got = static_cast<int>(out[index * strides().out + byte]);
    note(got == 0xFF, got, 0xFF, [] { return "padding of an output"; });
  }
}

void ShadowEngine::compare_bytes(SequenceId sequence) {
  const Seeds& seeds = sequences_.at(sequence);
  const std::int64_t block_size = options_.cache.layout.block_size_tokens;
  const DType kv_dtype = options_.cache.layout.dtype;
  const KvLayout& layout = cache_->arena().layout();
  std::vector<std::byte> given(bytes(kv_heads_ * std::max(dim_k_, dim_v_)));
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(layout.planes().size()); ++p) {
    const PlaneSpec& plane = layout.planes()[static_cast<std::size_t>(p)];
    const Content what = plane.kind == PlaneKind::key ? Content::key : Content::value;
    const PlaneView view = view_of(plane);
    std::span<const std::byte> stored;  // of the token's block
    for (std::int64_t t = 0; t < std::ssize(seeds); ++t) {
      inputs_.write(seeds[static_cast<std::size_t>(t)], plane.layer, what,
                    kv_heads_ * plane.head_dim, given.data());
      if (t % block_size == 0) {
        const Result<BlockId> block = cache_->tables().lookup(sequence, t / block_size);
        stored = read(cache_->arena().address(*block, plane.layer, plane.kind),
                      static_cast<std::size_t>(layout.plane_bytes(p)));
      }
      for (std::int64_t e = 0; e < kv_heads_ * plane.head_dim; ++e) {
        float rounded = 0.0F;
        store_f32(&rounded, kv_dtype, 0, load_f32(given.data(), options_.io_dtype, e));
        const float expected = load_f32(&rounded, kv_dtype, 0);
        const std::byte* element = stored.data() + offset_of(view, plane, t % block_size, e);
        const float got = load_f32(element, kv_dtype, 0);
        note(got == expected, static_cast<double>(got), static_cast<double>(expected), [&] {
          return "K or V of sequence " + std::to_string(sequence.value) + ", token " +
                 std::to_string(t);
        });
      }
    }
  }
}

}  // namespace kvarena::test
