#include "verify/group_verifier.hpp"

#include "verify/attention_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvarena::verify {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;
constexpr std::int64_t kAlignment = 256;

constexpr std::int64_t aligned(std::int64_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// ---- create ------------------------------------------------------------------------------------

GroupVerifier::GroupVerifier(const VerifierOptions& options, KvCache& cache)
    : options_(options),
      cache_(cache),
      bytes_(cache),
      states_(options.mode, cache),
      out_dtype_(DType::f32) {
  options_.sample_every = std::max<std::int64_t>(1, options.sample_every);
}

Result<std::unique_ptr<GroupVerifier>> GroupVerifier::create(const VerifierOptions& options,
                                                             std::span<const LayerGroup> groups,
                                                             KvCache& cache) {
  std::unique_ptr<GroupVerifier> made(new GroupVerifier(options, cache));
  for (const LayerGroup& group : groups) {
    if (group.kind == PagedKind::state) continue;
    if (Status s = made->add_group(group); !s) return s;
  }
  std::ranges::sort(made->layers_, {}, &Layer::layer);
  for (std::size_t i = 0; i < made->layers_.size(); ++i) {
    const Layer& layer = made->layers_[i];
    if (layer.owns()) made->groups_[layer.group].layers.push_back(i);
  }
  if (Status s = made->states_.find_layers(); !s) return s;
  if (Status s = made->allocate(); !s) return s;
  return made;
}

Status GroupVerifier::add_group(const LayerGroup& group) {
  const GroupLayout& layout = *cache_.arena().groups();
  const UniformLayoutOptions shape{
      .num_layers = 1,
      .num_kv_heads = group.num_kv_heads,
      .head_dim_k = group.head_dim_k,
      .head_dim_v = group.head_dim_v == 0 ? group.head_dim_k : group.head_dim_v,
      .dtype = group.dtype,
      .block_size_tokens = group.block_size_tokens};
  const std::int64_t element = std::int64_t{group.num_kv_heads} * bytes_of(group.dtype);
  // A GPU writes outputs as it does for a model.
  if (cache_.device().kind() == DeviceKind::cuda) out_dtype_ = group.dtype;
  groups_.push_back({.retention = {.kind = group.kind,
                                   .num_layers = 1,
                                   .layer_bytes = 1,
                                   .block_size_tokens = group.block_size_tokens,
                                   .limit_tokens = group.limit_tokens,
                                   .rollback_tokens = group.rollback_tokens},
                     .shape = shape,
                     .value_in_key = group.value_in_key,
                     .derived = DerivedContent(shape, options_.num_q_heads, group.value_in_key),
                     .layers = {},
                     .index_dim = group.index_dim,
                     .key_bytes = element * shape.head_dim_k,
                     .value_bytes = group.value_in_key ? 0 : element * shape.head_dim_v,
                     .index_bytes = std::int64_t{group.index_dim} * bytes_of(DType::bf16)});
  for (const GroupLayer& its : group.layers) {
    const auto view = cache_.layer_view(its.layer);
    if (!view) return view.status();
    layers_.push_back({.layer = its.layer,
                       .owner = layout.owner_of(its.layer),
                       .part = layout.part_of(its.layer),
                       .group = groups_.size() - 1,
                       .view = *view,
                       .index = {}});
    if (!layout.has_index(its.layer)) continue;
    const auto index = cache_.index_view(its.layer);
    if (!index) return index.status();
    layers_.back().index = index->index;
  }
  return {};
}

Status GroupVerifier::allocate() {
  const std::int64_t tokens = options_.max_step_tokens;
  std::int64_t content = kStagingBytes;
  std::int64_t query = 0;
  std::int64_t out = 0;
  for (const Group& group : groups_) {
    content =
        std::max(content, aligned(tokens * group.key_bytes) + aligned(tokens * group.value_bytes) +
                              tokens * group.index_bytes);
    const std::int64_t rows = tokens * options_.num_q_heads;
    query = std::max(query, rows * group.shape.head_dim_k * bytes_of(group.shape.dtype));
    out = std::max(out, rows * group.shape.head_dim_v * bytes_of(out_dtype_));
  }
  Device& device = cache_.device();
  const std::pair<StagedBytes*, std::int64_t> all[] = {
      {&content_, content}, {&queries_, query}, {&outputs_, out}};
  for (const auto& [staged, bytes] : all) {
    auto made = StagedBytes::create(device, bytes, "replay: content of a step");
    if (!made) return made.status();
    *staged = std::move(*made);
  }
  report_.tolerance = error_limit(out_dtype_);
  return {};
}

// ---- writing -----------------------------------------------------------------------------------

void GroupVerifier::take_hashes(std::span<const StepRow> rows) {
  before_.clear();
  step_hashes_.clear();
  for (const StepRow& row : rows) {
    before_.push_back(row.sequence->stream.hash());
    for (std::int32_t i = 0; i < row.tokens; ++i) {
      step_hashes_.push_back(row.sequence->stream.next());
    }
  }
}

// K and V of one layer at an offset of the staging.
Status GroupVerifier::write_layer(const Layer& layer, std::int64_t offset) {
  Group& group = groups_[layer.group];
  const std::int64_t key_bytes = num_tokens() * group.key_bytes;
  const std::int64_t value_bytes = num_tokens() * group.value_bytes;
  const std::int64_t value_offset = offset + aligned(key_bytes);
  group.derived.derive_layer(step_hashes_, layer.layer);
  std::memcpy(content_.host() + offset, group.derived.keys(), static_cast<std::size_t>(key_bytes));
  if (Status s = bytes_.upload(content_, offset, key_bytes); !s) return s;
  if (value_bytes > 0) {
    std::memcpy(content_.host() + value_offset, group.derived.values(),
                static_cast<std::size_t>(value_bytes));
    if (Status s = bytes_.upload(content_, value_offset, value_bytes); !s) return s;
  }
  report_.kv_bytes_written += key_bytes + value_bytes;
  return cache_.write_kv({.layer = layer.layer,
                          .key = content_.device() + offset,
                          .value = value_bytes > 0 ? content_.device() + value_offset : nullptr,
                          .dtype = group.shape.dtype});
}

// The staging is filled from its begin, and again when the work so far is done.
MaybeFailure GroupVerifier::write_layers() {
  if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
  std::int64_t offset = 0;
  for (const Layer& layer : layers_) {
    if (!layer.owns()) continue;
    const Group& group = groups_[layer.group];
    const std::int64_t index_offset =
        aligned(num_tokens() * group.key_bytes) + aligned(num_tokens() * group.value_bytes);
    const std::int64_t bytes = index_offset + aligned(num_tokens() * group.index_bytes);
    if (offset > 0 && offset + bytes > content_.bytes()) {
      if (Status s = bytes_.synchronize(); !s) return unexpected("synchronize", s);
      offset = 0;
    }
    if (Status s = write_layer(layer, offset); !s) return unexpected("write_kv", s);
    if (group.index_dim > 0) {
      if (Status s = write_index(layer, offset + index_offset); !s) {
        return unexpected("write_index", s);
      }
    }
    offset += bytes;
  }
  return std::nullopt;
}

MaybeFailure GroupVerifier::verify_step(std::span<const StepRow> rows,
                                        std::span<const StateSlots> states) {
  take_hashes(rows);
  if (states_.has_layers()) {
    if (auto failure = states_.verify_step(rows, states, before_, step_hashes_, report_)) {
      return failure;
    }
  }
  if (auto failure = write_layers()) return failure;
  if (auto failure = check_leaving(rows)) return failure;
  return is_turn(rows) ? attend(rows) : std::nullopt;
}

// ---- bytes -------------------------------------------------------------------------------------

// What no later token reads is there until the step ends.
MaybeFailure GroupVerifier::check_leaving(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    const std::int64_t length = row.sequence->length;
    hashes_.clear();
    for (Group& group : groups_) {
      const std::int64_t block = group.shape.block_size_tokens;
      const std::int64_t first = retained(group.retention, length - row.tokens).first_block;
      const std::int64_t end = retained(group.retention, length).first_block;
      if (first == end) continue;
      if (hashes_.empty()) append_hashes(*row.sequence, hashes_);
      if (auto failure = check_tokens(*row.sequence, group, first * block, end * block)) {
        return failure;
      }
    }
  }
  return std::nullopt;
}

MaybeFailure GroupVerifier::check_sequence(const WrittenSequence& sequence) {
  hashes_.clear();
  append_hashes(sequence, hashes_);
  ++report_.sequences_compared;
  for (Group& group : groups_) {
    const Retained kept = retained(group.retention, sequence.length);
    const std::int64_t first = kept.first_block * group.shape.block_size_tokens;
    if (auto failure = check_tokens(sequence, group, first, sequence.length)) return failure;
  }
  return states_.check_sequence(sequence, hashes_, report_);
}

// In all layers of a group, or in one after the other.
MaybeFailure GroupVerifier::check_tokens(const WrittenSequence& sequence, Group& group,
                                         std::int64_t first, std::int64_t end) {
  const auto sampled = static_cast<std::size_t>(checks_++) % group.layers.size();
  for (std::size_t i = 0; i < group.layers.size(); ++i) {
    if (options_.mode == AttentionMode::sample && i != sampled) continue;
    if (auto failure = check_layer(sequence, layers_[group.layers[i]], first, end)) return failure;
  }
  return std::nullopt;
}

MaybeFailure GroupVerifier::check_layer(const WrittenSequence& sequence, const Layer& layer,
                                        std::int64_t first, std::int64_t end) {
  if (first >= end) return std::nullopt;
  Group& group = groups_[layer.group];
  const std::int32_t block_size = group.shape.block_size_tokens;
  blocks_.clear();
  for (std::int64_t token = first / block_size * block_size; token < end; token += block_size) {
    const auto slot = cache_.tables().slot_of(sequence.sequence, token, layer.part);
    if (!slot) return unexpected("slot_of", slot.status());
    if (*slot < 0) {
      ++report_.failures;
      return Failure{RunEnd::check_failed,
                     {.found = fmt::format(
                          "the block of token {} of request {} sample {} is not held (layer "
                          "{})",
                          token, sequence.stream.owner(), sequence.stream.sample(), layer.layer),
                      .expected = "a block, because later tokens read it",
                      .advice = "a block left too early; report it"}};
    }
    blocks_.push_back(*slot / block_size);
  }
  const auto hashes = std::span(hashes_).subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(end - first));
  group.derived.derive_layer(hashes, layer.layer);
  for (const RowKind kind : {RowKind::key, RowKind::value}) {
    const bool is_key = kind == RowKind::key;
    if (!is_key && group.value_in_key) continue;
    const PlaneView& plane = is_key ? layer.view.key : layer.view.value;
    const Status read = bytes_.read_rows(plane, block_size, blocks_, first, end, rows_);
    if (!read) return unexpected("read_rows", read);
    const std::byte* const wanted = is_key ? group.derived.keys() : group.derived.values();
    report_.kv_bytes_compared += std::ssize(rows_);
    if (std::memcmp(rows_.data(), wanted, rows_.size()) == 0) continue;
    const auto at = std::mismatch(rows_.begin(), rows_.end(), wanted).first - rows_.begin();
    return wrong_byte(sequence, layer, kind, first, at, rows_[static_cast<std::size_t>(at)],
                      wanted[at]);
  }
  return group.index_dim > 0 ? check_index(sequence, layer, first, end) : std::nullopt;
}

MaybeFailure GroupVerifier::wrong_byte(const WrittenSequence& sequence, const Layer& layer,
                                       RowKind kind, std::int64_t first, std::int64_t offset,
                                       std::byte found, std::byte wanted) {
  ++report_.failures;
  const PlaneView& plane = kind == RowKind::key ? layer.view.key : layer.view.value;
  const std::int64_t row = std::int64_t{plane.head_dim} * bytes_of(plane.dtype);
  const std::int64_t in_range = offset / (row * plane.num_heads);
  const std::int64_t block = (first + in_range) / layer.view.block_size;
  const auto place = static_cast<std::size_t>(block - first / layer.view.block_size);
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format(
           "{} of request {} sample {}, token {}, layer {}, head {}, byte {} is {:#04x} (block "
           "{} of table {}, entry {})",
           kind == RowKind::key ? "K" : "V", sequence.stream.owner(), sequence.stream.sample(),
           first + in_range, layer.layer, offset / row % plane.num_heads, offset % row,
           static_cast<unsigned>(found), blocks_[place], layer.part, block),
       .expected =
           fmt::format("{:#04x}, what was written for this token", static_cast<unsigned>(wanted)),
       .advice = "a block was overwritten, mapped wrongly or not copied; report it"}};
}

}  // namespace kvarena::verify
