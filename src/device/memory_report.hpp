#pragma once

/// @file
/// Memory figures as text for people. Pure.

#include "kvarena/device/vram_tracker.hpp"

#include <span>
#include <string>
#include <string_view>

namespace kvarena {

/// Exact and readable: "268435456 bytes (256.00 MiB)"; below one KiB just "17 bytes".
std::string bytes_text(std::uint64_t bytes);
/// "reported totals:" and a line for each; empty when there are none.
std::string reported_totals(std::span<const ReportedTotal> totals);
/// The largest `max_allocations` of `allocations`, one line each; empty when there are none.
std::string largest_allocations(std::span<const AllocationRecord> allocations,
                                std::size_t max_allocations);
/// What a device says that goes away while `leaked` are not freed.
std::string leak_report(std::string_view device, std::span<const AllocationRecord> leaked);

}  // namespace kvarena
