#include "tools/command_line.hpp"

#include "tools/option_values.hpp"
#include "tools/plan/plan_inputs.hpp"
#include "tools/result_file.hpp"
#include "tools/shape_options.hpp"

#include "kvarena/base/shapes.hpp"
#include "kvarena/capacity/kv_memory.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kShapesFooter = R"(
Examples:
  kvarena shapes                                    every built-in shape
  kvarena shapes Llama-3.1-8B                       one shape, with the arithmetic
  kvarena shapes Llama-3.1-8B --pool-bytes 24GiB    and how many tokens a pool of that size holds
  kvarena shapes Llama-3.1-8B --dtype int8          a built-in shape with one number changed
  kvarena shapes ./model/config.json                a model's file: config.json, GGUF, a folder
  kvarena shapes --layers 24 --kv-heads 2 --head-dim 64 --dtype bf16 --json -
)";

Json json_of(const ChosenShape& shape, const KvLayout& layout) {
  Json json;
  json["name"] = shape.name;
  json["layers"] = shape.num_layers;
  json["q_heads"] = shape.num_q_heads;
  json["kv_heads"] = shape.num_kv_heads;
  json["head_dim_k"] = shape.head_dim_k;
  json["head_dim_v"] = shape.head_dim_v;
  json["dtype"] = name_of(shape.dtype);
  json["block_size"] = shape.block_size;
  json["bytes_per_token"] = layout.bytes_per_token();
  json["bytes_per_block"] = layout.block_bytes();
  json["max_position"] = shape.max_position;
  return json;
}

/// The shape of a model whose layers all keep K and V of every token; of others none.
std::optional<ChosenShape> uniform_shape_of(const capacity::ModelSpec& model) {
  const capacity::CacheGroup& group = model.groups.front();
  const capacity::StorageFormat* format = capacity::find_storage_format(model.kv_format);
  const auto dtype = format != nullptr ? capacity::dtype_of(*format) : std::nullopt;
  const bool is_windowed = group.kind == capacity::CacheKind::window;
  if (model.groups.size() > 1 || !dtype || group.num_sharing_layers > 0 ||
      (group.kind != capacity::CacheKind::full && !is_windowed)) {
    return std::nullopt;
  }
  ChosenShape shape;
  shape.name = model.name;
  shape.num_layers = group.num_layers;
  shape.num_kv_heads = group.num_kv_heads;
  shape.num_q_heads = model.shape.num_q_heads;
  shape.head_dim_k = group.head_dim_k;
  shape.head_dim_v = group.head_dim_v;
  shape.dtype = *dtype;
  shape.max_position = model.shape.max_position;
  return shape;
}

class ShapesCommand {
 public:
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console) const;

 private:
  ExitCode list_all(const Console& console) const;
  ExitCode show_one(const Console& console, const ChosenShape& shape) const;
  ExitCode show_model(const Console& console) const;
  ExitCode show_groups(const Console& console, const capacity::ModelSpec& model) const;

  std::string model_;
  std::string json_;
  ShapeOptions shape_;
  std::optional<std::int64_t> pool_bytes_;
  std::int64_t context_ = 0;
};

CLI::App* ShapesCommand::declare(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "shapes",
      "Bytes of KV cache per token and per block, for models by name or file, or numbers");
  command->footer(kShapesFooter);
  command->add_option("MODEL", model_,
                      "A built-in model or a file; without it (and without numbers), all");
  shape_.declare(*command);
  add_bytes_option(*command, "--pool-bytes", pool_bytes_,
                   "Also say how many blocks and tokens a pool of this size holds, e.g. 24GiB");
  add_count_option(*command, "--context", context_, 1, std::int64_t{1} << 31,
                   "Also say what one sequence of this many tokens takes");
  declare_json_option(*command, json_);
  return command;
}

ExitCode ShapesCommand::run(const Console& console) const {
  if (!are_different_files(console, {{"--json", json_}}, {"the model", model_})) {
    return ExitCode::usage;
  }
  if (model_.empty() && !shape_.any_number()) {
    if (!pool_bytes_ && context_ == 0) return list_all(console);
    console.error("--pool-bytes and --context need a shape", "a MODEL or the numbers of a shape",
                  "for example: kvarena shapes Llama-3.1-8B --pool-bytes 24GiB");
    return ExitCode::usage;
  }
  if (!model_.empty() && find_model_shape(model_) == nullptr) return show_model(console);
  const auto shape = shape_.choose(console, model_);
  return shape ? show_one(console, *shape) : ExitCode::usage;
}

ExitCode ShapesCommand::show_model(const Console& console) const {
  PlanRefusal refusal;
  const auto model = find_model(model_, refusal);
  if (!model) {
    console.error(refusal.what);
    return refusal.code;
  }
  if (const auto uniform = uniform_shape_of(*model)) {
    const auto shape = shape_.choose(console, *uniform);
    return shape ? show_one(console, *shape) : ExitCode::usage;
  }
  if (!shape_.any_number()) return show_groups(console, *model);
  console.error(fmt::format("{} has layers of several kinds, or latents", model->name),
                "no numbers beside it", "'kvarena plan' takes another type of K and V");
  return ExitCode::usage;
}

ExitCode ShapesCommand::show_groups(const Console& console,
                                    const capacity::ModelSpec& model) const {
  const capacity::StorageFormat* own = capacity::find_storage_format(model.kv_format);
  const auto groups = capacity::group_memory(
      model, {.format = own != nullptr ? *own : *capacity::find_storage_format("bf16"),
              .kept = capacity::KeptTokens::model,
              .block_size_tokens = shape_.block_size()});
  if (!groups || pool_bytes_) {
    console.error(groups ? fmt::format("a pool of {} has no one size of block", model.name)
                         : describe(groups.status()),
                  groups ? "no --pool-bytes" : "a model whose layers have a layout",
                  "'kvarena plan' sizes the pools of such a model");
    return ExitCode::usage;
  }
  Json json{{"name", model.name},
            {"block_size", shape_.block_size()},
            {"dtype", model.kv_format},
            {"max_position", model.shape.max_position},
            {"groups", Json::array()}};
  std::string text = fmt::format("{}{}{}: K and V of a sequence, {}\n", console.bold(console.out),
                                 model.name, console.plain(console.out), model.kv_format);
  for (const capacity::GroupMemory& group : *groups) {
    const bool has_blocks = group.block_size_tokens > 0;
    const std::string formula = capacity::formula_of(group);
    text += fmt::format("  {:<18} {:>3} layers  {}\n  {:<18} {} = {} B\n", name_of(group.kind),
                        group.num_layers, formula, has_blocks ? "  one block" : "  one state",
                        group.arithmetic, grouped(group.unit_bytes));
    json["groups"].push_back({{"kind", name_of(group.kind)},
                              {"layers", group.num_layers},
                              {"kv_heads", group.num_kv_heads},
                              {"bytes_per_token", group.bytes_per_token},
                              {"index_bytes_per_token", group.index_bytes_per_token},
                              {"unit_bytes", group.unit_bytes},
                              {"formula", formula}});
  }
  for (const std::int64_t tokens : {model.shape.max_position, context_}) {
    if (tokens == 0) continue;
    const std::int64_t bytes = capacity::bytes_at(*groups, tokens);
    text += fmt::format("  {} tokens take {}\n", grouped(tokens), human_bytes(bytes));
    if (tokens == context_) json["context"] = {{"tokens", tokens}, {"bytes", bytes}};
  }
  return print_result(console, json_, text, json);
}

ExitCode ShapesCommand::list_all(const Console& console) const {
  Json list = Json::array();
  std::string text =
      fmt::format("{:<26} {:>6} {:>7} {:>8} {:>8} {:>5} {:>13} {:>14}\n", "model", "layers",
                  "q heads", "kv heads", "head dim", "type", "bytes / token", "bytes / block");
  for (const ModelShape& model : model_shapes()) {
    ChosenShape shape = chosen_shape_of(model);
    shape.block_size = shape_.block_size();
    const auto layout = layout_of(console, shape);
    if (!layout) return ExitCode::usage;
    list.push_back(json_of(shape, *layout));
    text += fmt::format("{:<26} {:>6} {:>7} {:>8} {:>8} {:>5} {:>13} {:>14}\n", shape.name,
                        shape.num_layers, shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k,
                        name_of(shape.dtype), grouped(layout->bytes_per_token()),
                        grouped(layout->block_bytes()));
  }
  text += fmt::format("A block holds {} tokens (--block-size).\n", shape_.block_size());
  return print_result(console, json_, text,
                      {{"block_size", shape_.block_size()}, {"shapes", list}});
}

ExitCode ShapesCommand::show_one(const Console& console, const ChosenShape& shape) const {
  const auto layout = layout_of(console, shape);
  if (!layout) return ExitCode::usage;
  const std::int64_t token = layout->bytes_per_token();
  const std::int64_t block = layout->block_bytes();
  Json json = json_of(shape, *layout);
  std::string text = fmt::format(
      "{}{}{}: {} layers, {} query heads over {} KV heads, head dim {}{}, {}\n"
      "  per token   {} layers x {} heads x ({} + {}) elements x {} B = {} B\n"
      "  per block   {} tokens x {} B = {} B ({})\n",
      console.bold(console.out), shape.name, console.plain(console.out), shape.num_layers,
      shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k,
      shape.head_dim_v != shape.head_dim_k ? fmt::format(" (V {})", shape.head_dim_v) : "",
      name_of(shape.dtype), shape.num_layers, shape.num_kv_heads, shape.head_dim_k,
      shape.head_dim_v, bytes_of(shape.dtype), grouped(token), shape.block_size, grouped(token),
      grouped(block), human_bytes(block));
  if (block != token * shape.block_size) {
    text +=
        fmt::format("              of it {} B of alignment\n", block - token * shape.block_size);
  }
  const auto sequence_line = [&](std::int64_t tokens, const char* what) {
    const std::int64_t blocks = (tokens + shape.block_size - 1) / shape.block_size;
    text += fmt::format("  {} {} tokens take {} blocks, {}\n", what, grouped(tokens),
                        grouped(blocks), human_bytes(blocks * block));
    return blocks;
  };
  if (shape.max_position > 0) sequence_line(shape.max_position, "one full context:");
  if (context_ > 0) {
    const std::int64_t blocks = sequence_line(context_, "one sequence:");
    json["context"] = {{"tokens", context_}, {"blocks", blocks}, {"bytes", blocks * block}};
  }
  if (pool_bytes_) {
    const std::int64_t blocks = *pool_bytes_ / block;
    text += fmt::format("  a pool of {} holds {} blocks, {} tokens\n", human_bytes(*pool_bytes_),
                        grouped(blocks), grouped(blocks * shape.block_size));
    json["pool"] = {{"bytes", *pool_bytes_},
                    {"blocks", blocks},
                    {"tokens", blocks * shape.block_size},
                    {"unused_bytes", *pool_bytes_ % block}};
    if (blocks == 0) {
      console.error(fmt::format("a pool of {} does not hold one block", human_bytes(*pool_bytes_)),
                    fmt::format("at least {} B", block),
                    "raise --pool-bytes or lower --block-size");
      return ExitCode::does_not_fit;
    }
  }
  return print_result(console, json_, text, json);
}

}  // namespace

Command shapes_command(CLI::App& parent) { return make_command<ShapesCommand>(parent); }

}  // namespace kvarena::tools
