#include "tools/attention_meter/host_batch.hpp"

#include <array>
#include <iterator>
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvarena::meter {
namespace {

template <std::int64_t kStreams, std::int64_t kAhead>
std::uint64_t read_plain(const std::byte* from, std::int64_t bytes) {
  const std::int64_t share = bytes / kStreams;
  std::uint64_t sum[8] = {};
  for (std::int64_t at = 0; at < share; at += 64) {
    for (std::int64_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* line = from + stream * share + at;
      if (kAhead > 0) __builtin_prefetch(line + kAhead, 0, 2);
      std::uint64_t words[8];
      __builtin_memcpy(words, line, sizeof words);
      for (int i = 0; i < 8; ++i) sum[i] += words[i];
    }
  }
  return std::accumulate(std::begin(sum), std::end(sum), std::uint64_t{0});
}

#if defined(__x86_64__)
template <std::int64_t kStreams, std::int64_t kAhead>
[[gnu::target("avx512f")]] std::uint64_t read_avx512(const std::byte* from, std::int64_t bytes) {
  const std::int64_t share = bytes / kStreams;
  __m512i a = _mm512_setzero_si512();
  __m512i b = _mm512_setzero_si512();
  for (std::int64_t at = 0; at < share; at += 128) {
    for (std::int64_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* line = from + stream * share + at;
      if (kAhead > 0) __builtin_prefetch(line + kAhead, 0, 2);
      if (kAhead > 0) __builtin_prefetch(line + kAhead + 64, 0, 2);
      a = _mm512_add_epi64(a, _mm512_loadu_si512(line));
      b = _mm512_add_epi64(b, _mm512_loadu_si512(line + 64));
    }
  }
  std::uint64_t words[8];
  _mm512_storeu_si512(words, _mm512_add_epi64(a, b));
  return std::accumulate(std::begin(words), std::end(words), std::uint64_t{0});
}
#endif

std::vector<ReadKernel> kernels_of_this_machine() {
  std::vector<ReadKernel> kernels{read_plain<1, 0>, read_plain<1, 4096>, read_plain<4, 0>};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    kernels.insert(kernels.end(), {read_avx512<1, 0>, read_avx512<1, 4096>, read_avx512<1, 16384>,
                                   read_avx512<4, 0>, read_avx512<4, 4096>});
  }
#endif
  return kernels;
}

// What a worker of read_together is given. A line of its own for each result.
struct Job {
  ReadKernel kernel;
  const std::byte* from;
  std::int64_t share;
  std::array<std::array<std::uint64_t, 8>, CpuWorkers::kMaxThreads> sums;
};

}  // namespace

std::span<const ReadKernel> read_kernels() {
  static const std::vector<ReadKernel> kernels = kernels_of_this_machine();
  return kernels;
}

std::int64_t read_together(CpuWorkers& workers, ReadKernel kernel, const std::byte* from,
                           std::int64_t bytes) {
  const std::int64_t unit = kReadUnit * workers.num_threads();
  Job job{kernel, from, (bytes + unit - 1) / unit * kReadUnit, {}};
  workers.run(
      [](void* argument, std::int32_t worker) {
        Job& j = *static_cast<Job*>(argument);
        volatile std::uint64_t& sum = j.sums[static_cast<std::size_t>(worker)][0];
        sum = j.kernel(j.from + worker * j.share, j.share);
      },
      &job);
  return job.share * workers.num_threads();
}

}  // namespace kvarena::meter
