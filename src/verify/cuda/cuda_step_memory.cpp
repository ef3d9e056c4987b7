#include "verify/cuda/cuda_step_memory.hpp"

#include "device/current_gpu.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvarena::verify {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{128} << 20;
constexpr std::int64_t kPartialBytes = std::int64_t{256} << 20;
constexpr std::int64_t kHashes = std::int64_t{1} << 20;

}  // namespace

// ---- the timer ----------------------------------------------------------------------------------

CudaStepTimer::~CudaStepTimer() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

Status CudaStepTimer::create(std::int32_t max_spans) {
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  for (std::int32_t i = 0; i < 2 * max_spans; ++i) {
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreate(&event);
    if (error != cudaSuccess) return device_.check(error, Resource::event);
    events_.push_back(event);
  }
  return {};
}

Status CudaStepTimer::record(std::size_t index, StreamId stream) {
  const Result<void*> native = device_.native_stream(stream);
  if (!native) return native.status();
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  return device_.check(cudaEventRecord(events_.at(index), static_cast<cudaStream_t>(*native)),
                       Resource::event);
}

Status CudaStepTimer::collect() {
  const CurrentGpu current(device_.ordinal());
  if (current.error() != cudaSuccess) return device_.check(current.error(), Resource::device);
  double us = 0.0;
  for (std::size_t i = 0; i < spans_; ++i) {
    float ms = 0.0F;
    const cudaError_t error = cudaEventElapsedTime(&ms, events_[2 * i], events_[2 * i + 1]);
    if (error != cudaSuccess) return device_.check(error, Resource::event);
    us += static_cast<double>(ms) * 1e3;
  }
  if (spans_ == 0) return {};
  spans_ = 0;
  if (decode_kv_bytes_ == 0) {
    ++report_.prompt_steps;
    report_.prompt_us += us;
    return {};
  }
  ++report_.decode_steps;
  report_.decode_kv_bytes += decode_kv_bytes_;
  report_.decode_us += us;
  return {};
}

CudaStepMemory::TokenBytes::TokenBytes(const StepMemoryOptions& o) noexcept
    : key(std::int64_t{o.shape.num_kv_heads} * o.shape.head_dim_k * bytes_of(o.shape.dtype)),
      value(std::int64_t{o.shape.num_kv_heads} * o.shape.head_dim_v * bytes_of(o.shape.dtype)),
      q(std::int64_t{o.num_q_heads} * o.shape.head_dim_k * bytes_of(o.shape.dtype)),
      out(std::int64_t{o.num_q_heads} * o.shape.head_dim_v * bytes_of(o.shape.dtype)) {}

CudaStepMemory::Sizes::Sizes(const StepMemoryOptions& o) noexcept
    : kv(std::max(kStagingBytes, TokenBytes(o).kv_layer(o.max_step_tokens))),
      attention(std::max(kStagingBytes, TokenBytes(o).attention_layer(o.max_step_tokens))),
      step_hashes(o.max_step_tokens * 8),
      hashes(std::max(kHashes, o.longest_tokens) * 8),
      // The row's offset, then the entries.
      table(8 + 4 * (o.longest_tokens / o.shape.block_size_tokens + 1)),
      partials(o.compares_attention
                   ? std::max(kPartialBytes,
                              partial_bytes(o.longest_tokens, o.num_q_heads, o.shape.head_dim_v))
                   : 0),
      items(o.compares_attention ? kMaxExactItems : 0) {}

std::int64_t CudaStepMemory::bytes_of_all(const StepMemoryOptions& options) noexcept {
  const Sizes sizes(options);
  return sizes.kv + sizes.attention + sizes.step_hashes + sizes.hashes + sizes.table +
         sizes.partials + sizes.items * std::int64_t{sizeof(QueryToken) + sizeof(AttentionSums)} +
         kCountWorkspaceBytes;
}

Status CudaStepMemory::allocate() {
  const Sizes sizes(options_);
  struct Request {
    DeviceMemory* memory;
    std::int64_t bytes;
    const char* purpose;
    MemoryKind kind = MemoryKind::device;
  };
  const Request requests[] = {
      {&kv_, sizes.kv, "replay: K and V of a step"},
      {&attention_, sizes.attention, "replay: q and outputs of a step"},
      {&step_hashes_, sizes.step_hashes, "replay: tokens of a step"},
      {&staging_, sizes.step_hashes, "replay: tokens of a step", MemoryKind::pinned_staging},
      {&hashes_, sizes.hashes, "replay: tokens of sequences"},
      {&table_, sizes.table, "replay: a block table"},
      {&workspace_, kCountWorkspaceBytes, "replay: counting"},
      {&partials_, sizes.partials, "replay: partial attention"},
      {&query_tokens_, sizes.items * std::int64_t{sizeof(QueryToken)}, "replay: query tokens"},
      {&sums_, sizes.items * std::int64_t{sizeof(AttentionSums)}, "replay: comparisons"},
  };
  for (const Request& request : requests) {
    auto memory = DeviceMemory::create(device_, request.bytes, request.purpose, request.kind);
    if (!memory) return memory.status();
    *request.memory = std::move(*memory);
  }
  if (Status status = load_code(); !status) return status;
  return timer_.create(shape_.num_layers);
}

/// Runs or loads each kernel once, so that CUDA loads its code before the device is full
/// (kernels/common/load_kernel.h).
Status CudaStepMemory::load_code() {
  if (Status s = device_.fill(hashes_.data(), 0, 8, cache_.stream()); !s) return s;
  const auto* const hashes = hashes_.data<std::uint64_t>();
  return on_gpu([&](cudaStream_t stream) -> Status {
    for (const RowKind kind : {RowKind::key, RowKind::value}) {
      const ContentRows rows = rows_of(kind, hashes, kv_.data(), 1);
      if (Status s = launch_fill_rows(rows, stream); !s) return s;
      const auto counted = verify::count_wrong_words(rows, workspace_.data(), stream);
      if (!counted) return counted.status();
    }
    return load_exact_attention();
  });
}

// ---- a step ------------------------------------------------------------------------------------

Status CudaStepMemory::begin(const StepTokens& tokens) {
  if (Status status = cache_.synchronize(); !status) return status;
  if (Status status = timer_.collect(); !status) return status;
  timer_.begin_step(tokens.decode_kv_bytes);
  step_ = tokens;
  const std::int64_t bytes = num_tokens() * 8;
  std::memcpy(staging_.data(), tokens.hashes.data(), static_cast<std::size_t>(bytes));
  return copy(step_hashes_.data(), staging_.data(), bytes);
}

ContentRows CudaStepMemory::rows_of(RowKind kind, const std::uint64_t* hashes, std::byte* rows,
                                    std::int64_t num_tokens) const noexcept {
  const bool is_query = kind == RowKind::query;
  return {.hashes = hashes,
          .rows = rows,
          .num_tokens = num_tokens,
          .num_heads = is_query ? options_.num_q_heads : shape_.num_kv_heads,
          .head_dim = kind == RowKind::value ? shape_.head_dim_v : shape_.head_dim_k,
          .dtype = shape_.dtype,
          .kind = kind};
}

Status CudaStepMemory::write_layers(std::int32_t first_layer, std::int32_t num_layers) {
  const std::int64_t key_stride = aligned(num_tokens() * token_.key);
  const std::int64_t value_stride = aligned(num_tokens() * token_.value);
  std::byte* const key = kv_.data();
  std::byte* const value = key + num_layers * key_stride;
  const auto* hashes = step_hashes_.data<std::uint64_t>();
  const Status filled = on_gpu([&](cudaStream_t stream) {
    ContentRows keys = rows_of(RowKind::key, hashes, key, num_tokens());
    ContentRows values = rows_of(RowKind::value, hashes, value, num_tokens());
    keys.first_layer = values.first_layer = first_layer;
    keys.num_layers = values.num_layers = num_layers;
    keys.layer_stride = key_stride;
    values.layer_stride = value_stride;
    if (Status s = launch_fill_rows(keys, stream); !s) return s;
    return launch_fill_rows(values, stream);
  });
  if (!filled) return filled;
  for (std::int32_t i = 0; i < num_layers; ++i) {
    const Status written = cache_.write_kv({.layer = first_layer + i,
                                            .key = key + i * key_stride,
                                            .value = value + i * value_stride,
                                            .dtype = shape_.dtype});
    if (!written) return written;
  }
  return {};
}

Status CudaStepMemory::write(std::int32_t first_layer, std::int32_t num_layers) {
  const std::int64_t layer_bytes = std::max<std::int64_t>(1, token_.kv_layer(num_tokens()));
  const auto at_a_time =
      static_cast<std::int32_t>(std::min<std::int64_t>(num_layers, kv_.bytes() / layer_bytes));
  const std::int32_t end = first_layer + num_layers;
  for (std::int32_t layer = first_layer; layer < end; layer += at_a_time) {
    const std::int32_t count = std::min(at_a_time, end - layer);
    if (Status status = write_layers(layer, count); !status) return status;
  }
  return {};
}

std::int32_t CudaStepMemory::layers_at_a_time() const noexcept {
  const std::int64_t layer_bytes = std::max<std::int64_t>(1, token_.attention_layer(num_tokens()));
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(shape_.num_layers, attention_.bytes() / layer_bytes));
}

Status CudaStepMemory::attend(std::int32_t first_layer, std::int32_t num_layers) {
  const std::int64_t q_stride = aligned(num_tokens() * token_.q);
  const std::int64_t out_stride = aligned(num_tokens() * token_.out);
  attended_first_ = first_layer;
  attended_layers_ = num_layers;
  out_ = attention_.data() + num_layers * q_stride;
  ContentRows queries =
      rows_of(RowKind::query, step_hashes_.data<std::uint64_t>(), attention_.data(), num_tokens());
  queries.first_layer = first_layer;
  queries.num_layers = num_layers;
  queries.layer_stride = q_stride;
  // An output that nobody writes must not look like one.
  const Status poisoned = device_.fill(
      out_, kNotANumber, static_cast<std::uint64_t>(num_layers * out_stride), cache_.stream());
  if (!poisoned) return poisoned;
  const Status filled =
      on_gpu([&](cudaStream_t stream) { return launch_fill_rows(queries, stream); });
  if (!filled) return filled;
  if (Status s = timer_.start(cache_.stream()); !s) return s;
  for (std::int32_t i = 0; i < num_layers; ++i) {
    const Status attended = cache_.attend({.layer = first_layer + i,
                                           .q = attention_.data() + i * q_stride,
                                           .q_dtype = shape_.dtype,
                                           .out = out_ + i * out_stride,
                                           .out_dtype = shape_.dtype});
    if (!attended) return attended;
  }
  return timer_.stop(cache_.stream());
}

Result<const std::byte*> CudaStepMemory::read_outputs(std::int32_t layer, std::int64_t first_token,
                                                      std::int64_t tokens) {
  const std::int64_t bytes = tokens * token_.out;
  value_.resize(static_cast<std::size_t>(bytes));
  const std::byte* rows = out_ + (layer - attended_first_) * aligned(num_tokens() * token_.out);
  if (Status s = copy(value_.data(), rows + first_token * token_.out, bytes); !s) return s;
  if (Status s = cache_.synchronize(); !s) return s;
  return value_.data();
}

Result<MeasuredReport> CudaStepMemory::measure() {
  if (Status status = cache_.synchronize(); !status) return status;
  if (Status status = timer_.collect(); !status) return status;
  MeasuredReport report = timer_.report();
  report.device = device_.name();
  return report;
}

Result<std::unique_ptr<StepMemory>> create_cuda_step_memory(Device& device, KvCache& cache,
                                                            const StepMemoryOptions& options) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  auto memory = std::make_unique<CudaStepMemory>(*cuda, cache, options);
  if (Status status = memory->allocate(); !status) return status;
  return std::unique_ptr<StepMemory>(std::move(memory));
}

std::int64_t cuda_step_memory_bytes(const StepMemoryOptions& options) noexcept {
  return CudaStepMemory::bytes_of_all(options);
}

}  // namespace kvarena::verify
