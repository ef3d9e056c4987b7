#pragma once

/// @file
/// Memory figures as text for people. Pure functions.

#include "kvarena/device/vram_tracker.hpp"

#include <span>
#include <string>
#include <string_view>

namespace kvarena {

/// Returns exact and readable bytes: "268435456 bytes (256.00 MiB)". Below one KiB just "17 bytes".
std::string bytes_text(std::uint64_t bytes);
/// Returns "reported totals:" and a line for each total. Empty when there are none.
std::string reported_totals(std::span<const ReportedTotal> totals);
/// Returns the largest `max_allocations` of `allocations`, one line each. Empty when there are
/// none.
std::string largest_allocations(std::span<const AllocationRecord> allocations,
                                std::size_t max_allocations);
/// Returns the message of a device that is destroyed while `leaked` are not freed.
std::string leak_report(std::string_view device, std::span<const AllocationRecord> leaked);

}  // namespace kvarena
