// The component `capacity`.

#include <kvarena/capacity/memory_plan.hpp>
#include <kvarena/capacity/model_presets.hpp>

int main() {
  const auto model = kvarena::capacity::find_model_preset("Llama-3.1-8B");
  if (!model) return 1;
  const auto plan = kvarena::capacity::plan(
      *model, {.memory_bytes = std::int64_t{80} << 30, .context_tokens = 4096});
  return plan && plan->fits && plan->weights_bytes == 16'060'522'496 ? 0 : 2;
}
