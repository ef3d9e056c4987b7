// Copies and clearing of recurrent layers' states on a GPU, beside the copy or write ceiling
// measured in the same run. A time is that of a CUDA graph of back-to-back calls, median of 31
// replays, divided by the calls. Buffers rotate over more than 1 GB, so that nothing is found in
// the L2. The last lines are launches that have nothing to copy, as most recorded decode steps.

#include "bench/cuda_timing.cuh"
#include "kernels/copy_states/copy_states.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvarena;
using namespace kvarena::kernels;
using namespace kvarena::bench;

/// One group of states: the bytes of a slot, and the slots of a sequence.
struct Model {
  const char* name;
  std::int64_t slot_bytes;
  std::int64_t parts;
};

constexpr Model kModels[] = {{"Qwen3-Next-80B", 4'325'376, 18}, {"Nemotron-3-Nano", 2'162'688, 23}};

/// Copies of the slots of so many sequences to others, or clearing of them, in random places.
void states(Bench& bench, const Model& model, std::int64_t sequences, bool clears) {
  const std::int64_t slots = kPoolBytes / model.slot_bytes;
  const std::int64_t count = std::min(sequences * model.parts, slots / 4);
  const std::int64_t bytes = count * model.slot_bytes;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(slots));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
  const int calls = static_cast<int>(std::clamp<std::int64_t>(slots / 2 / count, 1, 64));
  std::vector<BlockCopy> copies;
  for (std::int64_t i = 0; i < calls * count; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    copies.push_back({clears ? kNoBlock : BlockId(ids[at]), BlockId(ids[at + 1])});
  }
  const BlockCopy* const list = on_device(copies);
  const std::int32_t* const number =
      on_device(std::vector<std::int32_t>{static_cast<std::int32_t>(count)});
  const double us = bench.time(calls, [&](int i, cudaStream_t s) {
    check(launch_copy_states({bench.pool(), model.slot_bytes, model.slot_bytes, list + i * count,
                              number, count, slots, gpu().info().num_sms},
                             s),
          __LINE__);
  });
  bench.report(
      std::string(model.name) + (clears ? " clear " : " copy ") + std::to_string(count) + " slots",
      bytes, !clears, us);
}

/// A launch of a recorded step of `rows` sequences without copies.
void nothing(Bench& bench, const Model& model, std::int64_t rows) {
  const BlockCopy* const list = on_device(
      std::vector<BlockCopy>(static_cast<std::size_t>(rows * model.parts), {kNoBlock, kNoBlock}));
  const std::int32_t* const number = on_device(std::vector<std::int32_t>{0});
  const double us = bench.time(64, [&](int, cudaStream_t s) {
    check(launch_copy_states(
              {bench.pool(), model.slot_bytes, model.slot_bytes, list, number, rows * model.parts,
               kPoolBytes / model.slot_bytes, gpu().info().num_sms},
              s),
          __LINE__);
  });
  std::printf("%-46s %12s %9.2f us\n",
              (std::string(model.name) + ", " + std::to_string(rows) + " rows, no copies").c_str(),
              "", us);
}

}  // namespace

int main() {
  Bench bench;
  for (const Model& model : kModels) {
    for (const std::int64_t sequences : {1, 4, 8}) states(bench, model, sequences, false);
    for (const std::int64_t sequences : {1, 4, 8}) states(bench, model, sequences, true);
    nothing(bench, model, 256);
  }
  return 0;
}
