#include "unit/cache/shadow_engine.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kvarena::test {
namespace {

constexpr std::uint8_t kNaNByte = 0xFF;  // every float type reads NaN

}  // namespace

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
  if (created_ && options_.has_sinks) created_ = create_sinks();
  if (!created_) return;
  const Arena& arena = cache_->arena();
  created_ = device.fill(arena.base(), kNaNByte, static_cast<std::uint64_t>(arena.bytes()),
                         cache_->stream());
}

/// On CUDA: one set of buffers for every step, as large as the largest.
Status ShadowEngine::create_buffers() {
  if (device_.kind() == DeviceKind::host) return {};
  const auto tokens = static_cast<std::size_t>(options_.cache.max_step_tokens);
  const Strides of = strides();
  const std::size_t lse = static_cast<std::size_t>(q_heads_) * sizeof(float);
  const std::size_t sizes[] = {tokens * of.key, tokens * of.value, tokens * of.query,
                               tokens * of.out, tokens * of.out,   tokens * lse,
                               tokens * lse};
  for (std::int32_t layer = 0; layer < options_.cache.layout.num_layers; ++layer) {
    void* at[std::size(sizes)];
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      Result<DeviceBuffer> buffer = DeviceBuffer::create(device_, sizes[i]);
      if (!buffer) return buffer.status();
      if (Status s = device_.fill(buffer->data(), kNaNByte, sizes[i], cache_->stream()); !s)
        return s;
      at[i] = buffer->data();
      buffers_.push_back(std::move(*buffer));
    }
    pointers_.push_back({at[0], at[1], at[2], at[3], at[4], static_cast<float*>(at[5]),
                         static_cast<float*>(at[6])});
  }
  return {};
}

Status ShadowEngine::create_sinks() {
  for (std::int64_t head = 0; head < q_heads_; ++head) {
    sinks_.push_back(static_cast<float>(head % 5) - 2.0F);
  }
  sinks_there_ = sinks_.data();
  if (device_.kind() == DeviceKind::host) return {};
  const auto size = static_cast<std::uint64_t>(sinks_.size() * sizeof(float));
  Result<DeviceBuffer> buffer = DeviceBuffer::create(device_, size);
  if (!buffer) return buffer.status();
  sinks_there_ = static_cast<const float*>(buffer->data());
  buffers_.push_back(std::move(*buffer));
  return device_.copy(buffers_.back().data(), sinks_.data(), size, cache_->stream());
}

std::size_t ShadowEngine::bytes(std::int64_t elements) const noexcept {
  return static_cast<std::size_t>(elements * bytes_of(options_.io_dtype));
}

ShadowEngine::Strides ShadowEngine::strides() const noexcept {
  const auto padding = static_cast<std::size_t>(options_.padding_bytes);
  return {bytes(kv_heads_ * dim_k_) + padding, bytes(kv_heads_ * dim_v_) + 2 * padding,
          bytes(q_heads_ * dim_k_) + padding, bytes(q_heads_ * dim_v_) + 2 * padding};
}

// ---- sequences ----------------------------------------------------------------------------------

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
                                  size, cache_->stream());
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
      if (Status s = device_.fill(tail, kNaNByte, size, cache_->stream()); !s) return s;
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
                              cache_->stream());
      !s) {
    return s;
  }
  return device_.synchronize(cache_->stream());
}

// ---- a step -------------------------------------------------------------------------------------

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
  const auto count = static_cast<std::size_t>(tokens);
  const Strides of = strides();
  constexpr std::byte kNaN{kNaNByte};
  for (Layer& layer : record.layers) {
    layer.key.resize(count * of.key, kNaN);
    layer.value.resize(count * of.value, kNaN);
    layer.query.resize(count * of.query, kNaN);
    layer.out.resize(count * of.out, kNaN);
    layer.lse.resize(static_cast<std::size_t>(tokens * q_heads_));
    if (options_.cache.window_tokens == 0) continue;
    layer.windowed_out.resize(layer.out.size(), kNaN);
    layer.windowed_lse.resize(layer.lse.size());
  }
}

void ShadowEngine::fill_inputs(Record& record, std::int32_t index) const {
  Layer& layer = record.layers[static_cast<std::size_t>(index)];
  const Strides of = strides();
  for (const Row& row : record.rows) {
    const std::int64_t old = std::ssize(row.seeds) - row.num_tokens;
    for (std::int64_t i = 0; i < row.num_tokens; ++i) {
      const std::uint32_t seed = row.seeds[static_cast<std::size_t>(old + i)];
      const auto token = static_cast<std::size_t>(row.first_token + i);
      inputs_.write(seed, index, Content::key, kv_heads_ * dim_k_,
                    layer.key.data() + token * of.key);
      inputs_.write(seed, index, Content::value, kv_heads_ * dim_v_,
                    layer.value.data() + token * of.value);
      inputs_.write(seed, index, Content::query, q_heads_ * dim_k_,
                    layer.query.data() + token * of.query);
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
    if (Status s = device_.copy(target, source->data(), source->size(), cache_->stream()); !s) {
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
    if (Status s = device_.copy(copy.target, copy.source, copy.bytes, cache_->stream()); !s) {
      return s;
    }
  }
  return {};
}

Status ShadowEngine::queue_calls(std::int32_t index, const LayerPointers& at) {
  WriteKvArgs write{.layer = index, .key = at.key, .value = at.value, .dtype = options_.io_dtype};
  if (options_.padding_bytes > 0) {
    write.key_token_stride_bytes = static_cast<std::int64_t>(strides().key);
    write.value_token_stride_bytes = static_cast<std::int64_t>(strides().value);
  }
  if (Status s = cache_->write_kv(write); !s) return s;
  AttendArgs args{.layer = index,
                  .q = at.query,
                  .q_dtype = options_.io_dtype,
                  .out = at.out,
                  .out_dtype = options_.io_dtype,
                  .lse = at.lse,
                  .scale = options_.scale,
                  .soft_cap = options_.soft_cap,
                  .sinks = sinks_there_};
  if (options_.padding_bytes > 0) {
    args.q_token_stride_bytes = static_cast<std::int64_t>(strides().query);
    args.out_token_stride_bytes = static_cast<std::int64_t>(strides().out);
  }
  if (Status s = cache_->attend(args); !s) return s;
  if (options_.cache.window_tokens == 0) return {};
  args.out = at.windowed_out;
  args.lse = at.windowed_lse;
  args.windowed = true;
  return cache_->attend(args);
}

Status ShadowEngine::begin_step() {
  if (!in_step_) {
    const std::vector<StreamId>& streams = options_.streams;
    const StreamId stream = streams.empty() ? StreamId{} : streams[step_ % streams.size()];
    if (Status s = cache_->begin_step({.stream = stream}); !s) return s;
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

Status ShadowEngine::record(const RecordedStep& shape, const StepOptions& options) {
  if (Status s = cache_->begin_recording(shape, options).status(); !s) return s;
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

}  // namespace kvarena::test
