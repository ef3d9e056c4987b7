#pragma once

/// @file
/// `--device auto|cpu|cuda:N`: the option with which all commands choose their device. `auto` takes
/// GPU 0 when it can be used, and else the host with a warning. The other values never fall back.

#include "tools/console.hpp"

#include "kvarena/device/cuda_device.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// A device, open.
struct OpenedDevice {
  std::unique_ptr<Device> device;  ///< the host's or a GPU's
  CudaDevice* cuda = nullptr;      ///< the same when it is a GPU
};

/// What was given for `--device`.
struct DeviceChoice {
  /// Which kind.
  enum class Kind : std::uint8_t { automatic, cpu, cuda };

  Kind kind = Kind::automatic;  ///< auto, cpu, cuda:N
  std::int32_t ordinal = 0;     ///< N

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

/// "auto", "cpu" or "cuda:N" with N 0 .. 1023; nothing for anything else.
std::optional<DeviceChoice> parse_device(std::string_view text) noexcept;

/// Declares `--device` on `command` and returns it.
CLI::Option* add_device_option(CLI::App& command, DeviceChoice& choice);

/// describe_cuda in one line, its parts separated by "; ".
std::string describe_in_one_line(const Status& status);

/// Opens the device. When it cannot be used, reports the reason on the console and returns nothing
/// (ExitCode::environment). Warns when `auto` takes the host; `instead` says what the host does.
/// `host_bytes` is a host device's capacity; 0: what the machine has available.
std::optional<OpenedDevice> open_device(const Console& console, const DeviceChoice& choice,
                                        std::uint64_t host_bytes = 0,
                                        std::string_view instead = "running on the CPU");

}  // namespace kvarena::tools
