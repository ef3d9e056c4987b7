#include "blocktable/prefix_faults.hpp"

namespace kvarena {
namespace {

PrefixFault planted = PrefixFault::none;

}  // namespace

void set_prefix_fault(PrefixFault fault) noexcept { planted = fault; }
PrefixFault prefix_fault() noexcept { return planted; }

}  // namespace kvarena
