#include "tools/plan/model_numbers.hpp"

#include "tools/option_types.hpp"

#include "capacity/parameters.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string_view>
#include <vector>

namespace kvarena::tools {

using capacity::ModelSpec;

void ModelNumbers::declare(CLI::App& command, CLI::Option& model) {
  constexpr const char* kGroup = "A model by numbers";
  const auto number = [&](const char* name, auto& value, std::int64_t largest, const char* help) {
    return add_count_option(command, name, value, 1, largest, help)->group(kGroup);
  };
  const auto of_layers = [&](const char* name, auto& value, std::int64_t largest,
                             const char* help) {
    number(name, value, largest, help)->excludes(&model);
  };
  of_layers("--layers", shape_.num_layers, 4096, "Layers");
  of_layers("--kv-heads", shape_.num_kv_heads, 4096, "KV heads");
  of_layers("--q-heads", shape_.num_q_heads, 65536,
            "Query heads, a multiple of the KV heads; without it as many");
  of_layers("--head-dim", shape_.head_dim, 4096, "Elements a head");
  of_layers("--hidden", shape_.hidden, 1 << 20,
            "Elements of the residual stream; heads x head dim");
  of_layers("--ffn", shape_.ffn, 1 << 24, "Intermediate elements of the gated MLP");
  of_layers("--vocab", shape_.vocab, std::int64_t{1} << 31, "Rows of the embedding");
  command.add_flag("--tied", shape_.tied_embeddings, "The output head is the embedding")
      ->group(kGroup)
      ->excludes(&model);
  of_layers("--max-position", shape_.max_position, std::int64_t{1} << 31, "The longest context");
  of_layers("--window", window_, 1 << 30, "Sliding window of every layer, tokens");
  number("--parameters", parameters_, std::int64_t{1} << 50,
         "All parameters, where numbers, --model's file or preset do not tell them");
  add_bytes_option(command, "--weights-bytes", weights_bytes_,
                   "All weights of all ranks together, whatever else tells them")
      ->group(kGroup);
}

bool ModelNumbers::any() const noexcept {
  return shape_.num_layers != 0 || shape_.num_kv_heads != 0 || shape_.head_dim != 0 ||
         shape_.num_q_heads != 0 || shape_.hidden != 0 || shape_.ffn != 0 || shape_.vocab != 0 ||
         shape_.max_position != 0 || shape_.tied_embeddings || window_ != 0;
}

bool ModelNumbers::is_complete(Finding& refusal) const {
  std::vector<std::string_view> missing;
  if (shape_.num_layers == 0) missing.emplace_back("--layers");
  if (shape_.num_kv_heads == 0) missing.emplace_back("--kv-heads");
  if (shape_.head_dim == 0) missing.emplace_back("--head-dim");
  if (!missing.empty()) {
    refusal = {
        .found = fmt::format("the model is incomplete: {} missing", fmt::join(missing, ", ")),
        .expected = "--model with a built-in name or a file, or its numbers",
        .advice = "'kvarena plan --help' lists them"};
    return false;
  }
  if (shape_.num_q_heads % shape_.num_kv_heads == 0) return true;
  refusal = {.found = fmt::format("{} query heads over {} KV heads", shape_.num_q_heads,
                                  shape_.num_kv_heads),
             .expected = "a multiple of the KV heads",
             .advice = "change --q-heads or --kv-heads"};
  return false;
}

std::optional<ModelSpec> ModelNumbers::model(Finding& refusal) const {
  if (!is_complete(refusal)) return std::nullopt;
  ModelSpec model;
  model.name = "custom";
  model.source = "numbers";
  model.architecture = "llama";
  model.shape = shape_;
  if (model.shape.num_q_heads == 0) model.shape.num_q_heads = shape_.num_kv_heads;
  if (model.shape.hidden == 0) model.shape.hidden = model.shape.num_q_heads * shape_.head_dim;
  model.groups.push_back(
      {.kind = window_ > 0 ? capacity::CacheKind::window : capacity::CacheKind::full,
       .num_layers = shape_.num_layers,
       .num_kv_heads = shape_.num_kv_heads,
       .head_dim_k = shape_.head_dim,
       .head_dim_v = shape_.head_dim,
       .limit_tokens = window_});
  if (parameters_ == 0) {
    capacity::count_parameters(model);
  } else {
    model.parameters = parameters_;
    model.parameters_source = "--parameters";
  }
  model.weights_bytes = weights_bytes_;
  const bool has_mlp = shape_.ffn > 0;
  const bool has_logits = shape_.vocab > 0;
  if (!has_mlp || !has_logits) {
    model.notes.push_back(fmt::format("activations leave out {}",
                                      has_logits ? "the MLP: --ffn is not given"
                                      : has_mlp
                                          ? "logits: --vocab is not given"
                                          : "logits and the MLP: --ffn and --vocab are not given"));
  }
  return model;
}

void ModelNumbers::add_weights(ModelSpec& model) const {
  if (weights_bytes_) {
    model.weights_bytes = weights_bytes_;
    model.weights_by_dtype.clear();
    model.notes.emplace_back("weights are those of --weights-bytes");
  }
  if (parameters_ == 0) return;
  if (model.parameters || model.weights_bytes) {
    model.notes.emplace_back("--parameters is not used: the model's own are known");
    return;
  }
  model.parameters_about = parameters_;
  model.parts = capacity::parts_of_total(model.shape, parameters_, "--parameters");
  model.parameters_source = "--parameters";
}

}  // namespace kvarena::tools
