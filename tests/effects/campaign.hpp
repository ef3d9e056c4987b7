#pragma once

/// @file
/// Plays random programs of a world and reports each kind of broken promise once, with the shortest
/// program that breaks it.

#include "effects/program.hpp"

#include <cstdint>
#include <string>

namespace kvarena::test {

/// What a campaign did and found.
struct CampaignResult {
  std::uint64_t operations = 0;
  std::uint64_t programs = 0;
  std::uint64_t failed_programs = 0;
  double seconds = 0;
  std::string report;  ///< empty: every promise was kept
};

/// Plays programs until `num_operations` have been played. Program i of a seed is always the same.
CampaignResult run_campaign(const World& world, std::uint64_t num_operations, std::uint64_t seed);

}  // namespace kvarena::test
