// What an engine controls beside the steps: imports, pins and deadlines, and the views for kernels
// of its own.

#include "cache/kv_cache_impl.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {

Status KvCache::set_deadline(SequenceId sequence, std::int64_t deadline_ns) {
  return impl_->tables->set_deadline(sequence, deadline_ns);
}

/// Behind an append the step's writes are still to come, also into blocks that a cut has released
/// meanwhile. Nobody knows what others leave in the blocks, so what they had before no longer
/// counts.
Result<SequenceId> KvCache::import_sequence(std::int64_t num_tokens, const SequenceOptions& options,
                                            Urgency urgency) {
  Impl& c = *impl_;
  if (c.phase == StepPhase::planned || c.phase == StepPhase::replaying) {
    return out_of_order(StepCall::import_sequence, c.phase, c.step);
  }
  if (Status status = c.check_maximum(options); !status) return status;
  const Result<SequenceId> id = c.tables->import_sequence(num_tokens, c.limited(options), urgency);
  if (id && c.scrubs) c.scrubs->note_import(c.manager, *c.tables, *id);
  if (id && c.encoders) {
    c.encoders->begin(*id, options.cross_tokens);
    c.encoders->assume_all(*id);  // it is published when others have written all of its blocks
  }
  return id;
}

Status KvCache::publish_import(SequenceId sequence) {
  return impl_->tables->publish_import(sequence);
}
Status KvCache::fail_import(SequenceId sequence) { return impl_->tables->fail_import(sequence); }
Result<HolderId> KvCache::pin(SequenceId sequence, const PinOptions& options) {
  return impl_->tables->pin(sequence, options);
}
Status KvCache::unpin(HolderId pin, Ticket ticket) { return impl_->tables->unpin(pin, ticket); }

Result<IndexView> KvCache::index_view(std::int32_t layer) const noexcept {
  return impl_->arena.index_view(layer);
}

Result<KvLayerView> KvCache::layer_view(std::int32_t layer) const noexcept {
  return impl_->arena.layer_view(layer);
}

Result<StateView> KvCache::state_view(std::int32_t layer) const noexcept {
  return impl_->arena.state_view(layer);
}

/// In a recording the numbers are those of the largest step that its graph can run.
Result<DeviceBatch> KvCache::device_batch(std::int32_t part) const noexcept {
  const Impl& c = *impl_;
  const bool has_batch = c.phase == StepPhase::planned || c.phase == StepPhase::replaying ||
                         c.phase == StepPhase::recording;
  if (!has_batch) return out_of_order(StepCall::device_batch, c.phase, c.step);
  const GroupLayout* const groups = c.arena.groups();
  const std::int64_t last_part = groups == nullptr ? 0 : std::ssize(groups->parts()) - 1;
  if (Status s = check_range(Resource::num_groups, part, 0, last_part); !s) return s;
  DeviceBatch batch = c.backend->device_batch_of_part(part);
  if (batch.num_rows == 0) batch.num_rows = c.num_rows;
  batch.num_tokens = c.num_tokens;
  batch.max_length_tokens = c.max_length_tokens;
  batch.max_new_tokens = c.max_new_tokens;
  return batch;
}

void KvCache::Impl::note_batch(const AppendResult& appended) noexcept {
  num_rows = static_cast<std::int32_t>(appended.rows.size());
  max_length_tokens = max_new_tokens = 0;
  for (const AppendedRow& row : appended.rows) {
    max_length_tokens = std::max(max_length_tokens, row.length_tokens);
    max_new_tokens = std::max(max_new_tokens, row.num_new_tokens);
  }
}

void KvCache::Impl::note_batch(const RecordedStep& shape) noexcept {
  num_rows = shape.num_rows;
  max_length_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(longest_tokens, std::numeric_limits<std::int32_t>::max()));
  max_new_tokens = shape.tokens_per_row;
}

}  // namespace kvarena
