#include "tools/option_types.hpp"

#include "tools/quantity.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace kvarena::tools {

template <class Number>
CLI::Option* add_count_option(CLI::App& command, const std::string& name, Number& value,
                              std::int64_t smallest, std::int64_t largest,
                              const std::string& help) {
  return command.add_option(name, value, help)
      ->type_name("N")
      ->check(CLI::Range(smallest, largest).description(""));
}

template CLI::Option* add_count_option(CLI::App&, const std::string&, std::int32_t&, std::int64_t,
                                       std::int64_t, const std::string&);
template CLI::Option* add_count_option(CLI::App&, const std::string&, std::int64_t&, std::int64_t,
                                       std::int64_t, const std::string&);
template CLI::Option* add_count_option(CLI::App&, const std::string&, std::optional<std::int64_t>&,
                                       std::int64_t, std::int64_t, const std::string&);

CLI::Option* add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                               const std::vector<std::string>& choices, const std::string& help) {
  return command.add_option(name, value, help)
      ->type_name(fmt::format("{}", fmt::join(choices, "|")))
      ->check(CLI::IsMember(choices).description(""));
}

CLI::Option* add_bytes_option(CLI::App& command, const std::string& name,
                              std::optional<std::int64_t>& bytes, const std::string& help,
                              std::int64_t smallest) {
  const auto take = [name, &bytes, smallest](const std::string& text) {
    bytes = parse_bytes(text);
    if (bytes && *bytes >= smallest) return;
    throw CLI::ValidationError(name, fmt::format("\"{}\" is no size of {} B or more; expected a "
                                                 "number with a suffix, such as 512MiB, 79.18GiB, "
                                                 "80GB",
                                                 text, smallest));
  };
  return command.add_option_function<std::string>(name, take, help)->type_name("SIZE");
}

CLI::Option* add_microseconds_option(CLI::App& command, const std::string& name, std::int64_t& ns,
                                     const std::string& help) {
  const auto take = [name, &ns](const std::string& text) {
    const auto value = parse_microseconds(text);
    if (!value) {
      throw CLI::ValidationError(
          name, fmt::format("\"{}\" is not a time; expected microseconds 0 .. 1000000000 with at "
                            "most three decimals, such as 20000 or 0.5",
                            text));
    }
    ns = *value;
  };
  return command.add_option_function<std::string>(name, take, help)
      ->type_name("US")
      ->default_str(ns % 1000 == 0 ? fmt::format("{}", ns / 1000)
                                   : fmt::format("{}.{:03}", ns / 1000, ns % 1000));
}

}  // namespace kvarena::tools
