#include "kernels/scrub/scrub.h"

#include "kernels/scrub/scrub.cuh"

namespace kvarena::kernels {

Status launch_scrub(const ScrubParams& p, cudaStream_t stream) noexcept {
  if (Status s = check_blocks(p, p.blocks, p.num_scrubbed); !s) return s;
  if (p.num_scrubbed == 0 || p.bytes == 0) return {};
  const bool wide = has_wide_units(p);
  const cudaLaunchConfig_t config = piece_launch(p, p.num_scrubbed, wide ? 16 : 1, stream);
  if (!wide) {
    return launch_status(cudaLaunchKernelEx(&config, scrub_block_pieces<std::uint8_t>, p, p.value));
  }
  const std::uint32_t word = p.value * 0x01010101U;
  return launch_status(
      cudaLaunchKernelEx(&config, scrub_block_pieces<uint4>, p, uint4{word, word, word, word}));
}

}  // namespace kvarena::kernels
