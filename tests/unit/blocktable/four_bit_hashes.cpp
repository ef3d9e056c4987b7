// Linked into a program of tests: its prefix caches look at four bits of each hash.

#include "blocktable/prefix_hash_bits.hpp"

namespace kvarena::test {
namespace {

const bool kIsSet = [] {
  set_prefix_hash_bits(4);
  return true;
}();

}  // namespace
}  // namespace kvarena::test
