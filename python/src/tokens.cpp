// Tokens of the caller, and what the prefix cache says of them.

#include "tokens.hpp"

#include <cstring>
#include <limits>

#include "records.hpp"
#include "tensors.hpp"

#include <nanobind/stl/string.h>

namespace kvarena::python {

namespace {

constexpr const char* kAccepted = "token ids, each an int of 0 .. 2^31 - 1, or -1";

std::int32_t checked(const char* argument, long long token) {
  if (token < -1 || token > std::numeric_limits<std::int32_t>::max()) {
    raise_value(argument, std::to_string(token), kAccepted);
  }
  return static_cast<std::int32_t>(token);
}

/// Reads an array of the host, strided or not.
std::vector<std::int32_t> read_array(const char* argument, nb::handle given) {
  const Tensor array(argument, given, Place{});
  const bool is_wide = array.dtype() == kInt64;
  if (!is_wide) array.require_dtype(kInt32);
  if (array.ndim() != 1) {
    raise_value(argument, std::to_string(array.ndim()) + " dimensions", "[num_tokens]");
  }
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(array.shape(0)));
  const auto* at = static_cast<const std::byte*>(array.data());
  for (std::int32_t& token : tokens) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    if (is_wide) {
      std::memcpy(&wide, at, sizeof wide);
    } else {
      std::memcpy(&narrow, at, sizeof narrow);
      wide = narrow;
    }
    token = checked(argument, wide);
    at += array.stride_bytes(0);
  }
  return tokens;
}

long long whole(const char* argument, nb::handle item, const char* accepted) {
  const long long value = PyLong_AsLongLong(item.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise_type(argument, nb::cast<std::string>(nb::repr(item)), accepted);
  }
  return value;
}

}  // namespace

std::vector<std::int32_t> tokens_of(const char* argument, nb::handle given) {
  std::vector<std::int32_t> tokens;
  if (given.is_none()) return tokens;
  if (nb::hasattr(given, "__dlpack__")) return read_array(argument, given);
  if (PySequence_Check(given.ptr()) == 0 || PyUnicode_Check(given.ptr()) != 0) {
    raise_type(argument, nb::cast<std::string>(nb::repr(given)),
               "a list of token ids, or an array of int32 or int64");
  }
  for (const nb::handle item : nb::iter(given)) {
    tokens.push_back(checked(argument, whole(argument, item, kAccepted)));
  }
  return tokens;
}

std::vector<kvarena_extra_key> extra_keys_of(nb::handle given) {
  constexpr const char* kPairs = "pairs of a key and its first token, such as [(7, 0)]";
  std::vector<kvarena_extra_key> keys;
  for (const nb::handle item : nb::iter(given)) {
    if (PyTuple_Check(item.ptr()) == 0 || PyTuple_Size(item.ptr()) != 2) {
      raise_type("extra_keys", nb::cast<std::string>(nb::repr(item)), kPairs);
    }
    const nb::handle key = PyTuple_GetItem(item.ptr(), 0);
    const unsigned long long number = PyLong_Check(key.ptr()) != 0
                                          ? PyLong_AsUnsignedLongLong(key.ptr())
                                          : static_cast<unsigned long long>(-1);
    if (PyLong_Check(key.ptr()) == 0 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      raise_type("extra_keys", nb::cast<std::string>(nb::repr(key)), "keys of 0 .. 2^64 - 1");
    }
    keys.push_back({number, whole("extra_keys", PyTuple_GetItem(item.ptr(), 1), kPairs)});
  }
  return keys;
}

Prompt::Prompt(nb::handle its_tokens, std::uint64_t its_salt, nb::handle keys)
    : tokens(tokens_of("tokens", its_tokens)), salt(its_salt), extra_keys(extra_keys_of(keys)) {}

void Prompt::put_in(kvarena_sequence_options& options) const noexcept {
  options.tokens = tokens.data();
  options.num_tokens = tokens.size();
  options.salt = salt;
  options.extra_keys = extra_keys.data();
  options.num_extra_keys = extra_keys.size();
}

nb::object record_of_prefix(kvarena_prefix& prefix) {
  nb::dict values = members_of(prefix);
  values["stop"] = nb::str(kvarena_name_of_prefix_stop(prefix.stop));
  values["removal"] = nb::none();
  if (prefix.stop == KVARENA_STOP_EVICTED) {
    values["removal"] = nb::str(kvarena_name_of_prefix_removal(prefix.removal));
  }
  return make_record("Prefix", values);
}

nb::object record_of_prefix_stats(kvarena_prefix_stats& stats) {
  nb::dict values = members_of(stats);
  nb::dict stops;
  for (int i = 0; i <= KVARENA_STOP_OTHER_GROUP; ++i) {
    stops[kvarena_name_of_prefix_stop(i)] = stats.stops[i];
  }
  nb::dict removals;
  for (int i = 0; i <= KVARENA_REMOVED_OVER_CAP; ++i) {
    removals[kvarena_name_of_prefix_removal(i)] = stats.removals_by[i];
  }
  values["stops"] = stops;
  values["removals_by"] = removals;
  return make_record("PrefixStats", values);
}

}  // namespace kvarena::python
