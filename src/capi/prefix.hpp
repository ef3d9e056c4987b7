#pragma once

/// @file
/// The parts of prompts that sequences, steps and questions to the prefix cache have in common.

#include "kvarena/base/result.hpp"
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

}  // namespace kvarena::capi
