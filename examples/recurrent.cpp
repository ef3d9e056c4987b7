// Recurrent layers in a cache: a kernel of the engine reads and writes the slots of a step, and a
// sequence goes on at a checkpoint. The model is a toy: its state is a sum that fades.

#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <cstdio>
#include <vector>

using namespace kvarena;

namespace {

/// The kernel of one recurrent layer: state = state / 2 + token, for each row of the step.
void run_layer(const StateView& view, const StateSlots& slots,
               const std::vector<std::vector<float>>& new_tokens) {
  const auto state_in = [&](std::int32_t slot) {
    return reinterpret_cast<float*>(view.base + slot * view.slot_stride + view.planes[0].offset);
  };
  for (std::size_t row = 0; row < new_tokens.size(); ++row) {
    if (new_tokens[row].empty()) continue;  // nothing to read or write
    const std::size_t mine = row * std::size_t(slots.num_parts) + std::size_t(view.part);
    const std::int32_t read = slots.read[mine];
    float state = read == -1 ? 0.0F : *state_in(read);  // -1: a state of zeros
    std::int32_t extra = slots.extra_offsets[row];
    for (std::size_t i = 0; i < new_tokens[row].size(); ++i) {
      state = state / 2 + new_tokens[row][i];
      // Some states inside the step have slots of their own: checkpoints, and tokens that can be
      // taken back.
      if (extra == slots.extra_offsets[row + 1]) continue;
      if (slots.extra_tokens[std::size_t(extra)] != std::int32_t(i)) continue;
      const auto at = std::size_t(extra++) * std::size_t(slots.num_parts) + std::size_t(view.part);
      *state_in(slots.extra_slots[at]) = state;
    }
    *state_in(slots.write[mine]) = state;
  }
}

/// One step of one sequence. The host device of this program runs queued work at once.
Status step(KvCache& cache, SequenceId sequence, const std::vector<float>& tokens) {
  if (Status status = cache.begin_step(); !status) return status;
  const AppendDemand demand{sequence, std::int32_t(tokens.size())};
  const auto batch = cache.append({&demand, 1});
  if (!batch) return batch.status();
  for (const std::int32_t layer : {0, 1}) {
    const auto view = cache.state_view(layer);
    if (!view) return view.status();
    run_layer(*view, batch->states[0], {tokens});
  }
  // Layer 2 has attention: write_kv and attend, as ever.
  return cache.end_step();
}

/// Reads the state at the sequence's length.
float state_of(const KvCache& cache, SequenceId sequence) {
  const StateView view = cache.state_view(0).value();
  std::vector<std::int32_t> slots(16);
  const std::int32_t group = 1;  // in block tables, states come behind attention
  if (!cache.tables().copy_rows({&sequence, 1}, slots, 16, {}, group)) return -1;
  const std::byte* const slot = view.base + slots[std::size_t(view.part)] * view.slot_stride;
  return *reinterpret_cast<const float*>(slot + view.planes[0].offset);
}

}  // namespace

int main() {
  const auto device = HostDevice::create({.streams = HostStreams::inline_calls}).value();
  const GroupLayer recurrent[] = {{.layer = 0}, {.layer = 1}};
  const GroupLayer attention[] = {{.layer = 2}};
  const StatePlane plane{.dtype = DType::f32, .num_dims = 2, .shape = {16, 16}};
  const LayerGroup groups[] = {
      {.layers = attention, .num_kv_heads = 1, .head_dim_k = 8, .dtype = DType::f32},
      {.kind = PagedKind::state,
       .layers = recurrent,
       .planes = {&plane, 1},
       .mode = StateMode::read_write},
  };
  KvCacheOptions options;
  options.size.num_blocks = 40;  // pages
  options.num_q_heads = 1;
  options.groups = groups;
  auto cache = KvCache::create(*device, options);
  if (!cache) {
    std::printf("%s\n", device->describe(cache.status()).c_str());
    return 1;
  }
  const SequenceId first = cache->create_sequence().value();
  if (!step(*cache, first, {8, 4, 2})) return 1;
  std::printf("3 tokens: the state is %g\n", double(state_of(*cache, first)));
  if (!cache->checkpoint(first)) return 1;
  if (!step(*cache, first, {1, 1})) return 1;
  std::printf("5 tokens: the state is %g\n", double(state_of(*cache, first)));

  const Status elsewhere = cache->truncate(first, 4);
  std::printf("%s\n", cache->describe(elsewhere).c_str());
  const SequenceId second = cache->fork(first, 3).value();
  if (!step(*cache, second, {10})) return 1;
  std::printf("a fork at the checkpoint: 4 tokens, the state is %g; the first still has %g\n",
              double(state_of(*cache, second)), double(state_of(*cache, first)));
  return 0;
}
