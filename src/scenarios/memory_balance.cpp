#include "scenarios/memory_balance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace kvarena::replay::pressure {

Result<MemoryBalance> read_balance(const Device& device) {
  const MemoryBreakdown breakdown = device.tracker().breakdown();
  const Result<MemoryInfo> driver = device.memory_info();
  if (!driver) return driver.status();
  return MemoryBalance{
      .driver_free = static_cast<std::int64_t>(driver->free_bytes),
      .tracked = static_cast<std::int64_t>(breakdown.total.bytes),
      .staging = static_cast<std::int64_t>(breakdown.staging.bytes),
      .allocations = static_cast<std::int64_t>(breakdown.total.count + breakdown.staging.count)};
}

void expect_same(ScenarioReport& report, std::string_view when, const MemoryBalance& before,
                 const MemoryBalance& after, std::int64_t tolerance_bytes) {
  const auto name = [when](const char* what) { return fmt::format("{}: {}", when, what); };
  if (tolerance_bytes == 0) {
    report.expect_equal(name("free bytes, by the driver"), before.driver_free, after.driver_free);
  } else {
    report.expect_at_most(name("change of free bytes, by the driver"), tolerance_bytes,
                          std::abs(after.driver_free - before.driver_free));
  }
  report.expect_equal(name("tracked bytes"), before.tracked, after.tracked);
  report.expect_equal(name("tracked staging bytes"), before.staging, after.staging);
  report.expect_equal(name("tracked allocations"), before.allocations, after.allocations);
}

Status expect_refused(ScenarioReport& report, const Device& device, const ExpectedRefusal& expected,
                      const std::function<Status()>& call) {
  const Result<MemoryBalance> before = read_balance(device);
  if (!before) return before.status();
  const Status status = call();
  const Result<MemoryBalance> after = read_balance(device);
  if (!after) return after.status();
  const auto required = static_cast<std::int64_t>(status.required);
  const auto available = static_cast<std::int64_t>(status.available);
  report.add(expected.name + "_required_bytes", required);
  report.add(expected.name + "_available_bytes", available);
  report.add(expected.name + "_driver_free_bytes", before->driver_free);
  const auto name = [&expected](const char* what) {
    return fmt::format("{}: {}", expected.name, what);
  };
  report.expect_same(name("refused with"), std::string(name_of(StatusCode::insufficient_vram)),
                     std::string(name_of(status.code)));
  report.expect_equal(name("bytes required"), expected.required_bytes, required);
  const auto [least, most] = std::minmax(before->driver_free, after->driver_free);
  const std::int64_t low = least - expected.held_bytes - expected.tolerance_bytes;
  const std::int64_t high = most - expected.held_bytes + expected.tolerance_bytes;
  report.expect(name("bytes available, as the driver says"), fmt::format("{} to {}", low, high),
                fmt::format("{}", available), low <= available && available <= high);
  report.expect_at_most(name("bytes available, where less than required"), required - 1, available);
  expect_same(report, expected.name, *before, *after, expected.tolerance_bytes);
  return {};
}

}  // namespace kvarena::replay::pressure
