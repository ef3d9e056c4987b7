#include "tools/device_option.hpp"

#include "base/excerpt.hpp"

#include "kvarena/device/host_device.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <string>
#include <utility>

namespace kvarena::tools {
namespace {

constexpr std::int32_t kMaxOrdinal = 1023;

std::optional<OpenedDevice> open_host(const Console& console, std::uint64_t capacity_bytes) {
  auto host = HostDevice::create({.capacity_bytes = capacity_bytes});
  if (host) return OpenedDevice{std::move(host).value(), nullptr};
  console.error(describe(host.status()), "a machine that says how much memory it has",
                "look at /proc/meminfo and the process's control group");
  return std::nullopt;
}

Result<OpenedDevice> open_cuda(std::int32_t ordinal) {
  auto created = CudaDevice::create({.ordinal = ordinal});
  if (!created) return created.status();
  CudaDevice* cuda = created->get();
  return OpenedDevice{std::move(created).value(), cuda};
}

}  // namespace

std::optional<DeviceChoice> parse_device(std::string_view text) noexcept {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{Kind::automatic, 0};
  if (text == "cpu") return DeviceChoice{Kind::cpu, 0};
  constexpr std::string_view kCuda = "cuda:";
  if (!text.starts_with(kCuda)) return std::nullopt;
  text.remove_prefix(kCuda.size());
  std::int32_t ordinal = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ordinal);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || ordinal < 0 || ordinal > kMaxOrdinal) return std::nullopt;
  return DeviceChoice{Kind::cuda, ordinal};
}

CLI::Option* add_device_option(CLI::App& command, DeviceChoice& choice) {
  const auto take = [&choice](const std::string& text) {
    const auto parsed = parse_device(text);
    if (!parsed) {
      throw CLI::ValidationError(
          "--device", fmt::format("\"{}\" is no device; expected auto, cpu, or cuda:N such as "
                                  "cuda:0 ('kvarena devices' lists them)",
                                  printable(text)));
    }
    choice = *parsed;
  };
  return command
      .add_option_function<std::string>(
          "--device", take,
          "Where to run. auto: the first GPU, or with a warning the CPU where there is none")
      ->type_name("auto|cpu|cuda:N")
      ->default_str("auto");
}

std::string describe_in_one_line(const Status& status) {
  std::string text;
  for (const char c : describe_cuda(status)) {
    if (c == '\n') {
      text += "; ";
    } else {
      text += c;
    }
  }
  return text;
}

std::optional<OpenedDevice> open_device(const Console& console, const DeviceChoice& choice,
                                        std::uint64_t host_bytes, std::string_view instead) {
  if (choice.kind == DeviceChoice::Kind::cpu) return open_host(console, host_bytes);
  auto cuda = open_cuda(choice.ordinal);
  if (cuda) return std::move(cuda).value();
  if (choice.kind == DeviceChoice::Kind::automatic) {
    console.warning(
        fmt::format("--device auto: no GPU, {}: {}", instead, describe_in_one_line(cuda.status())));
    return open_host(console, host_bytes);
  }
  console.error(
      fmt::format("--device cuda:{}: {}", choice.ordinal, describe_in_one_line(cuda.status())),
      "a GPU that 'kvarena devices' lists",
      "choose one of those, or --device cpu; nothing falls back by itself");
  return std::nullopt;
}

}  // namespace kvarena::tools
