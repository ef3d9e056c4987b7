#pragma once

/// @file
/// What the sample report is rendered to, whole, as files beside the tests.

#include <fstream>
#include <iterator>
#include <string>

namespace kvarena::test {

/// The text of one of them.
inline std::string golden_file(const std::string& name) {
  std::ifstream in(KVARENA_GOLDEN_DIR "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace kvarena::test
