#include "capacity/files/config_parts.hpp"

#include "base/excerpt.hpp"
#include "capacity/ascii.hpp"
#include "kvarena/capacity/storage_format.hpp"

#include <fmt/format.h>

namespace kvarena::capacity {
namespace {

constexpr IntegerRange kBitRange{1, 32};

/// The format of so many bits, or "".
std::string_view format_of(std::int64_t bits, bool is_float) {
  if (bits == 4) return is_float ? "nvfp4" : "int4";
  if (bits == 8) return is_float ? "fp8_e4m3" : "int8";
  return "";
}

/// What a quantization_config is about.
struct Quantisation {
  std::string name;         // as the file calls it
  std::string_view format;  // "": not known here
  std::int64_t group_size = 0;
  bool experts_only = false;
};

/// Lists of what is left as it was name attention in all layers only where just experts are stored
/// otherwise.
bool leaves_attention(ConfigValues& q) {
  for (const std::string_view key : {"modules_to_not_convert", "ignore"}) {
    if (!q.is_array(key)) continue;
    for (const std::string& module : q.words(key)) {
      const bool is_pattern = module.starts_with("re:") || module.find('*') != module.npos;
      if (is_pattern && module.find("self_attn") != module.npos &&
          module.find_first_of("0123456789") == module.npos) {
        return true;
      }
    }
  }
  return false;
}

/// Weights of config_groups, where there is one group only: num_bits, type, group_size.
void add_group(ConfigValues& q, Quantisation* found) {
  const auto groups = q.object("config_groups");
  if (!groups) return;
  auto group = groups->only_object();
  auto weights = group ? group->object("weights") : std::nullopt;
  if (!weights) return;
  found->format = format_of(weights->integer({"num_bits"}, kBitRange),
                            same_letters(weights->word("type"), "float"));
  found->group_size = weights->integer({"group_size"}, {-1, kDimRange.largest}, 0);
}

Quantisation read_quantisation(ConfigValues& q) {
  Quantisation found;
  for (const std::string_view key : {"quant_method", "quant_algo"}) {
    if (found.name.empty()) found.name = q.word(key);
  }
  const std::string& name = found.name;
  if (same_letters(name, "mxfp4")) {
    found.format = "mxfp4";
    found.experts_only = true;
  } else if (same_letters(name, "gptq") || same_letters(name, "awq")) {
    found.format = format_of(q.integer({"bits", "w_bit"}, kBitRange), false);
    found.group_size = q.integer({"group_size", "q_group_size"}, {-1, kDimRange.largest}, 0);
  } else if (same_letters(name, "bitsandbytes")) {
    found.format = q.flag("load_in_4bit", false)   ? "int4"
                   : q.flag("load_in_8bit", false) ? "int8"
                                                   : "";
  } else if (q.has("config_groups")) {
    add_group(q, &found);
  } else if (same_letters(name, "fp8") || same_letters(name, "fbgemm_fp8")) {
    found.format = "fp8_e4m3";
  } else if (same_letters(name, "nvfp4")) {
    found.format = "nvfp4";
  }
  found.experts_only = found.experts_only || leaves_attention(q);
  return found;
}

std::string note_of(const Quantisation& q, std::string_view ends) {
  const std::string name = excerpt_of(q.name);
  if (q.format.empty()) {
    return "quantization " + name + " is not known here: weights are counted as without it";
  }
  if (q.format == "mxfp4" || q.format == "nvfp4") {
    return fmt::format("weights in {}, scales included; the rest in {}", q.format, ends);
  }
  const std::string scales = q.group_size > 0
                                 ? fmt::format("the scales of groups of {}", q.group_size)
                                 : std::string("their scales");
  return fmt::format("weights in {}, embedding and head in {}; {} are not counted", q.format, ends,
                     scales);
}

}  // namespace

void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model) {
  std::string dtype;
  std::string_view key = "dtype";
  ConfigValues* owner = &text;
  for (ConfigValues* values : {&text, &outer}) {
    for (const std::string_view name : {"dtype", "torch_dtype"}) {
      if (!dtype.empty()) continue;
      dtype = values->word(name);
      key = name;
      owner = values;
    }
  }
  std::string_view plain = dtype;
  if (plain.starts_with("torch.")) plain.remove_prefix(6);
  if (plain.empty()) {
    plain = "bf16";
    model.notes.emplace_back("no dtype is given: bf16 is assumed");
  }
  const StorageFormat* format = find_storage_format(plain);
  if (format == nullptr) {
    owner->refuse(key, "", "a type such as bfloat16, float16 or float32");
    return;
  }
  model.weights_format = format->name;
  model.kv_format = format->elements == 1 && format->bytes == 2 ? format->name : "bf16";
  if (format->name == "f32") {
    model.notes.emplace_back(
        "dtype is float32, of which engines make 16 bits: K and V are planned as bf16 unless f32 "
        "is "
        "asked for, weights as stored unless bf16 is asked for");
  }
  for (ConfigValues* values : {&text, &outer}) {
    auto config = values->object("quantization_config");
    if (!config) continue;
    const Quantisation quantisation = read_quantisation(*config);
    model.notes.push_back(note_of(quantisation, format->name));
    model.weights_quantised = true;
    if (quantisation.format.empty()) return;
    if (quantisation.experts_only && model.shape.moe.num_experts > 0) {
      model.expert_weights_format = quantisation.format;
      // Nothing else is quantised, and a block has its scale in it.
      model.weights_quantised = quantisation.format != "mxfp4";
      return;
    }
    model.ends_weights_format = format->name;
    model.weights_format = quantisation.format;
    return;
  }
}

}  // namespace kvarena::capacity
