#pragma once

/// @file
/// Records of holders, explanations, blocks, figures and operations.

#include <vector>

#include "core.hpp"

namespace kvarena::python {

/// Returns kvarena.HolderReport.
nb::object holder_record(const kvarena_holder_report& report);
/// Returns kvarena.Explanation.
nb::object explanation_record(const kvarena_explanation& explanation);
/// Returns kvarena.BlockInfo.
nb::object block_record(const kvarena_block_info& info);
/// Returns kvarena.Stats.
nb::object stats_record(kvarena_stats& stats);

/// The operation function of a cache or pool whose user is the nb::object of a Python function:
/// calls it with the kvarena.Operation, on the thread that made the operation. None or null: no one
/// listens any more.
void hear_operation(void* user, const kvarena_operation* operation);

/// Returns what `call(array, room, count)` lists, as it grows: calls until everything fits.
template <class Item, class Call>
std::vector<Item> list_of(Call&& call, const Witness& witness) {
  std::vector<Item> items(64);
  while (true) {
    std::size_t count = 0;
    const kvarena_status status = call(items.data(), items.size(), &count);
    if (status.code == KVARENA_OK) {
      items.resize(count);
      return items;
    }
    if (count <= items.size()) raise(status, witness);
    items.resize(count);
  }
}

}  // namespace kvarena::python
