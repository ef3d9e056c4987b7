#pragma once

/// @file
/// For tests alone: how many bits of a hash the indexes made from now on look at. With few bits
/// nearly all hashes collide, and only the comparison of contents tells blocks apart.

namespace kvarena {

/// 1 .. 64; 64 by default. Not safe while another thread makes tables.
void set_prefix_hash_bits(int bits) noexcept;
int prefix_hash_bits() noexcept;

}  // namespace kvarena
