#pragma once

/// @file
/// What tests/fuzz/NAME_fuzz.cpp defines for libFuzzer, and what CMake tells the corpus test of it.

#include <cstddef>
#include <cstdint>

/// Takes any bytes at all. Aborts when what reads them broke a promise. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvarena::test {

extern const char* const kFuzzTarget;  ///< "gguf"
extern const char* const kFuzzCorpus;  ///< the folder of its corpus

}  // namespace kvarena::test
