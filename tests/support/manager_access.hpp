#pragma once

/// @file
/// What a BlockManager is made of, for tests that plant corruption in it: an explicit instantiation
/// may name a private member.

#include "allocator/block_manager_impl.hpp"
#include "kvarena/allocator/block_manager.hpp"

namespace kvarena::test {

auto& parts_of(const BlockManager& manager);

/// Defines parts_of for the member given.
template <auto kImpl>
struct ManagerAccess {
  friend auto& parts_of(const BlockManager& manager) { return *(manager.*kImpl); }
};
template struct ManagerAccess<&BlockManager::impl_>;

}  // namespace kvarena::test
