#pragma once

/// @file
/// `Status`: the outcome of a call that can fail for reasons the caller must expect.
/// Thirty-two trivially copyable bytes; it owns nothing and can be stored, compared and passed
/// between threads freely. Text is made only when asked for, by `describe(status)`; objects that
/// keep more detail about their last failure have a member `describe(status)` that adds it.

#include "kvarena/base/export.hpp"
#include "kvarena/base/option.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvarena {

/// What happened. docs/reference/errors.md says for each code when it comes and what to do.
enum class StatusCode : std::uint8_t {
  ok = 0,
  invalid_argument,         ///< an argument or option is outside its range
  unsupported,              ///< valid, but this build, device or kernel cannot do it
  duplicate_argument,       ///< the same object was named twice in one call
  not_found,                ///< no such sequence, holder, ticket, allocation, file
  failed_precondition,      ///< the object is in a state that forbids the call
  exhausted,                ///< a pool is empty: blocks, table pages, sequences, holders, tickets
  insufficient_vram,        ///< the device cannot provide that many bytes
  context_length_exceeded,  ///< a sequence would grow past its maximum length
  double_release,           ///< a block reference was released that nobody held
  stale_handle,             ///< the handle's generation is over
  reference_underflow,      ///< a holder released more references than it took
  invariant_violated,       ///< an integrity check failed: corruption or a bug
  device_error,             ///< the device or its driver reported `native`
  io_error,                 ///< the operating system reported `native` (errno)
  parse_error,              ///< malformed input text
  verification_failed,      ///< data read back differs from what was written
  residency_violated,       ///< memory is not where the device's policy wants it
  limit_exceeded,           ///< one call is larger than a limit that was set at create
};

/// What the numbers of a Status are about: a pool, an object, or the name of an argument. A field
/// of an option struct is an `Option`.
enum class Resource : std::uint8_t {
  none = 0,
  // pools and objects
  block,
  reservation,
  holder,
  ticket,
  fence_entry,
  sequence,
  table_page,
  device_memory,
  host_memory,
  workspace,
  stream,
  event,
  allocation,
  file,
  thread,
  step,
  // arguments
  num_groups,
  num_planes,
  num_kv_heads,
  num_q_heads,
  head_dim,
  block_size,
  num_blocks,
  dtype,
  tile_order,
  layer,
  alignment,
  block_bytes,
  pool_bytes,
  num_sequences,
  sequence_length,
  num_tokens,
  token_index,
  block_index,
  span_size,
  pointer,
  capacity,
  scale,
  window,
  soft_cap,
  num_threads,
  name,
  device,
  address,
  urgency,
  memory_check,
  content,
};

/// The outcome of a call. Default-constructed: ok.
///
/// Meaning of the numbers by code:
/// - invalid_argument: `subject` is the value given, `required`..`available` the accepted range;
///   of an option when `option` names one, else of the argument `resource`;
/// - exhausted, insufficient_vram: `required` was asked for, `available` could be had; `option` is
///   the one that sets the pool's size, none where no option does;
/// - limit_exceeded: `required` is the size of the call, `available` the limit, `option` the one
///   that sets it. No release makes room: make the call smaller, or create with a larger limit;
/// - context_length_exceeded: `subject` is the sequence, `required` the length asked for,
///   `available` its maximum;
/// - not_found, stale_handle, double_release, invariant_violated: `subject` is the raw id;
/// - residency_violated: `subject` is the address;
/// - device_error, io_error: `native` is the driver's or errno's number.
struct [[nodiscard]] Status {
  StatusCode code = StatusCode::ok;    ///< what happened
  Resource resource = Resource::none;  ///< to what
  Option option = Option::none;        ///< the option that was refused, or that sets the limit
  std::int32_t native = 0;             ///< the driver's, errno's or the check's own number
  std::uint64_t subject = 0;           ///< which one: raw id or offending value
  std::uint64_t required = 0;          ///< what was asked for (or the smallest accepted value)
  std::uint64_t available = 0;         ///< what could be had (or the largest accepted value)

  /// True when nothing failed.
  constexpr bool is_ok() const noexcept { return code == StatusCode::ok; }
  /// True when nothing failed.
  constexpr explicit operator bool() const noexcept { return is_ok(); }
  friend constexpr bool operator==(const Status&, const Status&) noexcept = default;
};

static_assert(sizeof(Status) == 32 && std::is_trivially_copyable_v<Status>);

/// `value` was given for `argument`, which accepts `smallest`..`largest`. Negative values are
/// passed as their two's complement and rendered as negative.
constexpr Status invalid_argument(Resource argument, std::int64_t value, std::int64_t smallest,
                                  std::int64_t largest) noexcept {
  return {StatusCode::invalid_argument,
          argument,
          Option::none,
          0,
          static_cast<std::uint64_t>(value),
          static_cast<std::uint64_t>(smallest),
          static_cast<std::uint64_t>(largest)};
}
/// The same of an option.
constexpr Status invalid_option(Option option, std::int64_t value, std::int64_t smallest,
                                std::int64_t largest) noexcept {
  Status status = invalid_argument(Resource::none, value, smallest, largest);
  status.option = option;
  return status;
}
/// `value` of `argument` is valid but cannot be done here.
constexpr Status unsupported(Resource argument, std::uint64_t value = 0) noexcept {
  return {StatusCode::unsupported, argument, Option::none, 0, value, 0, 0};
}
/// The same of an option.
constexpr Status unsupported_option(Option option, std::uint64_t value) noexcept {
  return {StatusCode::unsupported, Resource::none, option, 0, value, 0, 0};
}
/// The object with this raw id was named more than once in one call.
constexpr Status duplicate_argument(Resource resource, std::uint64_t id) noexcept {
  return {StatusCode::duplicate_argument, resource, Option::none, 0, id, 0, 0};
}
/// There is no `resource` with this raw id.
constexpr Status not_found(Resource resource, std::uint64_t id) noexcept {
  return {StatusCode::not_found, resource, Option::none, 0, id, 0, 0};
}
/// The state of `resource` forbids the call.
constexpr Status failed_precondition(Resource resource, std::uint64_t id = 0,
                                     std::uint64_t required = 0,
                                     std::uint64_t available = 0) noexcept {
  return {StatusCode::failed_precondition, resource, Option::none, 0, id, required, available};
}
/// The pool of `resource` has `available` left where `required` were asked for; `raise` is the
/// option that makes it larger.
constexpr Status exhausted(Resource resource, std::uint64_t required, std::uint64_t available,
                           std::uint64_t subject = 0, Option raise = Option::none) noexcept {
  return {StatusCode::exhausted, resource, raise, 0, subject, required, available};
}
/// A call with `required` of `resource` where `limit`, an option of create, permits `available`.
constexpr Status limit_exceeded(Resource resource, std::uint64_t required, std::uint64_t available,
                                Option limit, std::uint64_t subject = 0) noexcept {
  return {StatusCode::limit_exceeded, resource, limit, 0, subject, required, available};
}
/// The device can provide `available_bytes` where `required_bytes` were asked for.
constexpr Status insufficient_vram(std::uint64_t required_bytes,
                                   std::uint64_t available_bytes) noexcept {
  return {StatusCode::insufficient_vram,
          Resource::device_memory,
          Option::none,
          0,
          0,
          required_bytes,
          available_bytes};
}

/// The memory at `address` is not what the device's policy asks for.
constexpr Status residency_violated(std::uint64_t address) noexcept {
  return {StatusCode::residency_violated, Resource::allocation, Option::none, 0, address, 0, 0};
}

/// The code's name as written in this header, e.g. "exhausted".
KVARENA_EXPORT std::string_view name_of(StatusCode code) noexcept;
/// The resource's name as written in this header, e.g. "num_kv_heads".
KVARENA_EXPORT std::string_view name_of(Resource resource) noexcept;

/// One line for a person: what happened, the numbers, what was expected. Never empty.
/// Allocates the string; not for hot paths. Where memory is wanting: "(out of memory)".
KVARENA_EXPORT std::string describe(const Status& status) noexcept;

}  // namespace kvarena
