#pragma once

/// @file
/// `Status`: the outcome of a call that can fail for reasons the caller must expect. A Status has
/// 32 trivially copyable bytes and owns nothing. It can be stored, compared and passed between
/// threads freely. `describe(status)` makes the text when it is called. An object that keeps more
/// detail about its last failure has a member `describe(status)`, which adds that detail.

#include "kvarena/base/export.hpp"
#include "kvarena/base/option.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvarena {

/// The kind of outcome. docs/reference/errors.md says for each code when it occurs and what to do.
enum class StatusCode : std::uint8_t {
  ok = 0,
  invalid_argument,         ///< an argument or option is outside its range
  unsupported,              ///< valid, but this build, device or kernel cannot do it
  duplicate_argument,       ///< the same object was named twice in one call
  not_found,                ///< no such sequence, holder, ticket, allocation or file
  failed_precondition,      ///< the object is in a state that forbids the call
  exhausted,                ///< a pool is empty: blocks, table pages, sequences, holders, tickets
  insufficient_vram,        ///< the device cannot provide that many bytes
  context_length_exceeded,  ///< a sequence would grow past its maximum length
  double_release,           ///< a block reference was released that nobody holds
  stale_handle,             ///< the handle's generation is no longer the current one
  reference_underflow,      ///< a holder released more references than it took
  invariant_violated,       ///< an integrity check failed: memory is corrupt, or there is a bug
  device_error,             ///< the device or its driver reported `native`
  io_error,                 ///< the operating system reported `native` (errno)
  parse_error,              ///< malformed input text
  verification_failed,      ///< data read back differ from the data written
  residency_violated,       ///< memory is not where the device's policy requires it
  limit_exceeded,           ///< one call is larger than a limit that was set at create
};

/// The subject of the numbers of a Status: a pool, an object, or an argument. A field of an option
/// struct is an `Option`.
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
  // a pool again: of pages that groups of blocks share
  page,
};

/// The outcome of a call. A default-constructed Status is ok.
///
/// The meaning of the numbers depends on the code:
/// - invalid_argument: `subject` is the value given, and `required`..`available` is the accepted
///   range. The value is that of `option` when it is set, else of the argument `resource`.
/// - exhausted, insufficient_vram: `required` was asked for, and `available` could be had. `option`
///   sets the pool's size; it is none when no option does.
/// - limit_exceeded: `required` is the size of the call, `available` the limit, and `option` sets
///   the limit. No release makes room: make the call smaller, or create with a larger limit.
/// - context_length_exceeded: `subject` is the sequence, `required` the length asked for, and
///   `available` its maximum.
/// - not_found, stale_handle, double_release, invariant_violated: `subject` is the raw id.
/// - residency_violated: `subject` is the address.
/// - device_error, io_error: `native` is the number of the driver or errno.
struct [[nodiscard]] Status {
  StatusCode code = StatusCode::ok;    ///< what happened
  Resource resource = Resource::none;  ///< what the numbers are about
  Option option = Option::none;        ///< the option that was refused, or that sets the limit
  std::int32_t native = 0;             ///< the number of the driver, of errno or of the check
  std::uint64_t subject = 0;           ///< raw id or refused value
  std::uint64_t required = 0;          ///< what was asked for, or the smallest accepted value
  std::uint64_t available = 0;         ///< what could be had, or the largest accepted value

  /// Returns true when the call succeeded.
  constexpr bool is_ok() const noexcept { return code == StatusCode::ok; }
  /// Returns true when the call succeeded.
  constexpr explicit operator bool() const noexcept { return is_ok(); }
  friend constexpr bool operator==(const Status&, const Status&) noexcept = default;
};

static_assert(sizeof(Status) == 32 && std::is_trivially_copyable_v<Status>);

/// `value` was given for `argument`, which accepts `smallest`..`largest`. A negative value is
/// stored as its two's complement; describe shows it as negative.
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
/// `value` was given for `option`, which accepts `smallest`..`largest`.
constexpr Status invalid_option(Option option, std::int64_t value, std::int64_t smallest,
                                std::int64_t largest) noexcept {
  Status status = invalid_argument(Resource::none, value, smallest, largest);
  status.option = option;
  return status;
}
/// `value` of `argument` is valid, but this build or device cannot do it.
constexpr Status unsupported(Resource argument, std::uint64_t value = 0) noexcept {
  return {StatusCode::unsupported, argument, Option::none, 0, value, 0, 0};
}
/// `value` of `option` is valid, but this build or device cannot do it.
constexpr Status unsupported_option(Option option, std::uint64_t value) noexcept {
  return {StatusCode::unsupported, Resource::none, option, 0, value, 0, 0};
}
/// One call named the object with this raw id more than once.
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
/// The call asked the pool of `resource` for `required`, and the pool has `available` left. `raise`
/// is the option that makes the pool larger.
constexpr Status exhausted(Resource resource, std::uint64_t required, std::uint64_t available,
                           std::uint64_t subject = 0, Option raise = Option::none) noexcept {
  return {StatusCode::exhausted, resource, raise, 0, subject, required, available};
}
/// The call needs `required` of `resource`. The option `limit` of create permits `available`.
constexpr Status limit_exceeded(Resource resource, std::uint64_t required, std::uint64_t available,
                                Option limit, std::uint64_t subject = 0) noexcept {
  return {StatusCode::limit_exceeded, resource, limit, 0, subject, required, available};
}
/// The call asked the device for `required_bytes`, and the device can provide `available_bytes`.
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

/// The memory at `address` is not what the device's policy requires.
constexpr Status residency_violated(std::uint64_t address) noexcept {
  return {StatusCode::residency_violated, Resource::allocation, Option::none, 0, address, 0, 0};
}

/// Returns the code's name as spelled in this header, for example "exhausted".
KVARENA_EXPORT std::string_view name_of(StatusCode code) noexcept;
/// Returns the resource's name as spelled in this header, for example "num_kv_heads".
KVARENA_EXPORT std::string_view name_of(Resource resource) noexcept;

/// Returns one line for a person: what happened, the numbers, and what was expected. The line is
/// never empty. Allocates the string, so it is not for hot paths. Returns "(out of memory)" when it
/// cannot.
KVARENA_EXPORT std::string describe(const Status& status) noexcept;

/// Logs (critical) that the value of a failed Result is used, and why there is none.
KVARENA_EXPORT void report_missing_value(const Status& status) noexcept;

}  // namespace kvarena
