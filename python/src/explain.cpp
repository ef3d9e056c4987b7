// Records of holders, blocks, explanations, figures and operations.

#include <vector>

#include "explain.hpp"

#include "records.hpp"

namespace kvarena::python {

nb::object holder_record(const kvarena_holder_report& report) {
  nb::dict values;
  values["holder"] = report.holder;
  values["sequence"] = report.number;
  values["owner"] = report.owner;
  values["purpose"] = report.purpose == nullptr ? "" : report.purpose;
  values["references"] = report.references;
  values["reserved"] = report.reserved;
  values["since_ns"] = report.since_ns;
  values["deadline_ns"] = report.deadline_ns;
  return make_record("HolderReport", values);
}

nb::object explanation_record(const kvarena_explanation& e) {
  nb::list largest;
  nb::list returning;
  for (std::int64_t i = 0; i < e.num_largest && i < KVARENA_MAX_LARGEST; ++i) {
    largest.append(holder_record(e.largest[i]));
    returning.append(e.returning[i]);
  }
  nb::dict values;
  values["requested"] = e.requested;
  values["usable"] = e.usable;
  values["promised"] = e.promised;
  values["missing"] = e.missing;
  values["num_blocks"] = e.num_blocks;
  values["free"] = e.free_blocks;
  values["referenced"] = e.referenced;
  values["fenced"] = e.fenced;
  values["evictable"] = e.evictable;
  values["offline"] = e.offline;
  values["reserved_blocks"] = e.reserved_blocks;
  values["watermark"] = e.watermark;
  values["fenced_returning"] = e.fenced_returning;
  values["oldest_open_ticket"] = e.oldest_open_ticket;
  values["urgency"] = nb::str(kUrgencies[e.urgency >= 0 && e.urgency < 3 ? e.urgency : 0].data());
  values["fits"] = e.fits != 0;
  values["largest"] = nb::tuple(largest);
  values["returning"] = nb::tuple(returning);
  nb::list salts;
  for (std::int64_t i = 0; i < e.num_salts && i < KVARENA_MAX_SALTS; ++i) {
    nb::dict share;
    share["salt"] = e.evictable_salts[i].salt;
    share["blocks"] = e.evictable_salts[i].blocks;
    salts.append(make_record("SaltShare", share));
  }
  values["evictable_salts"] = nb::tuple(salts);
  values["evictable_of_others"] = e.evictable_of_others;
  return make_record("Explanation", values);
}

nb::object block_record(const kvarena_block_info& info) {
  nb::dict values;
  values["generation"] = info.generation;
  values["reference_count"] = info.reference_count;
  values["claims"] = info.claims;
  values["state"] = nb::str(kBlockStates[info.state].data());
  values["content"] = nb::str(kContents[info.content].data());
  values["priority"] = info.priority;
  values["expires_at"] = info.expires_at;
  return make_record("BlockInfo", values);
}

nb::object stats_record(kvarena_stats& stats) {
  nb::dict values = members_of(stats);
  values["audit_failure"] = kvarena_name_of_code(stats.audit_failure.code);
  return make_record("Stats", values);
}

void hear_operation(void* user, const kvarena_operation* operation) {
  constexpr const char* kNames[] = {
      "register_holder", "unregister_holder", "reserve",    "allocate", "retain",      "release",
      "release_after",   "set_content",       "quarantine", "restore",  "open_ticket", "retire",
      "set_retention",   "advance_clock"};
  nb::gil_scoped_acquire acquired;
  const nb::error_scope outer;  // an object that ends while an exception is raised makes operations
  const nb::object function = *static_cast<const nb::object*>(user);
  if (!function.is_valid() || function.is_none()) return;
  try {
    nb::list blocks;
    for (std::uint64_t i = 0; i < operation->num_blocks; ++i) blocks.append(operation->blocks[i]);
    nb::dict values;
    values["kind"] = kNames[operation->kind];
    values["outcome"] = kvarena_name_of_code(static_cast<std::uint8_t>(operation->outcome));
    values["holder"] = operation->holder;
    values["ticket"] = operation->ticket;
    values["num_blocks"] = operation->count;
    values["flag"] = operation->flag;
    values["blocks"] = nb::tuple(blocks);
    values["group"] = operation->group;
    values["left_in_call"] = operation->left_in_call;
    function(make_record("Operation", values));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("kvarena's operation log");
  }
}

}  // namespace kvarena::python
