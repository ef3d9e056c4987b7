// What `kvarena plan` computes for one model on one GPU: the plan, and the changes that would make
// it fit where it does not; and what it takes to read a folder of weights first.

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_files.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace kvarena::capacity {
namespace {

PlanOptions options_on(const char* gpu_name) {
  const GpuSpec& gpu = *find_gpu(gpu_name);
  return {.memory_bytes = gpu.cuda_memory_bytes.value_or(gpu.memory_bytes),
          .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = gpu.num_sms}};
}

void plan_with_changes(benchmark::State& state, const char* model_name, PlanOptions options) {
  const ModelSpec model = *find_model_preset(model_name);
  bool is_fitting = false;
  for (auto _ : state) {
    is_fitting = plan(model, options).value().fits;
    benchmark::DoNotOptimize(changes_that_fit(model, options));
  }
  state.SetLabel(is_fitting ? "fits" : "does not fit");
}

void one_gpu(benchmark::State& state) {
  plan_with_changes(state, "Llama-3.1-8B", options_on("H100-SXM"));
}
BENCHMARK(one_gpu)->Unit(benchmark::kMicrosecond);

void no_room_for_weights(benchmark::State& state) {
  plan_with_changes(state, "Llama-3.1-405B", options_on("L4"));
}
BENCHMARK(no_room_for_weights)->Unit(benchmark::kMicrosecond);

void several_groups(benchmark::State& state) {
  PlanOptions options = options_on("H200-SXM");
  options.kept = KeptTokens::model;
  options.batch = 64;
  plan_with_changes(state, "Gemma-3-27B", options);
}
BENCHMARK(several_groups)->Unit(benchmark::kMicrosecond);

void a_million_sequences(benchmark::State& state) {
  PlanOptions options = options_on("H200-SXM");
  options.batch = 1'000'000;
  options.context_tokens = 1;
  options.pipeline_parallel = 8;
  plan_with_changes(state, "Mixtral-8x7B-v0.1", options);
}
BENCHMARK(a_million_sequences)->Unit(benchmark::kMicrosecond);

/// A mixture as Qwen3 publishes it: its config.json, an index, and shards whose headers are whole
/// and whose data is a hole.
class MixtureFolder {
 public:
  MixtureFolder(int num_layers, int num_experts, std::size_t num_shards)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("kvarena-plan-bench-{}-{}", ::getpid(), num_shards)) {
    std::filesystem::create_directory(path_);
    name_tensors(num_layers, num_experts);
    write("config.json",
          fmt::format(R"({{"model_type": "qwen3_moe", "num_hidden_layers": {}, "hidden_size": {},
              "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size":
              {}, "num_experts": {}, "num_experts_per_tok": 8, "moe_intermediate_size": {},
              "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}})",
                      num_layers, kHidden, kVocab, num_experts, kFfn));
    const std::size_t per_shard = (tensors_.size() + num_shards - 1) / num_shards;
    std::string map;
    for (std::size_t shard = 0; shard < num_shards; ++shard) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
      const std::size_t begin = std::min(shard * per_shard, tensors_.size());
      write_shard(name, begin, std::min(begin + per_shard, tensors_.size()), &map);
    }
    write("model.safetensors.index.json",
          fmt::format(R"({{"metadata": {{"total_size": 1}}, "weight_map": {{{}}}}})", map));
  }
  ~MixtureFolder() { std::filesystem::remove_all(path_); }
  MixtureFolder(const MixtureFolder&) = delete;
  MixtureFolder& operator=(const MixtureFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::size_t num_tensors() const { return tensors_.size(); }

 private:
  static constexpr std::int64_t kHidden = 2048;
  static constexpr std::int64_t kVocab = 151'936;
  static constexpr std::int64_t kFfn = 768;
  struct Tensor {
    std::string name;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };

  void name_tensors(int num_layers, int num_experts) {
    tensors_ = {{"lm_head.weight", kVocab, kHidden},
                {"model.embed_tokens.weight", kVocab, kHidden},
                {"model.norm.weight", kHidden, 1}};
    for (int layer = 0; layer < num_layers; ++layer) {
      const auto add = [&](std::string_view name, std::int64_t rows, std::int64_t columns) {
        tensors_.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), rows, columns});
      };
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
        add(norm, kHidden, 1);
      }
      add("self_attn.q_norm", 128, 1);
      add("self_attn.k_norm", 128, 1);
      add("self_attn.q_proj", 4096, kHidden);
      add("self_attn.k_proj", 512, kHidden);
      add("self_attn.v_proj", 512, kHidden);
      add("self_attn.o_proj", kHidden, 4096);
      add("mlp.gate", num_experts, kHidden);
      for (int expert = 0; expert < num_experts; ++expert) {
        add(fmt::format("mlp.experts.{}.gate_proj", expert), kFfn, kHidden);
        add(fmt::format("mlp.experts.{}.up_proj", expert), kFfn, kHidden);
        add(fmt::format("mlp.experts.{}.down_proj", expert), kHidden, kFfn);
      }
    }
  }
  void write_shard(const std::string& name, std::size_t begin, std::size_t end, std::string* map) {
    std::string header = R"({"__metadata__":{"format":"pt"})";
    std::int64_t offset = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Tensor& tensor = tensors_[i];
      const std::int64_t next = offset + 2 * tensor.rows * tensor.columns;
      header += fmt::format(R"(,"{}":{{"dtype":"BF16","shape":[{},{}],"data_offsets":[{},{}]}})",
                            tensor.name, tensor.rows, tensor.columns, offset, next);
      *map += fmt::format("{}\n    \"{}\": \"{}\"", map->empty() ? "" : ",", tensor.name, name);
      offset = next;
    }
    header += "}";
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
    write(name, bytes + header);
    const auto data = static_cast<std::uintmax_t>(offset);
    std::filesystem::resize_file(path_ / name, bytes.size() + header.size() + data);
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

  std::filesystem::path path_;
  std::vector<Tensor> tensors_;
};

void a_folder_of_weights(benchmark::State& state) {
  const MixtureFolder folder(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                             static_cast<std::size_t>(state.range(2)));
  const PlanOptions options = options_on("H200-SXM");
  std::string why;
  for (auto _ : state) {
    const Result<ModelSpec> model = read_model(folder.path(), why);
    if (!model) {
      state.SkipWithError(why.c_str());
      break;
    }
    benchmark::DoNotOptimize(plan(*model, options));
  }
  state.SetLabel(fmt::format("{} tensors", folder.num_tensors()));
}
BENCHMARK(a_folder_of_weights)
    ->ArgNames({"layers", "experts", "files"})
    ->Args({48, 128, 16})
    ->Args({61, 256, 163})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvarena::capacity

BENCHMARK_MAIN();
