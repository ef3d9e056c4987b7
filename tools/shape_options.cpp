#include "tools/shape_options.hpp"

#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <vector>

namespace kvarena::tools {
namespace {

constexpr std::int32_t kMaxShapeNumber = 4096;
constexpr std::int32_t kMaxBlockSize = 65536;
constexpr std::array<DType, 5> kTypes{DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3,
                                      DType::int8};

std::optional<DType> dtype_of(std::string_view name) {
  for (const DType dtype : kTypes) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace

ChosenShape chosen_shape_of(const ModelShape& model) {
  ChosenShape shape;
  shape.name = model.name;
  shape.num_layers = model.num_layers;
  shape.num_q_heads = model.num_q_heads;
  shape.num_kv_heads = model.num_kv_heads;
  shape.head_dim_k = shape.head_dim_v = model.head_dim;
  shape.dtype = model.dtype;
  shape.max_position = model.max_position;
  return shape;
}

void ShapeOptions::declare(CLI::App& command) {
  const OptionGroup group(command, "Model shape");
  const auto number = [&](const char* name, std::int32_t& value, const char* help) {
    add_count_option(command, name, value, 1, kMaxShapeNumber, help);
  };
  number("--layers", layers_, "Attention layers");
  number("--kv-heads", kv_heads_, "KV heads");
  number("--q-heads", q_heads_, "Query heads, a multiple of the KV heads");
  number("--head-dim", head_dim_, "Elements a head");
  number("--head-dim-v", head_dim_v_, "Elements a head of V, where it differs from K");
  std::vector<std::string> names;
  for (const DType dtype : kTypes) names.emplace_back(name_of(dtype));
  add_choice_option(command, "--dtype", dtype_, names, "Type of K and V");
  add_count_option(command, "--block-size", block_size_, 1, kMaxBlockSize, "Tokens a block");
}

bool ShapeOptions::any_number() const { return layers_ != 0 || any_heads() || !dtype_.empty(); }

bool ShapeOptions::any_heads() const {
  return kv_heads_ != 0 || q_heads_ != 0 || head_dim_ != 0 || head_dim_v_ != 0;
}

std::optional<DType> ShapeOptions::dtype() const {
  return dtype_.empty() ? std::nullopt : dtype_of(dtype_);
}

std::optional<ChosenShape> ShapeOptions::choose(const Console& console,
                                                const std::string& model) const {
  const ModelShape* known = model.empty() ? nullptr : find_shape(model);
  return choose(console, known != nullptr ? chosen_shape_of(*known) : ChosenShape());
}

std::optional<ChosenShape> ShapeOptions::choose(const Console& console, ChosenShape shape) const {
  shape.block_size = block_size_;
  if (shape.name.empty()) {
    shape.name = "custom";
  } else if (any_number()) {
    shape.name += " (changed)";
  }
  if (layers_ != 0) shape.num_layers = layers_;
  if (kv_heads_ != 0) shape.num_kv_heads = kv_heads_;
  if (q_heads_ != 0) shape.num_q_heads = q_heads_;
  if (shape.num_q_heads == 0) shape.num_q_heads = shape.num_kv_heads;
  if (head_dim_ != 0) shape.head_dim_k = shape.head_dim_v = head_dim_;
  if (head_dim_v_ != 0) shape.head_dim_v = head_dim_v_;
  if (!dtype_.empty()) shape.dtype = *dtype_of(dtype_);

  std::vector<std::string_view> missing;
  if (shape.num_layers == 0) missing.emplace_back("--layers");
  if (shape.num_kv_heads == 0) missing.emplace_back("--kv-heads");
  if (shape.head_dim_k == 0) missing.emplace_back("--head-dim");
  if (!missing.empty()) {
    console.error(
        fmt::format("the model shape is incomplete: {} missing", fmt::join(missing, ", ")),
        "a model's name or file, or at least --layers, --kv-heads and --head-dim",
        "'kvarena shapes' lists the names");
    return std::nullopt;
  }
  // No division by zero: --kv-heads would be missing.
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  if (shape.num_q_heads % shape.num_kv_heads != 0) {
    console.error(
        fmt::format("{} query heads over {} KV heads", shape.num_q_heads, shape.num_kv_heads),
        "a multiple of the KV heads", "change --q-heads or --kv-heads");
    return std::nullopt;
  }
  return shape;
}

std::optional<KvLayout> layout_of(const Console& console, const ChosenShape& shape) {
  UniformLayoutOptions options;
  options.num_layers = shape.num_layers;
  options.num_kv_heads = shape.num_kv_heads;
  options.head_dim_k = shape.head_dim_k;
  options.head_dim_v = shape.head_dim_v;
  options.dtype = shape.dtype;
  options.block_size_tokens = shape.block_size;
  auto layout = KvLayout::create(options);
  if (!layout) {
    console.error(fmt::format("this model shape has no layout: {}", describe(layout.status())), "",
                  "change the shape's numbers or --block-size");
    return std::nullopt;
  }
  return std::move(*layout);
}

}  // namespace kvarena::tools
