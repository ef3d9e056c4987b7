#pragma once

/// @file
/// Calls whose C++ side is not there yet. They return unsupported.

#include "capi/objects.hpp"

#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/device/host_device.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace kvarena::capi {

Status set_inline_calls(std::int32_t inline_calls, HostDeviceOptions& options);
Status set_cache_name(const std::string& name, KvCacheOptions& options);
Status set_max_pins(std::int32_t max_pins, KvCacheOptions& options);
std::int32_t max_pins_of(const KvCacheOptions& options);
Result<KvLayerView> view_of(const KvLayout& layout, BlockOrder order, std::int64_t num_blocks,
                            void* base, std::int32_t layer);
Result<SequenceId> import_sequence(KvCache& cache, std::int64_t num_tokens,
                                   const SequenceOptions& options, Urgency urgency);
Status publish_import(KvCache& cache, SequenceId sequence);
Status fail_import(KvCache& cache, SequenceId sequence);
std::int32_t import_state_of(const KvCache& cache, SequenceId sequence);
Status set_deadline(KvCache& cache, SequenceId sequence, std::int64_t deadline_ns);
Status copy_rows(const BlockTables& tables, std::span<const SequenceId> sequences,
                 std::int32_t* entries, std::size_t stride, std::int32_t* lengths);
Result<HolderId> pin_blocks(CacheObject& object, SequenceId sequence,
                            const kvarena_pin_options& options);
Status blocks_of_pin(const KvCache& cache, const HolderReport& pin, std::span<BlockId> out,
                     std::size_t& count);
Status unpin(KvCache& cache, HolderId pin, Ticket ticket);
Status set_deadline(BlockManager& manager, HolderId holder, std::int64_t deadline_ns);
Status set_pool_name(const std::string& name, BlockManagerOptions& options);
std::string json_of(const BlockStats& blocks);
std::string json_of(const HolderReport& holder);
std::string json_of(const Explanation& explanation);
Status set_urgency(std::int32_t urgency, HolderDemand& demand);
Status set_urgency(std::int32_t urgency, AppendDemand& demand);
Status begin_step(CacheObject& object, void* stream);
Result<StepBatch> begin_recording(CacheObject& object, const RecordedStep& shape, void* stream);
StreamId stream_of(const KvCache& cache);
Result<kvarena_device_batch> device_batch(KvCache& cache);
Status set_strides(const kvarena_write_args& given, WriteKvArgs& args);
Status set_strides(const kvarena_attend_args& given, AttendArgs& args);
Status set_strides(const kvarena_write_args& given, AppendArgs& args);
Status set_strides(const kvarena_attend_args& given, AttentionArgs& args);

}  // namespace kvarena::capi
