// Any bytes at all as the index of a model's safetensors files.

#include "base/excerpt.hpp"
#include "capacity/files/safetensors.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/read_failure_check.hpp"

#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvarena::capacity;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  SafetensorsMap files;
  ReadFailure failure;
  if (const kvarena::Status read = parse_safetensors_index(text, "i.json", files, failure); !read) {
    kvarena::test::check_refusal(read, failure);
    return 0;
  }
  if (files.empty()) std::abort();
  for (const auto& [file, tensors] : files) {
    if (file.empty() || file.find('/') != file.npos || file.front() == '.' || tensors.empty() ||
        kvarena::printable(file) != file) {
      std::abort();
    }
  }
  return 0;
}
