#include "kvarena/base/status.hpp"

#include "base/log_internal.hpp"
#include "kvarena/base/choose_pages.hpp"
#include "kvarena/base/dtype.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <span>
#include <system_error>

namespace kvarena {
namespace {

/// By StatusCode, in the order of its header.
constexpr std::array<std::string_view, 19> kCodeNames = {
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
    "limit_exceeded",
};
static_assert(kCodeNames.size() == static_cast<std::size_t>(StatusCode::limit_exceeded) + 1);

/// By Resource, in the order of its header.
constexpr std::array<std::string_view, 49> kResourceNames = {
    "none",          "block",       "reservation",   "holder",
    "ticket",        "fence_entry", "sequence",      "table_page",
    "device_memory", "host_memory", "workspace",     "stream",
    "event",         "allocation",  "file",          "thread",
    "step",          "num_groups",  "num_planes",    "num_kv_heads",
    "num_q_heads",   "head_dim",    "block_size",    "num_blocks",
    "dtype",         "tile_order",  "layer",         "alignment",
    "block_bytes",   "pool_bytes",  "num_sequences", "sequence_length",
    "num_tokens",    "token_index", "block_index",   "span_size",
    "pointer",       "capacity",    "scale",         "window",
    "soft_cap",      "num_threads", "name",          "device",
    "address",       "urgency",     "memory_check",  "content",
    "page",
};
static_assert(kResourceNames.size() == static_cast<std::size_t>(Resource::page) + 1);

std::int64_t as_signed(std::uint64_t value) noexcept { return static_cast<std::int64_t>(value); }

/// The content of a pool, or the things of which a call has too many: "table pages", "host memory",
/// "tokens".
std::string contents_of(Resource pool) {
  if (pool == Resource::capacity) return "room";
  std::string noun(name_of(pool));
  if (noun.starts_with("num_")) return noun.substr(4);
  std::ranges::replace(noun, '_', ' ');
  if (noun.ends_with("memory")) return noun;
  if (noun.ends_with('y')) return noun.replace(noun.size() - 1, 1, "ies");
  return noun + 's';
}

/// The driver's or errno's number with its text, or nothing when there is none.
std::string describe_native(const Status& status) {
  if (status.native == 0) return {};
  if (status.code == StatusCode::io_error) {
    return fmt::format(" (errno {}: {})", status.native,
                       std::generic_category().message(status.native));
  }
  return fmt::format(" (the driver's error {})", status.native);
}

/// The name of the option when there is one, because it is more precise than the resource.
std::string_view name_of_subject(const Status& status) noexcept {
  return status.option == Option::none ? name_of(status.resource) : name_of(status.option);
}

/// Whether a refused value lies between the two numbers: there is a stricter rule, and where the
/// rule is a multiple, the two are the nearest ones.
bool is_between(const Status& status) noexcept {
  return as_signed(status.required) <= as_signed(status.subject) &&
         as_signed(status.subject) <= as_signed(status.available);
}

/// The rule of an option of a group, or nothing when the range is the rule.
std::string rule_of_group(const Status& status) {
  switch (status.option) {
    case Option::reads_layer:
      return status.available == status.required
                 ? "expected -1: each layer of states has a state of its own"
                 : "expected -1, or a layer of the same group with K and V of its own";
    case Option::layer:
      return is_between(status) ? "expected a layer that no other place of a group names" : "";
    case Option::limit_tokens:
    case Option::rollback_tokens:
      if (status.required == 0 && status.available == 0) {
        return "expected 0: layers of this kind have none";
      }
      break;
    case Option::index_dim:
    case Option::checkpoint_every_tokens: break;
    default: return {};
  }
  if (!is_between(status)) return {};
  return fmt::format("expected {} or {}", as_signed(status.required), as_signed(status.available));
}

/// The accepted values of an argument or option: a range, or a sentence for options that have a
/// stricter rule.
std::string expectation(const Status& status) {
  if (std::string rule = rule_of_group(status); !rule.empty()) return rule;
  if (status.option == Option::size) {
    return "expected exactly one of num_blocks, budget_bytes and all_free_but_bytes";
  }
  const bool is_q_heads =
      status.option == Option::num_q_heads || status.resource == Resource::num_q_heads;
  if (is_q_heads && status.required > 1) {
    return fmt::format("expected a multiple of the {} KV heads, up to {}", status.required,
                       as_signed(status.available));
  }
  if (status.resource == Resource::pointer && status.subject == 0) return "expected an address";
  return fmt::format("expected {} to {}", as_signed(status.required), as_signed(status.available));
}

/// The names of an option's values, for options that are enumerators; rooms above this one have
/// most of the types. Tests compare them.
std::span<const std::string_view> value_names(Option option) noexcept {
  static constexpr std::array<std::string_view, 2> kOrders = {"block_major", "layer_major"};
  static constexpr std::array<std::string_view, 4> kScales = {"none", "per_tensor", "per_head",
                                                              "per_token_head"};
  static constexpr std::array<std::string_view, 3> kScrubs = {"never", "on_owner_change", "always"};
  static constexpr std::array<std::string_view, 3> kDuplicates = {"duplicate", "share", "wait"};
  static constexpr std::array<std::string_view, 5> kEvictions = {"tail-first", "head-first", "fifo",
                                                                 "lfu", "priority"};
  switch (option) {
    case Option::order: return kOrders;
    case Option::scale: return kScales;
    case Option::scrub: return kScrubs;
    case Option::duplicates: return kDuplicates;
    case Option::eviction: return kEvictions;
    default: return {};
  }
}

/// A valid value that is not available here: an enumerator by its name.
std::string unavailable(const Status& status) {
  const bool is_dtype = status.resource == Resource::dtype || status.option == Option::dtype;
  if (is_dtype && status.subject <= static_cast<std::uint64_t>(DType::latent_fp8)) {
    return std::string(name_of(static_cast<DType>(status.subject)));
  }
  if (is_dtype && status.subject == kNoDType) return "a storage format without a dtype";
  if (status.option == Option::kind &&
      status.subject <= static_cast<std::uint64_t>(PagedKind::cross)) {
    return std::string(name_of(static_cast<PagedKind>(status.subject)));
  }
  if (const auto names = value_names(status.option); status.subject < names.size()) {
    return std::string(names[status.subject]);
  }
  return fmt::to_string(as_signed(status.subject));
}

/// The number of what is missing. Those of blocks may be negative: nobody checks them before.
std::string numbered(const Status& status) {
  return status.resource == Resource::block ? fmt::to_string(as_signed(status.subject))
                                            : fmt::to_string(status.subject);
}

/// The value that was given. For PoolSize: how many of its fields were set.
std::string given(const Status& status) {
  if (status.option != Option::size) return fmt::to_string(as_signed(status.subject));
  return status.subject == 0 ? "none" : fmt::to_string(status.subject);
}

/// The end of a message that names the option to raise.
std::string what_to_raise(Option option) {
  return option == Option::none ? std::string() : fmt::format("; raise {}", name_of(option));
}

/// The message of limit_exceeded.
std::string text_of_limit(const Status& status) {
  switch (status.resource) {
    case Resource::workspace:
      return fmt::format("the workspace has {} bytes, the call needs {}", status.available,
                         status.required);
    case Resource::step:
      return fmt::format("{} calls in one step, which may have {}; end it and begin another",
                         status.required, status.available);
    default:
      return fmt::format("{} {} in one call, {} permits {}; make the call smaller or raise it",
                         status.required, contents_of(status.resource),
                         status.option == Option::none ? "the limit" : name_of(status.option),
                         status.available);
  }
}

/// A sequence that cannot have so many tokens; one that was not made has no number.
std::string too_long_text(const Status& status) {
  if (status.subject == 0) {
    return fmt::format("a sequence cannot begin with {} tokens: its maximum is {}", status.required,
                       status.available);
  }
  return fmt::format("sequence {} cannot grow to {} tokens: its maximum is {}", status.subject,
                     status.required, status.available);
}

/// The message of a state that forbids a call.
std::string text_of_state(const Status& status) {
  const std::string_view what = name_of(status.resource);
  if (status.resource == Resource::sequence_length) {
    return fmt::format(
        "sequence {} does not have what {} tokens need any more; the longest length up to there "
        "that can be had is {}",
        status.subject, status.required, status.available);
  }
  if (status.resource == Resource::thread) {
    return "another thread is inside this object; call it from one thread at a time";
  }
  if (status.required == 0 && status.available == 0) {
    return fmt::format("{} {} is in a state that forbids the call", what, status.subject);
  }
  return fmt::format("{} {} is in a state that forbids the call (required {}, present {})", what,
                     status.subject, status.required, status.available);
}

/// The message of each code.
std::string text_of(const Status& status) {
  const std::string_view what = name_of(status.resource);
  switch (status.code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument:
      return fmt::format("invalid {}: got {}, {}", name_of_subject(status), given(status),
                         expectation(status));
    case StatusCode::unsupported:
      return fmt::format("unsupported {}: {} is valid but not available here",
                         name_of_subject(status), unavailable(status));
    case StatusCode::duplicate_argument:
      return fmt::format("{} {} was named more than once in one call; name it once", what,
                         status.subject);
    case StatusCode::not_found:
      return fmt::format("{} {} not found: it was never created here or is destroyed", what,
                         numbered(status));
    case StatusCode::failed_precondition: return text_of_state(status);
    case StatusCode::exhausted:
      return fmt::format("out of {}: {} required, {} available{}", contents_of(status.resource),
                         status.required, status.available, what_to_raise(status.option));
    case StatusCode::insufficient_vram:
      return fmt::format("not enough device memory: {} bytes required, {} bytes available",
                         status.required, status.available);
    case StatusCode::context_length_exceeded: return too_long_text(status);
    case StatusCode::double_release:
      return fmt::format("{} {} was released but nobody holds it (double release)", what,
                         status.subject);
    case StatusCode::stale_handle:
      if (status.resource == Resource::pointer) {
        return fmt::format("{:#x} is no handle of this kind, or was released", status.subject);
      }
      return fmt::format(
          "handle of {} {} is stale: it was given back, forgotten or handed out again since", what,
          status.subject);
    case StatusCode::reference_underflow:
      return fmt::format("{} {} released {} references but holds {}", what, status.subject,
                         status.required, status.available);
    case StatusCode::invariant_violated:
      return fmt::format("invariant {} violated at {} {}: expected {}, found {}", status.native,
                         what, status.subject, status.required, status.available);
    case StatusCode::device_error:
      return fmt::format("device error on {} {}{}", what, status.subject, describe_native(status));
    case StatusCode::io_error:
      return fmt::format("input/output error on {} {}{}", what, status.subject,
                         describe_native(status));
    case StatusCode::parse_error:
      return fmt::format("malformed input: {} at position {}", what, status.subject);
    case StatusCode::verification_failed:
      return fmt::format("verification failed at {} {}: expected {}, found {}", what,
                         status.subject, status.required, status.available);
    case StatusCode::residency_violated:
      return fmt::format("VRAM residency violated: {} {:#x} is not memory that the policy permits",
                         what, status.subject);
    case StatusCode::limit_exceeded: return text_of_limit(status);
  }
  return "unknown status";
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

std::string describe(const Status& status) noexcept {
  try {
    return text_of(status);
  } catch (...) {
    return "(out of memory)";  // short enough for a string without heap memory
  }
}

void report_missing_value(const Status& status) noexcept {
  log_made(LogLevel::critical, [&] {
    return fmt::format("the value of a failed Result is used; there is none: {}", text_of(status));
  });
}

}  // namespace kvarena
