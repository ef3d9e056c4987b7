// Records of holders, blocks and explanations.

#include <vector>

#include "explain.hpp"

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
  return make_record("Explanation", values);
}

nb::object block_record(const kvarena_block_info& info) {
  nb::dict values;
  values["generation"] = info.generation;
  values["reference_count"] = info.reference_count;
  values["claims"] = info.claims;
  values["state"] = nb::str(kBlockStates[info.state].data());
  values["content"] = nb::str(kContents[info.content].data());
  return make_record("BlockInfo", values);
}

}  // namespace kvarena::python
