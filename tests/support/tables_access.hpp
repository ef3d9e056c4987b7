#pragma once

/// @file
/// What BlockTables is made of, for tests that plant faults in it: an explicit instantiation may
/// name a private member.

#include "blocktable/block_tables_impl.hpp"
#include "kvarena/blocktable/block_tables.hpp"

namespace kvarena::test {

auto& parts_of(const BlockTables& tables);

/// Defines parts_of for the member given.
template <auto kImpl>
struct TablesAccess {
  friend auto& parts_of(const BlockTables& tables) { return *(tables.*kImpl); }
};
template struct TablesAccess<&BlockTables::impl_>;

}  // namespace kvarena::test
