#pragma once

/// @file
/// Numbers as people write them on a command line and read them in a table. Pure functions.

#include "base/grouped.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// Bytes from "4096", "512KiB", "1.5GiB", "24GB", "80 GB": a decimal number and an optional suffix
/// B, KiB, MiB, GiB, TiB (powers of 1024) or kB, KB, MB, GB, TB (powers of 1000). Case matters only
/// in that "b" is not a byte. Nothing for anything else, for a fraction of a byte, and past 2^63
/// - 1.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// Nanoseconds from microseconds such as "20000", "0.5", with at most three decimals, up to 10^9
/// us.
std::optional<std::int64_t> parse_microseconds(std::string_view text);

/// "1.50 GiB", "512 B": three significant digits or more, for people.
std::string human_bytes(std::int64_t bytes);

using kvarena::grouped;

}  // namespace kvarena::tools
