#include "kvarena/capacity/gpu_spec.hpp"

#include "capacity/ascii.hpp"

#include <vector>

namespace kvarena::capacity {
namespace {

// Where figures were read. Driver's totals: what nvidia-smi, NVML or rocminfo printed on such a
// card.
constexpr const char* kModal = "nvidia-smi, github.com/modal-labs/modal-client/pull/2797";
constexpr const char* kConfigurator =
    "NVIDIA's planner: github.com/ai-dynamo/aiconfigurator, systems/*.yaml at 095f58a5";
constexpr const char* kA10 = "data sheet: NVIDIA A10 Tensor Core GPU (125 TFLOPS BF16, 600 GB/s)";
constexpr const char* kA100 =
    "data sheet: NVIDIA A100 Tensor Core GPU (312 TFLOPS BF16; 40 GB: 1,555 GB/s)";
constexpr const char* kAmpere =
    "NVIDIA Ampere GA102 GPU Architecture V2.0, appendix A (384 bits x 19.5 Gb/s)";
constexpr const char* kAda =
    "NVIDIA Ada GPU Architecture, appendix A: BF16 with FP32 accumulate, dense";
constexpr const char* kRtxBlackwell =
    "NVIDIA RTX Blackwell GPU Architecture, table 3: BF16 with FP32 accumulate, dense";
constexpr const char* kRtxBlackwellMemory =
    "NVIDIA RTX Blackwell GPU Architecture (512 bits x 28 Gb/s)";
constexpr const char* kServingSim =
    "github.com/casys-kaist/LLMServingSim at 5daddb21, bench/examples/RTX4090";
constexpr const char* kMi300x =
    "data sheet: AMD Instinct MI300X Accelerator (1,307.4 TFLOPS BF16, 5.3 TB/s)";

struct Row {
  const char* name;
  const char* vendor;
  std::int64_t memory_mib;         // of the driver
  std::int64_t cuda_memory_bytes;  // 0: unknown
  std::int64_t bandwidth_gbs;      // 10^9 bytes a second
  std::int64_t bf16_gflops;        // 10^9 operations a second
  std::int32_t num_sms;
  const char* memory_source;
  const char* bandwidth_source;
  const char* flops_source;
};

// Multiprocessors (compute units of AMD): vendors' data sheets. GeForce cards accumulate in f32 at
// half the rate of f16. Where a vendor's peak is one with sparsity, half of it stands here.
constexpr Row kRows[] = {
    {"A10", "NVIDIA", 23'028, 0, 600, 125'000, 72,
     "NVML, github.com/mayooot/detect-gpu/issues/3 (24,146,608,128 B)", kA10, kA10},
    {"L4", "NVIDIA", 23'034, 0, 300, 121'000, 58, kModal, kConfigurator, kConfigurator},
    {"L40S", "NVIDIA", 46'068, 0, 864, 362'050, 142, kModal, kConfigurator, kConfigurator},
    {"A100-40GB-SXM", "NVIDIA", 40'960, 0, 1'555, 312'000, 108, kModal, kA100, kA100},
    {"A100-80GB-SXM", "NVIDIA", 81'920, 0, 2'039, 312'000, 108, kModal, kConfigurator,
     kConfigurator},
    {"H100-SXM", "NVIDIA", 81'559, 0, 3'350, 989'000, 132,
     "nvidia-smi, github.com/NVIDIA/nccl/issues/1264", kConfigurator, kConfigurator},
    {"H100-PCIe", "NVIDIA", 81'559, 0, 2'000, 756'500, 114,
     "nvidia-smi, github.com/lambdal/deeplearning-benchmark/issues/21", kConfigurator,
     kConfigurator},
    {"H200-SXM", "NVIDIA", 143'771, 150'109'880'320, 4'800, 989'000, 132,
     "nvidia-smi, github.com/sgl-project/sglang/issues/3196; of CUDA: docs/reports, driver "
     "580.159.04",
     kConfigurator, kConfigurator},
    {"B200", "NVIDIA", 183'359, 0, 8'000, 2'250'000, 148,
     "nvidia-smi, github.com/NVIDIA/TensorRT-LLM/issues/10278",
     "data sheet: NVIDIA DGX B200 (64 TB/s for 8)", kConfigurator},
    {"RTX-3090", "NVIDIA", 24'576, 0, 936, 71'200, 82,
     "nvidia-smi, github.com/noonghunna/club-3090/issues/390", kAmpere, kRtxBlackwell},
    {"RTX-4090", "NVIDIA", 24'564, 25'250'627'584, 1'008, 165'200, 128,
     "nvidia-smi, github.com/RLinf/RLinf/issues/255; of CUDA: a run of vLLM 0.19, there as "
     "bandwidth",
     kServingSim, kAda},
    {"RTX-5090", "NVIDIA", 32'607, 0, 1'792, 209'500, 170,
     "nvidia-smi, github.com/noonghunna/club-3090/issues/617", kRtxBlackwellMemory, kRtxBlackwell},
    {"MI300X", "AMD", 196'592, 0, 5'300, 1'307'400, 304,
     "rocminfo, github.com/ROCm/legacy-rocm-build/issues/4750 (8 partitions of 25,767,706,624 B)",
     kMi300x, kMi300x},
};

GpuSpec spec_of(const Row& row) {
  constexpr std::int64_t kGiga = 1'000'000'000;
  GpuSpec gpu;
  gpu.name = row.name;
  gpu.vendor = row.vendor;
  gpu.memory_bytes = row.memory_mib << 20;
  if (row.cuda_memory_bytes > 0) gpu.cuda_memory_bytes = row.cuda_memory_bytes;
  gpu.bandwidth_bytes_per_second = row.bandwidth_gbs * kGiga;
  gpu.bf16_flops_per_second = row.bf16_gflops * kGiga;
  gpu.num_sms = row.num_sms;
  gpu.memory_source = row.memory_source;
  gpu.bandwidth_source = row.bandwidth_source;
  gpu.flops_source = row.flops_source;
  return gpu;
}

std::vector<GpuSpec> all_specs() {
  std::vector<GpuSpec> specs;
  for (const Row& row : kRows) specs.push_back(spec_of(row));
  return specs;
}

}  // namespace

std::span<const GpuSpec> gpu_presets() {
  static const std::vector<GpuSpec> specs = all_specs();
  return specs;
}

std::vector<std::string_view> gpu_preset_names() {
  std::vector<std::string_view> names;
  for (const GpuSpec& gpu : gpu_presets()) names.emplace_back(gpu.name);
  return names;
}

const GpuSpec* find_gpu(std::string_view name) {
  for (const GpuSpec& gpu : gpu_presets()) {
    if (same_letters(gpu.name, name)) return &gpu;
  }
  return nullptr;
}

}  // namespace kvarena::capacity
