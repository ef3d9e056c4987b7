#pragma once

/// @file
/// Tokens and extra keys of the caller, for the prefix cache.

#include <cstdint>
#include <optional>
#include <vector>

#include "core.hpp"

namespace kvarena::python {

/// Token ids: None (no tokens), a list or another sequence, or an array of the host with one
/// dimension of int32 or int64 (DLPack). Raises TypeError or ValueError with the argument's name.
std::vector<std::int32_t> tokens_of(const char* argument, nb::handle tokens);
/// Pairs of a key and the index of the first token that depends on it.
std::vector<kvarena_extra_key> extra_keys_of(nb::handle keys);

/// What a sequence begins with. It must live as long as the options that it was put in.
struct Prompt {
  Prompt(nb::handle its_tokens, std::uint64_t its_salt, nb::handle keys);
  void put_in(kvarena_sequence_options& options) const noexcept;

  std::vector<std::int32_t> tokens;
  std::uint64_t salt;
  std::vector<kvarena_extra_key> extra_keys;
};

/// Returns kvarena.Prefix.
nb::object record_of_prefix(kvarena_prefix& prefix);
/// Returns kvarena.PrefixStats.
nb::object record_of_prefix_stats(kvarena_prefix_stats& stats);
/// Returns kvarena.PrefixUse.
nb::object record_of_prefix_use(const kvarena_prefix_use& use);

}  // namespace kvarena::python
