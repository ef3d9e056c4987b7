// Any bytes at all as a model's configuration: a valid model, or one clear error.

#include "capacity/files/config_json.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/read_failure_check.hpp"
#include "kvarena/capacity/memory_plan.hpp"

#include <cstdlib>
#include <limits>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvarena::capacity;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ModelSpec model;
  ReadFailure failure;
  if (const kvarena::Status read = model_from_config_text(text, "c.json", model, failure); !read) {
    kvarena::test::check_refusal(read, failure);
    return 0;
  }
  if (!validate(model) || model.parameters_source.empty()) std::abort();
  model.parameters = model.parameters.value_or(std::numeric_limits<std::int64_t>::max());
  const auto planned =
      plan(model, {.memory_bytes = std::int64_t{80} << 30, .context_tokens = 4096});
  if (planned && (planned->total_bytes < 0 || planned->kv_bytes_per_token < 0)) std::abort();
  return 0;
}
