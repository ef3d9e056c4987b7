// Events of a prefix cache on their way to Python.

#include "cache.hpp"

namespace kvarena::python {

namespace {

nb::tuple tuple_of(const std::int32_t* tokens, std::uint64_t count) {
  nb::list list;
  for (std::uint64_t i = 0; i < count; ++i) list.append(tokens[i]);
  return nb::tuple(list);
}

nb::tuple pairs_of(const kvarena_extra_key* keys, std::uint64_t count) {
  nb::list list;
  for (std::uint64_t i = 0; i < count; ++i) {
    list.append(nb::make_tuple(keys[i].key, keys[i].first_token));
  }
  return nb::tuple(list);
}

nb::object record_of_event(const kvarena_prefix_event& event) {
  nb::dict values;
  values["number"] = event.number;
  values["kind"] = kvarena_name_of_prefix_event(event.kind);
  values["block"] = event.block;
  values["parent"] = event.parent;
  values["salt"] = event.salt;
  values["tokens"] = tuple_of(event.tokens, event.num_tokens);
  values["extra_keys"] = pairs_of(event.extra_keys, event.num_extra_keys);
  values["removal"] = nb::none();
  if (event.kind == KVARENA_PREFIX_REMOVED) {
    values["removal"] = kvarena_name_of_prefix_removal(event.removal);
  }
  return make_record("PrefixEvent", values);
}

}  // namespace

void hear_event(void* user, const kvarena_prefix_event* event) {
  nb::gil_scoped_acquire acquired;
  const nb::error_scope outer;  // a call that is made while an exception is raised makes events
  const nb::object function = *static_cast<const nb::object*>(user);
  if (!function.is_valid() || function.is_none()) return;
  try {
    function(record_of_event(*event));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("kvarena's prefix events");
  }
}

}  // namespace kvarena::python
