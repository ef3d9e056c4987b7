// Blocks of a pool that are found by their tokens.

#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "tokens.hpp"

#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

/// A place in a prefix.
struct PrefixPosition {
  kvarena_prefix_position at = sized<kvarena_prefix_position>();
};

/// The options that carry a prompt; they borrow from it.
kvarena_sequence_options options_of(const Prompt& prompt) {
  auto options = sized<kvarena_sequence_options>();
  prompt.put_in(options);
  return options;
}

PrefixPosition begin_prefix(const Pool& pool, std::uint64_t salt) {
  PrefixPosition position;
  pool.check(kvarena_pool_begin_prefix(pool.handle(), salt, &position.at));
  return position;
}

nb::object match(const Pool& pool, nb::handle tokens, std::uint64_t salt, nb::handle extra_keys) {
  const Prompt prompt(tokens, salt, extra_keys);
  const kvarena_sequence_options options = options_of(prompt);
  auto found = sized<kvarena_prefix>();
  pool.check(kvarena_pool_match(pool.handle(), &options, nullptr, nullptr, 0, &found));
  return record_of_prefix(found);
}

nb::object adopt(const Pool& pool, std::uint64_t holder, nb::handle tokens, std::uint64_t salt,
                 nb::handle extra_keys) {
  const Prompt prompt(tokens, salt, extra_keys);
  const kvarena_sequence_options options = options_of(prompt);
  const std::size_t most =
      prompt.tokens.empty() || pool.block_size < 1
          ? 0
          : (prompt.tokens.size() - 1) / static_cast<std::size_t>(pool.block_size);
  Ids blocks(pool.room(most));
  Generations generations(blocks.size());
  auto found = sized<kvarena_prefix>();
  PrefixPosition end;
  pool.check(kvarena_pool_adopt(pool.handle(), holder, &options, blocks.data(), generations.data(),
                                blocks.size(), &found, &end.at));
  blocks.resize(static_cast<std::size_t>(found.blocks));
  generations.resize(blocks.size());
  nb::dict values;
  values["prefix"] = record_of_prefix(found);
  values["blocks"] = nb::cast(blocks);
  values["generations"] = nb::cast(generations);
  values["position"] = nb::cast(end);
  return make_record("Adoption", values);
}

std::size_t register_blocks(const Pool& pool, PrefixPosition& position, nb::handle tokens,
                            const Ids& blocks, const Generations& generations,
                            nb::handle extra_keys) {
  require_pairs(blocks, generations);
  const Prompt filled(tokens, 0, extra_keys);
  const kvarena_sequence_options options = options_of(filled);
  std::size_t registered = 0;
  pool.check(kvarena_pool_register(pool.handle(), &position.at, &options, blocks.data(),
                                   generations.data(), blocks.size(), &registered));
  return registered;
}

std::size_t publish(const Pool& pool, const Ids& blocks, const Generations& generations) {
  require_pairs(blocks, generations);
  std::size_t published = 0;
  pool.check(kvarena_pool_publish(pool.handle(), blocks.data(), generations.data(), blocks.size(),
                                  &published));
  return published;
}

nb::object prefix_stats(const Pool& pool) {
  auto stats = sized<kvarena_prefix_stats>();
  pool.check(kvarena_pool_ask_prefix(pool.handle(), &stats, nullptr));
  return record_of_prefix_stats(stats);
}

nb::object prefix_use(const Pool& pool) {
  auto use = sized<kvarena_prefix_use>();
  pool.check(kvarena_pool_ask_prefix(pool.handle(), nullptr, &use));
  return record_of_prefix_use(use);
}

}  // namespace

void bind_pool_prefixes(nb::module_& module, nb::class_<Pool>& pool) {
  nb::class_<PrefixPosition>(module, "PrefixPosition")
      .def_prop_ro("blocks", [](const PrefixPosition& p) { return p.at.blocks; })
      .def("copy", [](const PrefixPosition& p) { return p; });
  pool.def("begin_prefix", &begin_prefix, nb::arg("salt") = 0)
      .def("match", &match, nb::arg("tokens"), nb::kw_only(), nb::arg("salt") = 0,
           nb::arg("extra_keys") = nb::tuple())
      .def("adopt", &adopt, nb::arg("holder"), nb::arg("tokens"), nb::kw_only(),
           nb::arg("salt") = 0, nb::arg("extra_keys") = nb::tuple())
      .def("register", &register_blocks, nb::arg("position"), nb::arg("tokens"), nb::arg("blocks"),
           nb::arg("generations"), nb::kw_only(), nb::arg("extra_keys") = nb::tuple())
      .def("publish", &publish, nb::arg("blocks"), nb::arg("generations"))
      .def(
          "forget",
          [](const Pool& p, const Ids& blocks) {
            p.check(kvarena_pool_forget(p.handle(), blocks.data(), blocks.size()));
          },
          nb::arg("blocks"))
      .def("forget_salt",
           [](const Pool& p, std::uint64_t salt) {
             p.check(kvarena_pool_forget_salt(p.handle(), salt));
           })
      .def("forget_all", [](const Pool& p) { p.check(kvarena_pool_forget_all(p.handle())); })
      .def("prefix_stats", &prefix_stats)
      .def("prefix_use", &prefix_use);
}

}  // namespace kvarena::python
