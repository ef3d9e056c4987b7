// The component `health`.

#include <kvarena/health/pressure.hpp>

int main() {
  auto gauge = kvarena::PressureGauge::create();
  if (!gauge || !gauge->observe({.available_blocks = 0, .num_blocks = 8})) return 1;
  return gauge->level() == kvarena::PressureLevel::exhausted ? 0 : 2;
}
