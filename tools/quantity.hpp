#pragma once

/// @file
/// Numbers as people write them on a command line and read them in a table. Pure functions.

#include "base/grouped.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// Bytes from "4096", "512KiB", "79.18GiB", "24gb", "80 GB": a decimal number and an optional
/// suffix B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000) in any case. A
/// fraction of a byte is dropped, and `is_rounded` says whether there was one. Returns nullopt for
/// any other text and past 2^63 - 1.
std::optional<std::int64_t> parse_bytes(std::string_view text, bool* is_rounded = nullptr);

/// Nanoseconds from microseconds such as "20000", "0.5", with at most three decimals, up to 10^9
/// us.
std::optional<std::int64_t> parse_microseconds(std::string_view text);

/// "1.50 GiB", "512 B": three significant digits or more, for people.
std::string human_bytes(std::int64_t bytes);

using kvarena::grouped;

}  // namespace kvarena::tools
