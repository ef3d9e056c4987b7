// Sequences, imports and pins.

#include <memory>
#include <optional>
#include <vector>

#include "cache.hpp"
#include "explain.hpp"
#include "records.hpp"
#include "tokens.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

/// Holds blocks of a sequence; only release ends it.
struct Pin {
  CacheReference cache;
  kvarena_holder holder;
};

struct SequenceTraits {
  std::int64_t max_length;
  std::int64_t since_ns;
  std::int64_t deadline_ns;
  std::uint64_t owner;
  std::int32_t cross_tokens = 0;

  kvarena_sequence_options options() const {
    auto result = sized<kvarena_sequence_options>();
    result.max_length_tokens = max_length;
    result.since_ns = since_ns;
    result.deadline_ns = deadline_ns;
    result.owner = owner;
    result.cross_tokens = cross_tokens;
    return result;
  }
};

Sequence create_sequence(CacheArgument cache, nb::handle tokens, std::uint64_t salt,
                         nb::handle extra_keys, std::int64_t max_length, std::uint64_t owner,
                         std::int64_t since_ns, std::int64_t deadline_ns,
                         std::int32_t cross_tokens) {
  const Prompt prompt(tokens, salt, extra_keys);
  kvarena_sequence_options options =
      SequenceTraits{max_length, since_ns, deadline_ns, owner, cross_tokens}.options();
  prompt.put_in(options);
  Sequence made{cache, 0};
  check(kvarena_sequence_create(cache.p->handle(), &options, &made.id), cache.p->witness());
  return made;
}

Sequence import_sequence(CacheArgument cache, std::int64_t num_tokens, std::uint64_t salt,
                         nb::handle extra_keys, std::int64_t max_length, std::uint64_t owner,
                         std::int64_t since_ns, std::int64_t deadline_ns,
                         std::string_view urgency) {
  const Prompt prompt(nb::none(), salt, extra_keys);
  kvarena_sequence_options options =
      SequenceTraits{max_length, since_ns, deadline_ns, owner}.options();
  prompt.put_in(options);
  Sequence made{cache, 0};
  check(kvarena_sequence_import(cache.p->handle(), num_tokens, &options, urgency_of(urgency),
                                &made.id),
        cache.p->witness());
  return made;
}

/// What the cache has of a prompt.
nb::object match(const Cache& cache, nb::handle tokens, std::uint64_t salt, nb::handle extra_keys) {
  const Prompt prompt(tokens, salt, extra_keys);
  auto options = sized<kvarena_sequence_options>();
  prompt.put_in(options);
  auto found = sized<kvarena_prefix>();
  check(kvarena_prefix_match(cache.handle(), &options, &found), cache.witness());
  return record_of_prefix(found);
}

nb::object prefix_of(const Sequence& sequence) {
  auto found = sized<kvarena_prefix>();
  check(kvarena_sequence_prefix(sequence.cache->handle(), sequence.id, &found),
        sequence.cache->witness());
  return record_of_prefix(found);
}

nb::object adopt(const Sequence& sequence, nb::handle tokens) {
  const std::vector<std::int32_t> list = tokens_of("tokens", tokens);
  auto found = sized<kvarena_prefix>();
  check(kvarena_sequence_adopt(sequence.cache->handle(), sequence.id, list.data(), list.size(),
                               &found),
        sequence.cache->witness());
  return record_of_prefix(found);
}

void register_tokens(const Sequence& sequence, nb::handle tokens) {
  const std::vector<std::int32_t> list = tokens_of("tokens", tokens);
  check(kvarena_sequence_register(sequence.cache->handle(), sequence.id, list.data(), list.size()),
        sequence.cache->witness());
}

std::int64_t set_retention(const Sequence& sequence, std::int64_t first_token,
                           std::int64_t num_tokens, std::int32_t priority,
                           std::int64_t expires_at) {
  std::int64_t blocks = 0;
  check(kvarena_sequence_set_retention(sequence.cache->handle(), sequence.id, first_token,
                                       num_tokens, priority, expires_at, &blocks),
        sequence.cache->witness());
  return blocks;
}

void forget(const Cache& cache, std::optional<std::uint64_t> salt) {
  check(salt ? kvarena_prefix_forget_salt(cache.handle(), *salt)
             : kvarena_prefix_forget_all(cache.handle()),
        cache.witness());
}

nb::object prefix_stats(const Cache& cache) {
  auto stats = sized<kvarena_prefix_stats>();
  check(kvarena_prefix_ask(cache.handle(), &stats), cache.witness());
  return record_of_prefix_stats(stats);
}

kvarena_sequence_info ask(const Sequence& sequence) {
  auto info = sized<kvarena_sequence_info>();
  check(kvarena_sequence_ask(sequence.cache->handle(), sequence.id, &info),
        sequence.cache->witness());
  return info;
}

nb::object info_of(const Sequence& sequence) {
  constexpr const char* kStates[] = {"none", "filling", "failed"};
  kvarena_sequence_info info = ask(sequence);
  nb::dict values = members_of(info);
  values["import_state"] = kStates[info.import_state];
  return make_record("SequenceInfo", values);
}

Sequence fork(const Sequence& parent, std::optional<std::int64_t> length, std::int64_t max_length,
              std::uint64_t owner, std::int64_t since_ns, std::int64_t deadline_ns) {
  const kvarena_sequence_options options =
      SequenceTraits{max_length, since_ns, deadline_ns, owner}.options();
  const std::int64_t shared = length ? *length : ask(parent).length_tokens;
  Sequence made{parent.cache, 0};
  check(kvarena_sequence_fork(parent.cache->handle(), parent.id, shared, &options, &made.id),
        parent.cache->witness());
  return made;
}

void truncate(const Sequence& sequence, std::int64_t length, std::uint64_t ticket) {
  check(kvarena_sequence_truncate(sequence.cache->handle(), sequence.id, length, ticket),
        sequence.cache->witness());
}

void destroy(const Sequence& sequence, std::uint64_t ticket) {
  check(kvarena_sequence_destroy(sequence.cache->handle(), &sequence.id, 1, ticket),
        sequence.cache->witness());
}

void destroy_all(Cache& cache, nb::sequence sequences, std::uint64_t ticket) {
  std::vector<kvarena_sequence> ids;
  for (const nb::handle item : sequences) {
    const Sequence* const sequence = sequence_in(item);
    if (sequence == nullptr) raise_type("sequences", "another object", "kvarena.Sequence");
    ids.push_back(sequence->id);
  }
  check(kvarena_sequence_destroy(cache.handle(), ids.data(), ids.size(), ticket), cache.witness());
}

std::vector<std::int32_t> blocks_of(const Sequence& sequence) {
  return list_of<std::int32_t>(
      [&](std::int32_t* blocks, std::size_t room, std::size_t* count) {
        return kvarena_sequence_blocks(sequence.cache->handle(), sequence.id, blocks, room, count);
      },
      sequence.cache->witness());
}

std::vector<Sequence> all_sequences(CacheArgument cache) {
  std::vector<Sequence> result;
  for (const kvarena_sequence id : list_of<kvarena_sequence>(
           [&](kvarena_sequence*ids, std::size_t room, std::size_t*count) {
             return kvarena_sequence_list(cache.p->handle(), ids, room, count);
           },
           cache.p->witness())) {
    result.push_back({cache, id});
  }
  return result;
}

std::int64_t slot_of(const Sequence& sequence, std::int64_t index) {
  std::int64_t slot = 0;
  check(kvarena_sequence_slot(sequence.cache->handle(), sequence.id, index, &slot),
        sequence.cache->witness());
  return slot;
}

Pin pin(const Sequence& sequence, std::int64_t first_block, std::int64_t num_blocks,
        std::uint64_t owner, const std::string& purpose, std::int64_t since_ns,
        std::int64_t deadline_ns) {
  auto options = sized<kvarena_pin_options>();
  options.first_block = first_block;
  options.num_blocks = num_blocks;
  options.owner = owner;
  options.purpose = purpose.c_str();
  options.since_ns = since_ns;
  options.deadline_ns = deadline_ns;
  Pin made{sequence.cache, 0};
  check(kvarena_pin_create(sequence.cache->handle(), sequence.id, &options, &made.holder),
        sequence.cache->witness());
  return made;
}

std::vector<std::int32_t> blocks_of_pin(const Pin& pin) {
  return list_of<std::int32_t>(
      [&](std::int32_t* blocks, std::size_t room, std::size_t* count) {
        return kvarena_pin_blocks(pin.cache->handle(), pin.holder, blocks, room, count);
      },
      pin.cache->witness());
}

/// A call on a sequence that has no other argument.
template <auto call>
void by(const Sequence& sequence) {
  check(call(sequence.cache->handle(), sequence.id), sequence.cache->witness());
}

const PyType_Slot kPinSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&visit_cache<Pin>)},
                                 {0, nullptr}};
const PyType_Slot kSequenceSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&visit_cache<Sequence>)}, {0, nullptr}};

void bind_pin(nb::module_& module) {
  nb::class_<Pin>(module, "Pin", nb::type_slots(kPinSlots))
      .def_ro("holder", &Pin::holder)
      .def_prop_ro("blocks", &blocks_of_pin)
      .def(
          "release",
          [](const Pin& p, std::uint64_t ticket) {
            check(kvarena_pin_release(p.cache->handle(), p.holder, ticket), p.cache->witness());
          },
          nb::arg("ticket") = 0);
}

/// What the prefix cache knows of a sequence.
void add_prefixes(nb::class_<Sequence>& sequence) {
  sequence.def_prop_ro("prefix", &prefix_of)
      .def("adopt", &adopt, nb::arg("tokens"))
      .def("register", &register_tokens, nb::arg("tokens"))
      .def("forget", &by<kvarena_sequence_forget>)
      .def("set_retention", &set_retention, nb::arg("first_token"), nb::arg("num_tokens"),
           nb::kw_only(), nb::arg("priority") = 35, nb::arg("expires_at") = 0);
}

void add_to_cache(nb::module_& module) {
  auto cache = nb::borrow<nb::class_<Cache>>(module.attr("Cache"));
  cache
      .def("create_sequence", &create_sequence, nb::kw_only(), nb::arg("tokens") = nb::none(),
           nb::arg("salt") = 0, nb::arg("extra_keys") = nb::tuple(), nb::arg("max_length") = 0,
           nb::arg("owner") = 0, nb::arg("since_ns") = 0, nb::arg("deadline_ns") = 0,
           nb::arg("cross_tokens") = 0)
      .def("match", &match, nb::arg("tokens"), nb::kw_only(), nb::arg("salt") = 0,
           nb::arg("extra_keys") = nb::tuple())
      .def("forget", &forget, nb::kw_only(), nb::arg("salt") = nb::none())
      .def("prefix_stats", &prefix_stats)
      .def(
          "advance_clock",
          [](const Cache& c, std::int64_t now) {
            check(kvarena_prefix_advance_clock(c.handle(), now), c.witness());
          },
          nb::arg("now"))
      .def("import_sequence", &import_sequence, nb::arg("num_tokens"), nb::kw_only(),
           nb::arg("salt") = 0, nb::arg("extra_keys") = nb::tuple(), nb::arg("max_length") = 0,
           nb::arg("owner") = 0, nb::arg("since_ns") = 0, nb::arg("deadline_ns") = 0,
           nb::arg("urgency") = "admission")
      .def("destroy", &destroy_all, nb::arg("sequences"), nb::kw_only(), nb::arg("ticket") = 0)
      .def("sequences", &all_sequences);
}

}  // namespace

const Sequence* sequence_in(nb::handle object) {
  static const nb::handle type = nb::type<Sequence>();
  if (Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(type.ptr())) return nullptr;
  return nb::inst_ptr<Sequence>(object);
}

void bind_sequence(nb::module_& module) {
  bind_pin(module);
  auto sequence = nb::class_<Sequence>(module, "Sequence", nb::type_slots(kSequenceSlots));
  sequence
      .def("__repr__",
           [](const Sequence& s) { return "<kvarena.Sequence " + std::to_string(s.id) + ">"; })
      .def("__eq__",
           [](const Sequence& a, nb::handle other) {
             const Sequence* const b = sequence_in(other);
             return b != nullptr && a.id == b->id && a.cache.get() == b->cache.get();
           })
      .def("__hash__", [](const Sequence& s) { return s.id; })
      .def_ro("id", &Sequence::id)
      .def_prop_ro("cache", [](const Sequence& s) { return s.cache.object(); })
      .def_prop_ro("length", [](const Sequence& s) { return ask(s).length_tokens; })
      .def_prop_ro("num_blocks", [](const Sequence& s) { return ask(s).num_blocks; })
      .def_prop_ro("blocks", &blocks_of)
      .def("info", &info_of)
      .def("slot", &slot_of, nb::arg("index"))
      .def("fork", &fork, nb::arg("length") = nb::none(), nb::kw_only(), nb::arg("max_length") = 0,
           nb::arg("owner") = 0, nb::arg("since_ns") = 0, nb::arg("deadline_ns") = 0)
      .def("truncate", &truncate, nb::arg("length"), nb::kw_only(), nb::arg("ticket") = 0)
      .def("destroy", &destroy, nb::kw_only(), nb::arg("ticket") = 0)
      .def(
          "reserve",
          [](const Sequence& s, std::int64_t capacity, std::string_view urgency) {
            check(kvarena_sequence_reserve(s.cache->handle(), s.id, capacity, urgency_of(urgency)),
                  s.cache->witness());
          },
          nb::arg("capacity"), nb::kw_only(), nb::arg("urgency") = "admission")
      .def(
          "promise",
          [](const Sequence& s, std::int64_t capacity) {
            check(kvarena_sequence_promise(s.cache->handle(), s.id, capacity), s.cache->witness());
          },
          nb::arg("capacity"))
      .def(
          "set_deadline",
          [](const Sequence& s, std::int64_t deadline_ns) {
            check(kvarena_sequence_set_deadline(s.cache->handle(), s.id, deadline_ns),
                  s.cache->witness());
          },
          nb::arg("deadline_ns"))
      .def("publish_import", &by<kvarena_sequence_publish_import>)
      .def("fail_import", &by<kvarena_sequence_fail_import>)
      .def("pin", &pin, nb::kw_only(), nb::arg("first_block") = 0, nb::arg("num_blocks") = 0,
           nb::arg("owner") = 0, nb::arg("purpose") = "pin", nb::arg("since_ns") = 0,
           nb::arg("deadline_ns") = 0);
  add_prefixes(sequence);
  add_to_cache(module);
}

}  // namespace kvarena::python
