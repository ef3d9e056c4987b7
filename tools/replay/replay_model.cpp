#include "tools/replay/replay_command.hpp"

#include "tools/command_line.hpp"
#include "tools/nearest_name.hpp"
#include "tools/option_values.hpp"

#include "capacity/planning.hpp"
#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/model_presets.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

namespace kvarena::tools {
namespace {

using capacity::CacheGroup;
using capacity::CacheKind;
using capacity::KeptTokens;
using capacity::ModelSpec;

std::optional<ModelSpec> preset_of(const std::string& text) {
  if (auto preset = capacity::find_model_preset(text)) return preset;
  return capacity::find_model_preset(model_name_of(text, capacity::model_preset_names()));
}

/// Whether K and V of all tokens are kept in all layers, which are alike.
bool is_uniform(const capacity::ModelGroups& groups) {
  const LayerGroup& first = groups.groups.front();
  const bool shares = std::ranges::any_of(
      first.layers, [](const GroupLayer& layer) { return layer.reads_layer >= 0; });
  return groups.groups.size() == 1 && first.kind == PagedKind::full && !first.value_in_key &&
         first.index_dim == 0 && !shares;
}

/// Leaves the first layers of a model.
void keep_layers(ModelSpec& model, std::int32_t count) {
  for (CacheGroup& group : model.groups) {
    std::erase_if(group.layers, [count](const auto& layer) { return layer.layer >= count; });
    group.num_layers = static_cast<std::int32_t>(
        std::ranges::count_if(group.layers, [](const auto& its) { return its.reads_layer < 0; }));
    group.num_sharing_layers = static_cast<std::int32_t>(group.layers.size()) - group.num_layers;
  }
  std::erase_if(model.groups, [](const CacheGroup& group) { return group.num_layers == 0; });
  model.shape.num_layers = count;
  model.name += fmt::format(" (first {} layers)", count);
}

/// Words for what groups_of refuses.
std::string refusal_of(const Status& status) {
  if (status.option == Option::index_dim) return "an index of more than 128 elements";
  if (status.option == Option::format) return "a type of K and V that no pool has";
  return describe(status);
}

/// The heads of the first group with K and V.
ChosenShape shape_of(const ModelSpec& model, const capacity::ModelGroups& groups,
                     std::int32_t block_size) {
  const auto first = std::ranges::find_if(
      groups.groups, [](const LayerGroup& group) { return group.kind != PagedKind::state; });
  ChosenShape shape;
  shape.name = model.name;
  shape.num_layers = model.shape.num_layers;
  shape.num_q_heads = std::max(model.shape.num_q_heads, first->num_kv_heads);
  shape.num_kv_heads = first->num_kv_heads;
  shape.head_dim_k = first->head_dim_k;
  shape.head_dim_v = first->head_dim_v;
  shape.dtype = first->dtype;
  shape.block_size = block_size;
  shape.max_position = model.shape.max_position;
  return shape;
}

}  // namespace

Finding replay_model_finding(const std::string& text) {
  return preset_of(text) ? Finding{} : shape_finding(text);
}

void ReplayModel::declare(CLI::App& command) {
  command.add_option("--model", name_, "Built-in model (see 'kvarena plan --list')")
      ->type_name("MODEL")
      ->check([](const std::string& text) { return refusal_text(replay_model_finding(text)); })
      ->capture_default_str()
      ->group("Model shape");
  retention_option_ =
      add_choice_option(command, "--retention", retention_, {"model", "full"},
                        "Tokens kept: those that the model's layers still read, or all, also in "
                        "layers with a window")
          ->group("Model shape");
}

std::optional<ChosenModel> ReplayModel::choose(const Console& console,
                                               const ShapeOptions& numbers) const {
  auto preset = preset_of(name_);
  const bool is_by_heads = numbers.any_heads();
  if (preset && !is_by_heads) return choose_groups(console, numbers, std::move(*preset));
  if (is_by_heads && retention_option_->count() > 0 && retention_ == "model") {
    console.error("--retention model with numbers of heads",
                  "a built-in model: in a shape by numbers all layers keep all tokens",
                  "leave --retention or --kv-heads, --q-heads, --head-dim and --head-dim-v out");
    return std::nullopt;
  }
  auto shape = numbers.choose(console, name_);
  if (!shape) return std::nullopt;
  return ChosenModel{.shape = std::move(*shape), .groups = {}};
}

std::optional<ChosenModel> ReplayModel::choose_groups(const Console& console,
                                                      const ShapeOptions& numbers,
                                                      ModelSpec model) const {
  const auto refuse = [&](std::string what, const char* expected, const char* advice) {
    console.error(fmt::format("--model {}: {}", model.name, what), expected, advice);
    return std::nullopt;
  };
  const std::string format =
      numbers.dtype() ? std::string(name_of(*numbers.dtype())) : model.kv_format;
  const auto* storage = capacity::find_storage_format(format);
  if (storage == nullptr) return refuse("K and V of type " + format, "", "choose a --dtype");
  capacity::KvMemoryOptions options{
      .format = *storage,
      .kept = retention_ == "full" ? KeptTokens::full : KeptTokens::model,
      .block_size_tokens = numbers.block_size()};
  ChosenModel chosen{
      .shape = {}, .groups = {}, .longest_context = capacity::longest_context(model)};
  auto all = capacity::groups_of(model, options);
  if (!all) return refuse(refusal_of(all.status()), "layers that a pool can hold", "");
  if (is_uniform(*all)) {
    auto shape = numbers.choose(console, shape_of(model, *all, numbers.block_size()));
    if (!shape) return std::nullopt;
    chosen.shape = std::move(*shape);
    return chosen;
  }
  if (numbers.layers() > model.shape.num_layers) {
    return refuse(fmt::format("its first {} layers", numbers.layers()),
                  fmt::format("at most {}", model.shape.num_layers).c_str(), "lower --layers");
  }
  if (numbers.layers() > 0) {
    keep_layers(model, numbers.layers());
    all = capacity::groups_of(model, options);
    if (!all) return refuse(refusal_of(all.status()), "layers that a pool can hold", "");
  }
  const auto is_state = [](const LayerGroup& group) { return group.kind == PagedKind::state; };
  if (std::ranges::all_of(all->groups, is_state)) {
    return refuse("recurrent layers alone", "a layer with attention, whose blocks have the tokens",
                  numbers.layers() > 0 ? "raise --layers" : "choose another model");
  }
  // A kernel that reads one slot and writes another: then the cache copies no states.
  for (LayerGroup& group : all->groups) {
    if (is_state(group)) group.mode = StateMode::read_write;
  }
  chosen.groups = std::move(*all);
  chosen.shape = shape_of(model, chosen.groups, numbers.block_size());
  return chosen;
}

}  // namespace kvarena::tools
