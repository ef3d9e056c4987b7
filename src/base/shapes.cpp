#include "kvarena/base/shapes.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

// From the models' public configuration files (config.json on their model pages):
// num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, torch_dtype,
// max_position_embeddings. The table has only models whose layers all have the same shape of K and
// V.
constexpr std::array<ModelShape, 27> kShapes = {{
    {"Gemma-2-27B", 46, 32, 16, 128, DType::bf16, 8192},
    {"Gemma-2-9B", 42, 16, 8, 256, DType::bf16, 8192},
    {"Gemma-3-27B", 62, 32, 16, 128, DType::bf16, 131072},
    {"GLM-4.5", 92, 96, 8, 128, DType::bf16, 131072},
    {"GLM-4.5-Air", 46, 96, 8, 128, DType::bf16, 131072},
    {"gpt-oss-120b", 36, 64, 8, 64, DType::bf16, 131072},
    {"gpt-oss-20b", 24, 64, 8, 64, DType::bf16, 131072},
    {"Llama-2-13B", 40, 40, 40, 128, DType::f16, 4096},
    {"Llama-2-70B", 80, 64, 8, 128, DType::f16, 4096},
    {"Llama-2-7B", 32, 32, 32, 128, DType::f16, 4096},
    {"Llama-3.1-405B", 126, 128, 8, 128, DType::bf16, 131072},
    {"Llama-3.1-70B", 80, 64, 8, 128, DType::bf16, 131072},
    {"Llama-3.1-8B", 32, 32, 8, 128, DType::bf16, 131072},
    {"Llama-4-Scout-17B-16E", 48, 40, 8, 128, DType::bf16, 10485760},
    {"Mistral-7B-v0.1", 32, 32, 8, 128, DType::bf16, 32768},
    {"Mistral-7B-v0.3", 32, 32, 8, 128, DType::bf16, 32768},
    {"Mixtral-8x7B-v0.1", 32, 32, 8, 128, DType::bf16, 32768},
    {"Phi-3-mini-128k-instruct", 32, 32, 32, 96, DType::bf16, 131072},
    {"Phi-3-mini-4k-instruct", 32, 32, 32, 96, DType::bf16, 4096},
    {"Qwen2.5-0.5B", 24, 14, 2, 64, DType::bf16, 32768},
    {"Qwen2.5-32B", 64, 40, 8, 128, DType::bf16, 32768},
    {"Qwen2.5-72B", 80, 64, 8, 128, DType::bf16, 32768},
    {"Qwen2.5-7B", 28, 28, 4, 128, DType::bf16, 32768},
    {"Qwen3-235B-A22B", 94, 64, 4, 128, DType::bf16, 40960},
    {"Qwen3-30B-A3B", 48, 32, 4, 128, DType::bf16, 40960},
    {"Qwen3-32B", 64, 64, 8, 128, DType::bf16, 40960},
    {"Qwen3-8B", 36, 32, 8, 128, DType::bf16, 40960},
}};

char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Compares names without regard to letter case.
bool same_name(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::span<const ModelShape> model_shapes() noexcept { return kShapes; }

const ModelShape* find_model_shape(std::string_view name) noexcept {
  const auto* found = std::find_if(kShapes.begin(), kShapes.end(), [name](const ModelShape& shape) {
    return same_name(shape.name, name);
  });
  return found == kShapes.end() ? nullptr : found;
}

}  // namespace kvarena
