#pragma once

/// @file
/// Options whose values are not plain numbers: bytes with suffixes, microseconds with decimals.
/// Each refuses anything else while the command line is parsed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// `--name N`, a whole number `smallest` .. `largest`.
template <class Number>
CLI::Option* add_count_option(CLI::App& command, const std::string& name, Number& value,
                              std::int64_t smallest, std::int64_t largest, const std::string& help);

/// `--name CHOICE`, one of `choices`; the help names them.
CLI::Option* add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                               const std::vector<std::string>& choices, const std::string& help);

/// `--name SIZE`, e.g. 24GiB, 512MiB, 80GB; at least `smallest` bytes.
CLI::Option* add_bytes_option(CLI::App& command, const std::string& name,
                              std::optional<std::int64_t>& bytes, const std::string& help,
                              std::int64_t smallest = 1);

/// `--name US`, microseconds with up to three decimals, into nanoseconds; `ns` is the default.
CLI::Option* add_microseconds_option(CLI::App& command, const std::string& name, std::int64_t& ns,
                                     const std::string& help);

}  // namespace kvarena::tools
