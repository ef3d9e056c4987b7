#pragma once

/// @file
/// The world of tables: one or two pools of ids, each with a simulated memory, whose programs fork,
/// cut, share, cache and release against tickets that retire in any order.

#include "effects/program.hpp"
#include "effects/simulated_memory.hpp"

namespace kvarena::test {

/// The world.
const World& tables_world();
/// Plays a program in it, with a bug planted in its memory.
std::optional<Failure> play_tables(const Program& program, std::string* story, PlantedBug bug);

}  // namespace kvarena::test
