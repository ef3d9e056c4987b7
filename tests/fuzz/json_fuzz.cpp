// Any bytes at all as JSON: what is read is what nlohmann's own parser reads, and what that refuses
// is refused.

#include "capacity/bounded_json.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/read_failure_check.hpp"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvarena::capacity;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nlohmann::json value;
  ReadFailure failure;
  if (const kvarena::Status read = parse_json({text, "c.json"}, {}, value, failure); !read) {
    kvarena::test::check_refusal(read, failure);
    return 0;
  }
  const nlohmann::json other = nlohmann::json::parse(text, nullptr, false);
  if (other.is_discarded() || other != value) std::abort();
  return 0;
}
