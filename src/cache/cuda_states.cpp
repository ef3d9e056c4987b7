#include "cache/cuda_states.hpp"

namespace kvarena {

CudaStates::CudaStates(const Arena& arena, const GroupDeviceTables& tables, std::int32_t num_sms) {
  const GroupLayout& layout = *arena.groups();
  for (std::size_t i = 0; i < layout.states().size(); ++i) {
    const PagedBlocks& blocks = layout.states()[i].blocks;
    const kernels::ScatterStatesParams& arrays = tables.states(i);
    copies_.push_back({.base = arena.base(),
                       .slot_stride = blocks.id_stride_bytes,
                       .bytes = blocks.block_bytes,
                       .copies = arrays.copies,
                       .num_copies = &arrays.state->step.num_copies,
                       .max_copies = 0,
                       .num_slots = arena.num_blocks() * blocks.ids_per_page(layout.page_bytes()),
                       .num_sms = num_sms});
    slots_.push_back({.group = static_cast<std::int32_t>(layout.parts().size() + i),
                      .num_parts = blocks.num_parts,
                      .max_extras = arrays.shape.max_extras,
                      .read = arrays.read,
                      .write = arrays.write,
                      .extra_offsets = arrays.extra_offsets,
                      .extra_tokens = arrays.extra_tokens,
                      .extra_slots = arrays.extra_slots});
  }
}

void CudaStates::count_copies(const GroupDeviceTables& tables) noexcept {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].max_copies = tables.num_state_copies(i);
  }
}

void CudaStates::count_copies(const RecordedStep& shape) noexcept {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].max_copies = std::int64_t{shape.num_rows} * slots_[i].num_parts;
  }
}

Status CudaStates::launch(cudaStream_t stream) const noexcept {
  for (const kernels::CopyStatesParams& copies : copies_) {
    if (Status s = kernels::launch_copy_states(copies, stream); !s) return s;
  }
  return {};
}

}  // namespace kvarena
