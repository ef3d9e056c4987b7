#include "kvarena/capacity/gpu_spec.hpp"

#include "capacity/ascii.hpp"

#include <vector>

namespace kvarena::capacity {
namespace {

// Where figures were read. "Recalled": nobody has read it in a source yet; good to about 1 %.
constexpr const char* kConfigurator = "ai-dynamo/aiconfigurator@095f58a5 systems/*.yaml";
constexpr const char* kConfiguratorRate =
    "bandwidth: ai-dynamo/aiconfigurator@095f58a5 systems/*.yaml; memory: recalled";
constexpr const char* kSheetRate = "bandwidth: vendor's data sheet; memory: recalled";
constexpr const char* kRecalled = "recalled";
constexpr const char* kSheet = "vendor's data sheet: BF16, dense";
constexpr const char* kAda =
    "NVIDIA Ada GPU architecture, appendix A: BF16 with FP32 accumulate, dense";
constexpr const char* kRtxBlackwell =
    "NVIDIA RTX Blackwell GPU architecture, table 3: BF16 with FP32 accumulate, dense";
constexpr const char* kRtx4090Memory =
    "memory: nvidia-smi in RLinf/RLinf issue 255; of CUDA: a run of vLLM 0.19; bandwidth: "
    "casys-kaist/LLMServingSim@5daddb21";
constexpr const char* kH200Memory =
    "memory: recalled; of CUDA: docs/reports, driver 580.159.04; bandwidth: "
    "ai-dynamo/aiconfigurator@095f58a5 systems/*.yaml";
constexpr const char* kB200Memory = "bandwidth: DGX B200, 64 TB/s for 8; memory: recalled";

struct Row {
  const char* name;
  const char* vendor;
  std::int64_t memory_mib;         // of the driver
  std::int64_t cuda_memory_bytes;  // 0: unknown
  std::int64_t bandwidth_gbs;      // 10^9 bytes a second
  std::int64_t bf16_gflops;        // 10^9 operations a second
  std::int32_t num_sms;
  const char* memory_source;
  const char* flops_source;
};

// Multiprocessors (compute units of AMD): vendors' data sheets. GeForce cards accumulate in f32 at
// half the rate of f16. Where a vendor's peak is one with sparsity, half of it stands here.
constexpr Row kRows[] = {
    {"A10", "NVIDIA", 23'028, 0, 600, 125'000, 72, kSheetRate, kSheet},
    {"L4", "NVIDIA", 23'034, 0, 300, 121'000, 58, kConfiguratorRate, kConfigurator},
    {"L40S", "NVIDIA", 46'068, 0, 864, 362'050, 142, kConfigurator, kConfigurator},
    {"A100-40GB-SXM", "NVIDIA", 40'960, 0, 1'555, 312'000, 108, kRecalled, kSheet},
    {"A100-80GB-SXM", "NVIDIA", 81'920, 0, 2'039, 312'000, 108, kConfigurator, kConfigurator},
    {"H100-SXM", "NVIDIA", 81'559, 0, 3'350, 989'000, 132, kConfiguratorRate, kConfigurator},
    {"H100-PCIe", "NVIDIA", 81'559, 0, 2'000, 756'500, 114, kConfiguratorRate, kConfigurator},
    {"H200-SXM", "NVIDIA", 143'771, 150'109'880'320, 4'800, 989'000, 132, kH200Memory,
     kConfigurator},
    {"B200", "NVIDIA", 183'359, 0, 8'000, 2'250'000, 148, kB200Memory, kConfigurator},
    {"RTX-3090", "NVIDIA", 24'576, 0, 936, 71'200, 82, kRecalled, kRtxBlackwell},
    {"RTX-4090", "NVIDIA", 24'564, 25'250'627'584, 1'008, 165'200, 128, kRtx4090Memory, kAda},
    {"RTX-5090", "NVIDIA", 32'607, 0, 1'792, 209'500, 170, kSheetRate, kRtxBlackwell},
    {"MI300X", "AMD", 196'592, 0, 5'300, 1'307'400, 304, kSheetRate, kSheet},
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
