#pragma once

/// @file
/// What the prefix caches of caches and of pools have in common: prompts and figures.

#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/prefix_figures.hpp"
#include "kvarena/blocktable/sequences.hpp"
#include "kvarena/kvarena.h"

#include <cstdint>
#include <span>

namespace kvarena::capi {

/// Tokens of the caller. Returns invalid_argument (pointer) for NULL with a count.
Result<std::span<const std::int32_t>> tokens_from_c(const std::int32_t* tokens,
                                                    std::uint64_t count) noexcept;
/// Reads tokens, salt and extra keys. Returns invalid_argument (pointer).
Status read_prompt(const kvarena_sequence_options& given, SequenceOptions& result) noexcept;

/// What was found.
kvarena_prefix to_c(const PrefixMatch& match) noexcept;
/// The figures.
kvarena_prefix_stats to_c(const PrefixStats& stats) noexcept;
/// How a prefix cache is used.
kvarena_prefix_use to_c(const PrefixUse& use) noexcept;

}  // namespace kvarena::capi
