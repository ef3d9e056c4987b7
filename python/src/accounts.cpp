// Accounts of salts, and what a prefix cache tells about its use.

#include <cstdint>

#include "cache.hpp"
#include "tokens.hpp"

namespace kvarena::python {

namespace {

nb::object record_of(const kvarena_prefix_histogram& histogram) {
  nb::list counts;
  for (const std::uint64_t count : histogram.counts) counts.append(count);
  nb::dict values;
  values["counts"] = nb::tuple(counts);
  values["sum"] = histogram.sum;
  return make_record("PrefixHistogram", values);
}

nb::object prefix_use(const Cache& cache) {
  auto use = sized<kvarena_prefix_use>();
  check(kvarena_prefix_ask_use(cache.handle(), &use), cache.witness());
  return record_of_prefix_use(use);
}

nb::object prefix_snapshot(const Cache& cache) {
  auto stats = sized<kvarena_prefix_stats>();
  auto use = sized<kvarena_prefix_use>();
  check(kvarena_prefix_snapshot(cache.handle(), &stats, &use), cache.witness());
  return nb::make_tuple(record_of_prefix_stats(stats), record_of_prefix_use(use));
}

void set_salt_limits(const Cache& cache, std::uint64_t salt, std::int64_t floor_blocks,
                     std::int64_t cap_blocks) {
  auto limits = sized<kvarena_salt_limits>();
  limits.floor_blocks = floor_blocks;
  limits.cap_blocks = cap_blocks;
  check(kvarena_salt_set_limits(cache.handle(), salt, &limits), cache.witness());
}

nb::object salt_info(const Cache& cache, std::uint64_t salt) {
  auto info = sized<kvarena_salt_info>();
  check(kvarena_salt_ask(cache.handle(), salt, &info), cache.witness());
  nb::dict values;
  values["registered"] = info.registered;
  values["kept"] = info.kept;
  values["sequences"] = info.sequences;
  values["floor_blocks"] = info.floor_blocks;
  values["cap_blocks"] = info.cap_blocks;
  return make_record("SaltInfo", values);
}

void close_salt(const Cache& cache, std::uint64_t salt) {
  check(kvarena_salt_close(cache.handle(), salt), cache.witness());
}

}  // namespace

nb::object record_of_prefix_use(const kvarena_prefix_use& use) {
  nb::list ghosts;
  for (std::int64_t i = 0; i < use.num_ghosts && i < KVARENA_MAX_GHOSTS; ++i) {
    const kvarena_ghost& ghost = use.ghosts[i];
    nb::dict values;
    values["policy"] = nb::str(kEvictions[ghost.policy].data());
    values["half_pools"] = ghost.half_pools;
    values["hits_ppm"] = ghost.hits_ppm;
    ghosts.append(make_record("Ghost", values));
  }
  nb::dict values;
  values["lifetime"] = record_of(use.lifetime);
  values["idle"] = record_of(use.idle);
  values["reuse_gap"] = record_of(use.reuse_gap);
  values["ghost_sampled_ppm"] = use.ghost_sampled_ppm;
  values["ghost_references"] = use.ghost_references;
  values["ghosts"] = nb::tuple(ghosts);
  return make_record("PrefixUse", values);
}

void bind_accounts(nb::class_<Cache>& cache) {
  cache.def("prefix_use", &prefix_use)
      .def("prefix_snapshot", &prefix_snapshot)
      .def("set_salt_limits", &set_salt_limits, nb::arg("salt"), nb::kw_only(),
           nb::arg("floor_blocks") = 0, nb::arg("cap_blocks") = 0)
      .def("salt_info", &salt_info, nb::arg("salt"))
      .def("close_salt", &close_salt, nb::arg("salt"));
}

}  // namespace kvarena::python
