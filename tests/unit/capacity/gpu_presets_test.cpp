// The presets of GPUs: names, units, and every figure of gpu_facts.json.

#include "kvarena/capacity/gpu_spec.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

namespace kvarena::capacity {
namespace {

TEST(GpuPresets, AreFoundInAnyCase) {
  const GpuSpec* gpu = find_gpu("rtx-4090");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->name, "RTX-4090");
  EXPECT_EQ(gpu, find_gpu("RTX-4090"));
  EXPECT_EQ(find_gpu("mi300x"), find_gpu("MI300X"));
  EXPECT_EQ(find_gpu("RTX-409"), nullptr);
  EXPECT_EQ(find_gpu("RTX-40900"), nullptr);
  EXPECT_EQ(find_gpu(""), nullptr);
}

TEST(GpuPresets, HaveUnitsAndSources) {
  std::set<std::string> names;
  for (const GpuSpec& gpu : gpu_presets()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_TRUE(names.insert(gpu.name).second) << "a name twice";
    EXPECT_GT(gpu.memory_bytes, std::int64_t{20} << 30);
    EXPECT_LT(gpu.memory_bytes, std::int64_t{200} << 30);
    EXPECT_LT(gpu.cuda_memory_bytes.value_or(0), gpu.memory_bytes);
    for (const std::string& source : {gpu.memory_source, gpu.bandwidth_source, gpu.flops_source}) {
      const bool is_public = source.find("github.com/") != source.npos ||
                             source.find("data sheet: ") != source.npos ||
                             source.find(" Architecture") != source.npos;
      EXPECT_TRUE(is_public) << source;
      EXPECT_EQ(source.find("recalled"), source.npos);
    }
    // Of every GPU since 2020: a peak in the wrong unit, or a sparse one of the fastest, lies
    // outside.
    const std::int64_t flops_per_byte = gpu.bf16_flops_per_second / gpu.bandwidth_bytes_per_second;
    EXPECT_GT(flops_per_byte, 70);
    EXPECT_LT(flops_per_byte, 450);
  }
}

TEST(GpuPresets, AreThePublishedFigures) {
  std::ifstream file(KVARENA_TEST_DATA "/gpu_facts.json");
  const auto facts = nlohmann::json::parse(file).at("gpus");
  const auto gpus = gpu_presets();
  ASSERT_EQ(gpus.size(), facts.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuSpec& gpu = gpus[i];
    const auto& fact = facts.at(i);
    SCOPED_TRACE(gpu.name);
    EXPECT_EQ(gpu.name, fact.at("name"));
    EXPECT_EQ(gpu.vendor, fact.at("vendor"));
    EXPECT_EQ(gpu.memory_bytes, fact.at("memory_bytes_usable"));
    const std::int64_t of_cuda = gpu.name == "H200-SXM"
                                     ? 150'109'880'320  // of this project's runs: docs/reports
                                     : fact.value("memory_bytes_cuda", std::int64_t{0});
    EXPECT_EQ(gpu.cuda_memory_bytes.value_or(0), of_cuda);
    EXPECT_EQ(gpu.bandwidth_bytes_per_second,
              fact.at("bandwidth_gbs").get<std::int64_t>() * 1'000'000'000);
  }
}

}  // namespace
}  // namespace kvarena::capacity
