#pragma once

/// @file
/// `Option`: the names of the fields of the option structs. A `Status` uses one to say which option
/// was refused or should be raised. A field that several structs have is listed once.

#include "kvarena/base/export.hpp"

#include <cstdint>
#include <string_view>

namespace kvarena {

/// A field of an option struct, spelled as in the struct's header.
enum class Option : std::uint16_t {
  none = 0,
  // KvCacheOptions
  num_q_heads,
  max_sequences,
  max_sequence_tokens,
  max_batch_rows,
  max_step_tokens,
  max_batch_blocks,
  watermark_blocks,
  window_tokens,
  steps_in_flight,
  max_open_tickets,
  max_fence_entries,
  max_table_pages,
  max_pins,
  num_threads,
  max_decode_tokens,
  batch_invariant_tokens,
  draft_trees,
  max_shared_rows,
  order,
  scrub,
  home_stream,
  audit_blocks_per_step,
  // UniformLayoutOptions, GroupSpec, PlaneSpec
  num_layers,
  num_kv_heads,
  head_dim_k,
  head_dim_v,
  dtype,
  block_size_tokens,
  tile_order,
  layer,
  kind,
  num_heads,
  head_dim,
  scale,
  alias_of,
  planes,
  retention,
  size,
  // PoolSize
  num_blocks,
  budget_bytes,
  all_free_but_bytes,
  // BlockManagerOptions, BlockTablesOptions, SequenceOptions, StepPublisherOptions
  max_holders,
  max_append_tokens,
  max_length_tokens,
  audit_blocks,
  // PrefixOptions, SequenceOptions and ExtraKey, for the prefix cache
  prefix_cache,
  max_extra_keys,
  hash_key,
  history_entries,
  duplicates,
  max_accounts,
  ghost_blocks,
  share_parts,
  floor_blocks,
  cap_blocks,
  tokens,
  salt,
  extra_keys,
  first_token,
  // CudaDeviceOptions, HostDeviceOptions, CacheTarget
  ordinal,
  capacity_bytes,
  streams,
  max_streams,
  max_queued,
  max_host_functions,
  bounce_bytes,
  policy,
  num_sms,
  // AllocationRequest, AllocationRecord
  bytes,
  alignment_bytes,
  purpose,
  owner,
  // AttentionLimits
  max_rows,
  max_q_tokens,
  path,
  // HealthOptions, PressureOptions, HealthServerOptions
  period_ns,
  pressure_period_ns,
  check_limit_ns,
  ticket_limit_ns,
  holder_grace_ns,
  step_limit_ns,
  blocks,
  vram,
  hysteresis,
  address,
  token,
  max_connections,
  max_request_bytes,
  request_limit_ms,
  // kvarena_monitor_options, where the names differ from those above
  drift_warning_bytes,
  drift_limit_bytes,
  http_port,
  http_max_connections,
  http_max_request_bytes,
  http_request_limit_ms,
  // KvMemoryOptions, PlanOptions
  format,
  kept,
  tensor_parallel,
  pipeline_parallel,
  data_parallel,
  stage,
  memory_bytes,
  utilization_permille,
  weights,
  kv,
  kv_scale,
  context_tokens,
  batch,
  context_overhead_bytes,
  graph_bytes,
  // StepTimeOptions
  layer_parameters,
  layer_bytes,
  head_parameters,
  head_bytes,
  experts,
  attention,
  bandwidth_bytes_per_second,
  flops_per_second,
  efficiency,
  // ModelSpec
  groups,
  num_sharing_layers,
  limit_tokens,
  latent_dim,
  latent_value_dim,
  index_dim,
  state_elements,
  conv_elements,
  hidden,
  ffn,
  experts_per_token,
  kv_lora_rank,
  nope_dim,
  rope_dim,
  vocab,
  max_position,
  weights_bytes,
  parameters,
  // TableGroup, LayerGroup, SequenceOptions, KvCacheOptions, where the names differ from those
  // above
  rollback_tokens,
  reads_layer,
  cross_tokens,
  page_sequence_tokens,
  // BlockManagerOptions, RetentionHint, and the time given to BlockManager::advance_clock
  eviction,
  priority,
  expires_at,
  clock,
  // LayerGroup of states, BlockTablesOptions
  num_parts,
  mode,
  num_dims,
  shape,
  checkpoint_every_tokens,
};

/// The last enumerator, for loops over all options.
inline constexpr Option kLastOption = Option::checkpoint_every_tokens;

/// Returns the option's name as spelled in its struct, for example "steps_in_flight".
KVARENA_EXPORT std::string_view name_of(Option option) noexcept;

}  // namespace kvarena
