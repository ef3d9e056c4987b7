// Recorded steps of a KvCache.

#include "cache/kv_cache_impl.hpp"

#include <limits>

namespace kvarena {

/// Checks that the device can record steps and that the shape is within the limits.
Status KvCache::Impl::check_shape(const RecordedStep& shape) const noexcept {
  if (device->kind() == DeviceKind::host) return unsupported(Resource::device);
  if (Status s = check_range(Resource::num_sequences, shape.num_rows, 1, options.max_batch_rows);
      !s) {
    return s;
  }
  if (Status s =
          check_range(Resource::num_tokens, shape.tokens_per_row, 1, options.max_decode_tokens);
      !s) {
    return s;
  }
  if (Status s = check_range(Resource::sequence_length, shape.row_tokens, 0,
                             std::numeric_limits<std::int32_t>::max());
      !s) {
    return s;
  }
  return check_range(Resource::num_tokens, std::int64_t{shape.num_rows} * shape.tokens_per_row, 1,
                     options.max_step_tokens);
}

/// The recording's stream is that of no step: nothing is queued on it for a step to wait for.
Result<StepBatch> KvCache::begin_recording(const RecordedStep& shape, const StepOptions& options) {
  Impl& c = *impl_;
  if (Status status = c.check_shape(shape); !status) return status;
  if (Status status = c.check_phase(StepCall::begin_recording, StepPhase::between); !status) {
    return status;
  }
  if (options.stream != StreamId{}) c.backend->use(options.stream);
  Result<StepBatch> batch = c.backend->begin_recording(shape);
  if (!batch) {
    c.backend->use(c.stream);
    return batch;
  }
  c.phase = StepPhase::recording;
  ++c.batches;
  c.num_tokens = batch->num_tokens;
  c.note_batch(shape);
  return batch;
}

Status KvCache::end_recording() {
  Impl& c = *impl_;
  if (Status status = c.check_phase(StepCall::end_recording, StepPhase::recording); !status) {
    return status;
  }
  c.backend->use(c.stream);
  c.phase = StepPhase::between;
  return {};
}

Result<StepBatch> KvCache::append_recorded(const RecordedStep& shape,
                                           std::span<const AppendDemand> demands, Urgency urgency) {
  Impl& c = *impl_;
  c.failed_demand = -1;
  if (Status status = c.check_shape(shape); !status) return status;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const std::int32_t expected = shape.tokens_per_row;
    if (demands[i].num_tokens == expected) continue;
    c.failed_demand = static_cast<std::int64_t>(i);
    return invalid_argument(Resource::num_tokens, demands[i].num_tokens, expected, expected);
  }
  return c.grow(demands, urgency, &shape);
}

}  // namespace kvarena
