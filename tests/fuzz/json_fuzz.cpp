// Any bytes at all as JSON: what is read is what nlohmann's own parser reads, and what that refuses
// is refused.

#include "capacity/files/bounded_json.hpp"
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
  const nlohmann::json other = nlohmann::json::parse(text, nullptr, false);
  if (const kvarena::Status read = parse_json({text, "c.json"}, {}, value, failure); !read) {
    kvarena::test::check_refusal(read, failure);
    const bool has_reason = failure.what.found.ends_with(" again") ||
                            failure.what.found == "a NUL byte" ||
                            failure.what.expected.ends_with("levels of nesting");
    if (!other.is_discarded() && !has_reason) std::abort();
    return 0;
  }
  if (other.is_discarded() || other != value) std::abort();
  return 0;
}
