#include "unit/cache/shadow_engine.hpp"

#include "kernels/reference/attention.hpp"

#include "kvarena/base/tile_order.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kvarena::test {
namespace {

constexpr std::uint8_t kNaNByte = 0xFF;  // every float type reads NaN

/// What rounding the output alone may cost, and the order of a sum.
double tolerance(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return 2e-5;
    case DType::f16: return 1e-3;
    default: return 8e-3;
  }
}

}  // namespace

template <class Where>
void ShadowEngine::note(bool is_right, double got, double expected, const Where& where) {
  ++mismatches_.compared;
  if (is_right || mismatches_.wrong++ > 0) return;
  mismatches_.first = "step " + std::to_string(step_) + ": " + std::string(where()) + ": got " +
                      std::to_string(got) + ", expected " + std::to_string(expected);
}

ShadowEngine::ShadowEngine(Device& device, const EngineOptions& options)
    : device_(device),
      options_(options),
      inputs_(options.io_dtype, options.seed),
      random_(options.seed),
      q_heads_(options.cache.num_q_heads),
      kv_heads_(options.cache.layout.num_kv_heads),
      dim_k_(options.cache.layout.head_dim_k),
      dim_v_(options.cache.layout.head_dim_v == 0 ? dim_k_ : options.cache.layout.head_dim_v) {
  Result<KvCache> cache = KvCache::create(device, options.cache);
  created_ = cache.status();
  if (!created_) return;
  owner_.push_back(std::move(*cache));
  cache_ = &owner_.front();
  records_.resize(static_cast<std::size_t>(options.cache.steps_in_flight));
  for (Record& record : records_) {
    record.layers.resize(static_cast<std::size_t>(options.cache.layout.num_layers));
  }
  keys_.resize(static_cast<std::size_t>(options.longest_tokens * kv_heads_ * dim_k_ * 4));
  values_.resize(static_cast<std::size_t>(options.longest_tokens * kv_heads_ * dim_v_ * 4));
  for (Record& record : records_) resize(record, options.cache.max_step_tokens);
  created_ = create_buffers();
  if (!created_) return;
  const Arena& arena = cache_->arena();
  created_ = device.fill(arena.base(), kNaNByte, static_cast<std::uint64_t>(arena.bytes()),
                         cache_->home_stream());
}

/// On CUDA: one set of buffers for every step, as large as the largest.
Status ShadowEngine::create_buffers() {
  if (device_.kind() == DeviceKind::host) return {};
  const std::int64_t tokens = options_.cache.max_step_tokens;
  const std::size_t sizes[] = {bytes(tokens * kv_heads_ * dim_k_),
                               bytes(tokens * kv_heads_ * dim_v_),
                               bytes(tokens * q_heads_ * dim_k_),
                               bytes(tokens * q_heads_ * dim_v_),
                               bytes(tokens * q_heads_ * dim_v_),
                               static_cast<std::size_t>(tokens * q_heads_) * sizeof(float),
                               static_cast<std::size_t>(tokens * q_heads_) * sizeof(float)};
  for (std::int32_t layer = 0; layer < options_.cache.layout.num_layers; ++layer) {
    void* at[std::size(sizes)];
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      Result<DeviceBuffer> buffer = DeviceBuffer::create(device_, sizes[i]);
      if (!buffer) return buffer.status();
      at[i] = buffer->data();
      buffers_.push_back(std::move(*buffer));
    }
    pointers_.push_back({at[0], at[1], at[2], at[3], at[4], static_cast<float*>(at[5]),
                         static_cast<float*>(at[6])});
  }
  return {};
}

std::size_t ShadowEngine::bytes(std::int64_t elements) const noexcept {
  return static_cast<std::size_t>(elements * bytes_of(options_.io_dtype));
}

// ---- sequences
// -----------------------------------------------------------------------------------

SequenceId ShadowEngine::create_sequence() {
  const Result<SequenceId> id = cache_->create_sequence();
  if (!id) return kNoSequence;
  sequences_[*id] = {};
  return *id;
}

SequenceId ShadowEngine::fork(SequenceId parent, std::int64_t length) {
  const Result<SequenceId> id = cache_->fork(parent, length);
  if (!id) return kNoSequence;
  const Seeds& seeds = sequences_.at(parent);
  sequences_[*id] = Seeds(seeds.begin(), seeds.begin() + length);
  return *id;
}

std::vector<BlockId> ShadowEngine::unshared_blocks(SequenceId sequence, std::int64_t first) const {
  const Result<SequenceInfo> info = cache_->tables().info(sequence);
  std::vector<BlockId> blocks(info ? static_cast<std::size_t>(info->num_blocks) : 0);
  static_cast<void>(cache_->tables().blocks_of(sequence, blocks));
  blocks.erase(blocks.begin(), blocks.begin() + std::min<std::int64_t>(first, std::ssize(blocks)));
  std::erase_if(blocks, [this](BlockId id) { return cache_->manager().reference_count(id) != 1; });
  return blocks;
}

Status ShadowEngine::poison(std::span<const BlockId> blocks) {
  if (!options_.poison) return {};
  const KvLayout& layout = cache_->arena().layout();
  const bool whole = cache_->arena().order() == BlockOrder::block_major;
  for (const BlockId block : blocks) {
    for (std::size_t p = 0; p < (whole ? 1 : layout.planes().size()); ++p) {
      const PlaneSpec& plane = layout.planes()[p];
      const auto size = static_cast<std::uint64_t>(
          whole ? layout.block_bytes() : layout.plane_bytes(static_cast<std::int32_t>(p)));
      if (Status s = device_.fill(cache_->arena().address(block, plane.layer, plane.kind), kNaNByte,
                                  size, cache_->home_stream());
          !s) {
        return s;
      }
    }
  }
  return {};
}

Status ShadowEngine::destroy(SequenceId sequence, Ticket ticket) {
  const std::vector<BlockId> freed = unshared_blocks(sequence, 0);
  if (Status s = cache_->destroy(sequence, ticket); !s) return s;
  sequences_.erase(sequence);
  return ticket == kNoTicket ? poison(freed) : Status{};
}

Status ShadowEngine::truncate(SequenceId sequence, std::int64_t length) {
  const std::int64_t block_size = options_.cache.layout.block_size_tokens;
  const std::vector<BlockId> freed =
      unshared_blocks(sequence, (length + block_size - 1) / block_size);
  if (Status s = cache_->truncate(sequence, length); !s) return s;
  sequences_.at(sequence).resize(static_cast<std::size_t>(length));
  if (Status s = poison(freed); !s) return s;
  return poison_tail(sequence);
}

/// The slots behind a sequence's last token, when nobody else reads that block. Where they are not
/// contiguous the block is changed on the host.
Status ShadowEngine::poison_tail(SequenceId sequence) {
  const std::int64_t block_size = options_.cache.layout.block_size_tokens;
  const std::int64_t length = std::ssize(sequences_.at(sequence));
  const std::int64_t used = length % block_size;
  if (!options_.poison || used == 0) return {};
  const Result<BlockId> last = cache_->tables().lookup(sequence, length / block_size);
  if (!last) return last.status();
  if (cache_->manager().reference_count(*last) != 1) return {};
  const KvLayout& layout = cache_->arena().layout();
  const bool is_chunked = layout.tile_order() == TileOrder::chunked;
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(layout.planes().size()); ++p) {
    const PlaneSpec& plane = layout.planes()[static_cast<std::size_t>(p)];
    std::byte* block = cache_->arena().address(*last, plane.layer, plane.kind);
    if (is_chunked) {
      if (Status s = poison_chunked_tail(plane, block, layout.plane_bytes(p), used); !s) return s;
      continue;
    }
    const auto size = static_cast<std::uint64_t>((block_size - used) * layout.token_stride(p));
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      std::byte* tail = block + head * layout.head_stride(p) + used * layout.token_stride(p);
      if (Status s = device_.fill(tail, kNaNByte, size, cache_->home_stream()); !s) return s;
    }
  }
  return {};
}

Status ShadowEngine::poison_chunked_tail(const PlaneSpec& plane, std::byte* block,
                                         std::int64_t plane_bytes, std::int64_t used) {
  static_cast<void>(read(block, static_cast<std::size_t>(plane_bytes)));
  const PlaneView view = view_of(plane);
  for (std::int64_t token = used; token < options_.cache.layout.block_size_tokens; ++token) {
    for (std::int32_t e = 0; e < plane.num_heads * plane.head_dim; ++e) {
      const std::int64_t at = offset_of(view, plane, token, e);
      std::memset(read_.data() + at, kNaNByte, static_cast<std::size_t>(bytes_of(plane.dtype)));
    }
  }
  if (Status s = device_.copy(block, read_.data(), static_cast<std::uint64_t>(plane_bytes),
                              cache_->home_stream());
      !s) {
    return s;
  }
  return device_.synchronize(cache_->home_stream());
}

PlaneView ShadowEngine::view_of(const PlaneSpec& plane) const {
  const KvLayerView layer = *cache_->arena().layer_view(plane.layer);
  return plane.kind == PlaneKind::key ? layer.key : layer.value;
}

/// Bytes from a block's plane to element `e` of [num_heads, head_dim] of one of its tokens.
std::int64_t ShadowEngine::offset_of(const PlaneView& view, const PlaneSpec& plane,
                                     std::int64_t token, std::int64_t e) const {
  return element_offset(view, plane.kind, static_cast<std::int32_t>(bytes_of(plane.dtype)), 0,
                        static_cast<std::int32_t>(e / plane.head_dim),
                        static_cast<std::int32_t>(token),
                        static_cast<std::int32_t>(e % plane.head_dim));
}

/// Bytes of the device, for the host to look at until the next read. Waits for the home stream.
std::span<const std::byte> ShadowEngine::read(const std::byte* device_bytes, std::size_t count) {
  if (device_.kind() == DeviceKind::host) return {device_bytes, count};
  read_.resize(count);
  const Status copied = device_.copy(read_.data(), device_bytes, count, cache_->home_stream());
  const Status waited = device_.synchronize(cache_->home_stream());
  note(copied.is_ok() && waited.is_ok(), 0, 0, [] { return "reading the device"; });
  return read_;
}

// ---- a step
// --------------------------------------------------------------------------------------

void ShadowEngine::check_slots(const StepBatch& batch, std::span<const AppendDemand> demands) {
  std::size_t next = 0;
  for (const AppendDemand& demand : demands) {
    const auto length = cache_->tables().info(demand.sequence)->length_tokens;
    for (std::int64_t i = length - demand.num_tokens; i < length; ++i, ++next) {
      const auto slot = static_cast<double>(*cache_->tables().slot_of(demand.sequence, i));
      const auto got = next < batch.slots.size() ? static_cast<double>(batch.slots[next]) : -1.0;
      note(got == slot, got, slot, [] { return "slot of a new token"; });
    }
  }
}

/// New tokens get seeds; the record keeps what each row's tokens are.
void ShadowEngine::grow(Record& record, std::span<const AppendDemand> demands) {
  record.rows.clear();
  record.step = step_;
  std::int64_t next = 0;
  for (const AppendDemand& demand : demands) {
    Seeds& seeds = sequences_.at(demand.sequence);
    for (std::int32_t i = 0; i < demand.num_tokens; ++i) {
      seeds.push_back(static_cast<std::uint32_t>(random_()));
    }
    record.rows.push_back({demand.sequence, seeds, demand.num_tokens, next});
    next += demand.num_tokens;
  }
  resize(record, next);
}

/// Buffers for a step of that many tokens.
void ShadowEngine::resize(Record& record, std::int64_t tokens) const {
  for (Layer& layer : record.layers) {
    layer.key.resize(bytes(tokens * kv_heads_ * dim_k_));
    layer.value.resize(bytes(tokens * kv_heads_ * dim_v_));
    layer.query.resize(bytes(tokens * q_heads_ * dim_k_));
    layer.out.resize(bytes(tokens * q_heads_ * dim_v_));
    layer.lse.resize(static_cast<std::size_t>(tokens * q_heads_));
    if (options_.cache.window_tokens == 0) continue;
    layer.windowed_out.resize(layer.out.size());
    layer.windowed_lse.resize(layer.lse.size());
  }
}

void ShadowEngine::fill_inputs(Record& record, std::int32_t index) const {
  Layer& layer = record.layers[static_cast<std::size_t>(index)];
  for (const Row& row : record.rows) {
    const std::int64_t old = std::ssize(row.seeds) - row.num_tokens;
    for (std::int64_t i = 0; i < row.num_tokens; ++i) {
      const std::uint32_t seed = row.seeds[static_cast<std::size_t>(old + i)];
      const std::int64_t token = row.first_token + i;
      inputs_.write(seed, index, Content::key, kv_heads_ * dim_k_,
                    layer.key.data() + bytes(token * kv_heads_ * dim_k_));
      inputs_.write(seed, index, Content::value, kv_heads_ * dim_v_,
                    layer.value.data() + bytes(token * kv_heads_ * dim_v_));
      inputs_.write(seed, index, Content::query, q_heads_ * dim_k_,
                    layer.query.data() + bytes(token * q_heads_ * dim_k_));
    }
  }
}

ShadowEngine::LayerPointers ShadowEngine::pointers_of(Record& record, std::int32_t index) {
  const auto i = static_cast<std::size_t>(index);
  if (!pointers_.empty()) return pointers_[i];
  Layer& layer = record.layers[i];
  return {layer.key.data(),          layer.value.data(), layer.query.data(),       layer.out.data(),
          layer.windowed_out.data(), layer.lse.data(),   layer.windowed_lse.data()};
}

/// Queues bringing a layer's inputs to the device, where that is not where they are.
Status ShadowEngine::upload(Record& record, std::int32_t index) {
  if (pointers_.empty()) return {};
  const LayerPointers& to = pointers_[static_cast<std::size_t>(index)];
  const Layer& from = record.layers[static_cast<std::size_t>(index)];
  const std::pair<void*, const std::vector<std::byte>*> copies[] = {
      {to.key, &from.key}, {to.value, &from.value}, {to.query, &from.query}};
  for (const auto& [target, source] : copies) {
    if (source->empty()) continue;
    if (Status s = device_.copy(target, source->data(), source->size(), cache_->home_stream());
        !s) {
      return s;
    }
  }
  return {};
}

/// Queues bringing a layer's outputs back.
Status ShadowEngine::download(Record& record, std::int32_t index) {
  if (pointers_.empty()) return {};
  const LayerPointers& from = pointers_[static_cast<std::size_t>(index)];
  Layer& to = record.layers[static_cast<std::size_t>(index)];
  struct Copy {
    void* target;
    const void* source;
    std::size_t bytes;
  };
  const Copy copies[] = {
      {to.out.data(), from.out, to.out.size()},
      {to.windowed_out.data(), from.windowed_out, to.windowed_out.size()},
      {to.lse.data(), from.lse, to.lse.size() * sizeof(float)},
      {to.windowed_lse.data(), from.windowed_lse, to.windowed_lse.size() * sizeof(float)}};
  for (const Copy& copy : copies) {
    if (copy.bytes == 0) continue;
    if (Status s = device_.copy(copy.target, copy.source, copy.bytes, cache_->home_stream()); !s) {
      return s;
    }
  }
  return {};
}

Status ShadowEngine::queue_calls(std::int32_t index, const LayerPointers& at) {
  if (Status s = cache_->write_kv(
          {.layer = index, .key = at.key, .value = at.value, .dtype = options_.io_dtype});
      !s) {
    return s;
  }
  AttendArgs args{.layer = index,
                  .q = at.query,
                  .q_dtype = options_.io_dtype,
                  .out = at.out,
                  .out_dtype = options_.io_dtype,
                  .lse = at.lse,
                  .scale = options_.scale,
                  .soft_cap = options_.soft_cap};
  if (Status s = cache_->attend(args); !s) return s;
  if (options_.cache.window_tokens == 0) return {};
  args.out = at.windowed_out;
  args.lse = at.windowed_lse;
  args.windowed = true;
  return cache_->attend(args);
}

Status ShadowEngine::begin_step() {
  if (!in_step_) {
    if (Status s = cache_->begin_step(); !s) return s;
    in_step_ = true;
  }
  Record& record = records_[step_ % records_.size()];
  if (record.is_pending) compare(record);
  return {};
}

Status ShadowEngine::end_step(Record& record) {
  if (Status s = cache_->end_step(); !s) return s;
  record.is_pending = true;
  in_step_ = false;
  ++step_;
  return {};
}

Status ShadowEngine::step(std::span<const AppendDemand> demands) {
  if (Status s = begin_step(); !s) return s;
  Record& record = records_[step_ % records_.size()];
  const Result<StepBatch> batch = cache_->append(demands);
  if (!batch) return batch.status();
  check_slots(*batch, demands);
  grow(record, demands);
  for (std::int32_t layer = 0; layer < options_.cache.layout.num_layers; ++layer) {
    fill_inputs(record, layer);
    if (Status s = upload(record, layer); !s) return s;
    if (Status s = queue_calls(layer, pointers_of(record, layer)); !s) return s;
    if (Status s = download(record, layer); !s) return s;
  }
  return end_step(record);
}

Status ShadowEngine::record(const RecordedStep& shape) {
  if (Status s = cache_->begin_recording(shape).status(); !s) return s;
  for (std::int32_t layer = 0; layer < options_.cache.layout.num_layers; ++layer) {
    if (Status s = queue_calls(layer, pointers_.at(static_cast<std::size_t>(layer))); !s) return s;
  }
  return cache_->end_recording();
}

Status ShadowEngine::replay(const RecordedStep& shape, std::span<const AppendDemand> demands,
                            const std::function<Status()>& launch) {
  if (Status s = begin_step(); !s) return s;
  Record& record = records_[step_ % records_.size()];
  const Result<StepBatch> batch = cache_->append_recorded(shape, demands);
  if (!batch) return batch.status();
  check_slots(*batch, demands);
  grow(record, demands);
  const std::int32_t layers = options_.cache.layout.num_layers;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    fill_inputs(record, layer);
    if (Status s = upload(record, layer); !s) return s;
  }
  if (Status s = launch(); !s) return s;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (Status s = download(record, layer); !s) return s;
  }
  return end_step(record);
}

Status ShadowEngine::finish() {
  if (Status s = cache_->synchronize(); !s) return s;
  for (Record& record : records_) {
    if (record.is_pending) compare(record);
  }
  return {};
}

// ---- comparison
// ----------------------------------------------------------------------------------

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
       .q = output.layer->query.data() + bytes(index * q_heads_ * dim_k_),
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
       .out_dtype = DType::f32});
  const auto where = [&] {
    return "sequence " + std::to_string(row.sequence.value) + ", token " +
           std::to_string(visible - 1) + ", layer " + std::to_string(output.layer_index) +
           (output.windowed ? ", windowed" : "");
  };
  const auto& out = output.windowed ? output.layer->windowed_out : output.layer->out;
  const auto& got_lse = output.windowed ? output.layer->windowed_lse : output.layer->lse;
  for (std::int64_t e = 0; e < q_heads_ * dim_v_; ++e) {
    const auto got =
        static_cast<double>(load_f32(out.data(), options_.io_dtype, index * q_heads_ * dim_v_ + e));
    const auto expected = static_cast<double>(expected_[static_cast<std::size_t>(e)]);
    note(std::abs(got - expected) <= tolerance(options_.io_dtype), got, expected, where);
  }
  for (std::int64_t h = 0; h < q_heads_; ++h) {
    const auto got = static_cast<double>(got_lse[static_cast<std::size_t>(index * q_heads_ + h)]);
    const auto expected = static_cast<double>(lse[static_cast<std::size_t>(h)]);
    note(std::abs(got - expected) <= 1e-4, got, expected, [&] { return where() + ", lse"; });
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
