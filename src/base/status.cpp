#include "kvarena/base/status.hpp"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <system_error>

namespace kvarena {
namespace {

constexpr std::array<std::string_view, 18> kCodeNames = {
    "ok",
    "invalid_argument",
    "unsupported",
    "duplicate_argument",
    "not_found",
    "failed_precondition",
    "exhausted",
    "insufficient_vram",
    "context_length_exceeded",
    "double_release",
    "stale_handle",
    "reference_underflow",
    "invariant_violated",
    "device_error",
    "io_error",
    "parse_error",
    "verification_failed",
    "residency_violated",
};
static_assert(kCodeNames.size() == static_cast<std::size_t>(StatusCode::residency_violated) + 1);

constexpr std::array<std::string_view, 57> kResourceNames = {
    "none",        "block",       "reservation", "holder",        "ticket",
    "fence_entry", "sequence",    "table_page",  "device_memory", "host_memory",
    "workspace",   "stream",      "event",       "allocation",    "file",
    "thread",      "num_layers",  "num_groups",  "num_planes",    "num_kv_heads",
    "num_q_heads", "group_size",  "head_dim",    "block_size",    "num_blocks",
    "dtype",       "tile_order",  "block_order", "layer",         "alignment",
    "block_bytes", "pool_bytes",  "watermark",   "num_sequences", "sequence_length",
    "num_tokens",  "token_index", "block_index", "span_size",     "pointer",
    "capacity",    "scale",       "window",      "soft_cap",      "num_threads",
    "num_holders", "num_tickets", "name",        "device",        "period",
    "time_limit",  "address",     "token",       "connections",   "request_bytes",
    "num_ranks",   "utilization",
};
static_assert(kResourceNames.size() == static_cast<std::size_t>(Resource::utilization) + 1);

std::int64_t as_signed(std::uint64_t value) noexcept { return static_cast<std::int64_t>(value); }

std::string plural(std::string_view noun) {
  if (noun.ends_with('y')) return fmt::format("{}ies", noun.substr(0, noun.size() - 1));
  return fmt::format("{}s", noun);
}

std::string describe_native(const Status& status) {
  if (status.native == 0) return {};
  if (status.code == StatusCode::io_error) {
    return fmt::format(" (errno {}: {})", status.native,
                       std::generic_category().message(status.native));
  }
  return fmt::format(" (native code {})", status.native);
}

}  // namespace

std::string_view name_of(StatusCode code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "unknown_code";
}

std::string_view name_of(Resource resource) noexcept {
  const auto index = static_cast<std::size_t>(resource);
  return index < kResourceNames.size() ? kResourceNames[index] : "unknown_resource";
}

std::string describe(const Status& status) {
  const std::string_view what = name_of(status.resource);
  const std::string native = describe_native(status);
  switch (status.code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument:
      return fmt::format("invalid {}: got {}, expected {} to {}", what, as_signed(status.subject),
                         as_signed(status.required), as_signed(status.available));
    case StatusCode::unsupported:
      return fmt::format("unsupported {}: {} is valid but not available here{}", what,
                         as_signed(status.subject), native);
    case StatusCode::duplicate_argument:
      return fmt::format("{} {} was named more than once in one call; name it once", what,
                         status.subject);
    case StatusCode::not_found:
      return fmt::format("{} {} not found: it was never created here or is destroyed{}", what,
                         status.subject, native);
    case StatusCode::failed_precondition:
      if (status.required == 0 && status.available == 0) {
        return fmt::format("{} {} is in a state that forbids the call{}", what, status.subject,
                           native);
      }
      return fmt::format("{} {} is in a state that forbids the call (required {}, present {}){}",
                         what, status.subject, status.required, status.available, native);
    case StatusCode::exhausted:
      return fmt::format("out of {}: {} required, {} available", plural(what), status.required,
                         status.available);
    case StatusCode::insufficient_vram:
      return fmt::format("InsufficientVram: {} bytes required, {} bytes available{}",
                         status.required, status.available, native);
    case StatusCode::context_length_exceeded:
      return fmt::format("sequence {} cannot grow to {} tokens: its maximum is {}", status.subject,
                         status.required, status.available);
    case StatusCode::double_release:
      return fmt::format("{} {} was released but nobody holds it (double release)", what,
                         status.subject);
    case StatusCode::stale_handle:
      return fmt::format("handle of {} {} is stale: it has been handed out again since", what,
                         status.subject);
    case StatusCode::reference_underflow:
      return fmt::format("{} {} released {} references but holds {}", what, status.subject,
                         status.required, status.available);
    case StatusCode::invariant_violated:
      return fmt::format("invariant {} violated at {} {}: expected {}, found {}", status.native,
                         what, status.subject, status.required, status.available);
    case StatusCode::device_error:
      return fmt::format("device error on {} {}{}", what, status.subject, native);
    case StatusCode::io_error:
      return fmt::format("input/output error on {} {}{}", what, status.subject, native);
    case StatusCode::parse_error:
      return fmt::format("malformed input: {} at position {}", what, status.subject);
    case StatusCode::verification_failed:
      return fmt::format("verification failed at {} {}: expected {}, found {}", what,
                         status.subject, status.required, status.available);
    case StatusCode::residency_violated:
      return fmt::format("VRAM residency violated: {} {:#x} is not memory that the policy permits",
                         what, status.subject);
  }
  return "unknown status";
}

}  // namespace kvarena
