// Any bytes at all as a GGUF file: as they are, and with endless data behind, so that tensors lie
// in the file and the model behind the header is reached.

#include "capacity/files/gguf.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/read_failure_check.hpp"
#include "support/gguf_writer.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using namespace kvarena::capacity;

void check_sums(const TensorIndex& index, std::int64_t size_bytes) {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  for (const TypeTotal& total : index.types) {
    tensors += total.tensors;
    elements += total.elements;
    bytes += total.bytes;
  }
  if (tensors != static_cast<std::int64_t>(index.tensors.size()) || elements != index.elements ||
      bytes != index.bytes || bytes < 0 || bytes > size_bytes || elements < 0) {
    std::abort();
  }
}

void play(const ByteSource& source) {
  GgufHeader header;
  ReadFailure failure;
  if (const kvarena::Status read = parse_gguf(source, header, failure); !read) {
    return kvarena::test::check_refusal(read, failure);
  }
  check_sums(header.weights, source.size_bytes());
  ModelSpec model;
  if (const kvarena::Status made = model_from_gguf(header, "m.gguf", model, failure); !made) {
    return kvarena::test::check_refusal(made, failure);
  }
  if (!validate(model) || model.name.empty() || kv_elements_per_token(model) < 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  play(MemoryBytes("m.gguf", bytes));
  play(kvarena::test::HollowBytes(std::string(bytes), std::int64_t{1} << 50));
  return 0;
}
