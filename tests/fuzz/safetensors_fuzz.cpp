// Any bytes at all as a safetensors file, and as the header of one.

#include "capacity/files/safetensors.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/read_failure_check.hpp"
#include "support/safetensors_writer.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using namespace kvarena::capacity;

void play(std::string_view bytes) {
  TensorIndex index;
  ReadFailure failure;
  const MemoryBytes source("m.safetensors", bytes);
  if (const kvarena::Status read = parse_safetensors(source, index, failure); !read) {
    return kvarena::test::check_refusal(read, failure);
  }
  std::int64_t sum = 0;
  for (const TensorInfo& tensor : index.tensors) sum += tensor.bytes;
  if (sum != index.bytes || index.bytes > source.size_bytes() - 8) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  play(bytes);
  if (size == 0) return 0;
  const auto data_bytes = static_cast<std::int64_t>(data[size - 1]);
  play(kvarena::test::safetensors_bytes(bytes.substr(0, size - 1), data_bytes));
  return 0;
}
