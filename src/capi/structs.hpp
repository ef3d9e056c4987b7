#pragma once

/// @file
/// How the C interface reads option structs, writes result structs and writes text. Each struct
/// begins with `struct_size`: the caller may be older or newer than the library.

#include "kvarena/base/status.hpp"
#include "kvarena/kvarena.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <type_traits>

namespace kvarena::capi {

static_assert(sizeof(kvarena_status) == sizeof(Status));
static_assert(offsetof(kvarena_status, resource) == offsetof(Status, resource));
static_assert(offsetof(kvarena_status, option) == offsetof(Status, option));
static_assert(offsetof(kvarena_status, native) == offsetof(Status, native));
static_assert(offsetof(kvarena_status, subject) == offsetof(Status, subject));
static_assert(offsetof(kvarena_status, required) == offsetof(Status, required));
static_assert(offsetof(kvarena_status, available) == offsetof(Status, available));

/// The subject of an unsupported status with the numbers of kvarena_dtype for DType's, and back.
std::uint64_t subject_to_c(const Status& status) noexcept;
std::uint64_t subject_from_c(const Status& status) noexcept;

/// The same 32 bytes; a type of elements has its number in C.
inline kvarena_status to_c(const Status& status) noexcept {
  auto result = std::bit_cast<kvarena_status>(status);
  if (status.code == StatusCode::unsupported) [[unlikely]]
    result.subject = subject_to_c(status);
  return result;
}
/// The other way round.
inline Status from_c(const kvarena_status& status) noexcept {
  auto result = std::bit_cast<Status>(status);
  if (result.code == StatusCode::unsupported) [[unlikely]]
    result.subject = subject_from_c(result);
  return result;
}

/// The refusal of a NULL where something must be.
inline Status refused_null() noexcept { return invalid_argument(Resource::pointer, 0, 1, -1); }

/// Entries that an array of a call may have. More is a negative number that became unsigned.
inline constexpr std::uint64_t kMostEntries = std::numeric_limits<std::int32_t>::max();

/// Returns whether there can be an array of `count` entries at an address.
inline Status check_array(const void* array, std::uint64_t count) noexcept {
  if (count > kMostEntries) [[unlikely]] {
    return invalid_argument(Resource::span_size, std::bit_cast<std::int64_t>(count), 0,
                            kMostEntries);
  }
  return array == nullptr && count > 0 ? refused_null() : Status{};
}

/// The refusal of an array with room for too few entries.
inline Status too_small(std::size_t room, std::size_t needed) noexcept {
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(room),
                          static_cast<std::int64_t>(needed), kMostEntries);
}

inline constexpr std::uint64_t kLeastStruct = 16;
inline constexpr std::uint64_t kLargestStruct = 65536;

/// Returns whether a caller's struct may have this size.
inline Status check_struct_size(std::uint64_t size) noexcept {
  if (size >= kLeastStruct && size <= kLargestStruct && size % 8 == 0) return {};
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(size), kLeastStruct,
                          kLargestStruct);
}

/// Returns whether the part of a caller's struct behind the first `known` bytes is zero.
inline bool is_zero_behind(const void* given, std::uint64_t known, std::uint64_t size) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(given);
  return std::all_of(bytes + known, bytes + size, [](unsigned char byte) { return byte == 0; });
}

/// Entry `i` of an array of structs. All have the size that the first one names.
template <class Struct>
const Struct* entry_of(const Struct* first, std::size_t i) noexcept {
  const auto* const bytes = reinterpret_cast<const std::byte*>(first);
  return reinterpret_cast<const Struct*>(bytes + i * first->struct_size);
}

/// Reads an option struct into `out`, which has every member that the caller's lacks as zero.
template <class Struct>
Status read_struct(const Struct* given, Struct& out) noexcept {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  if (given == nullptr) return refused_null();
  const std::uint64_t size = given->struct_size;
  if (size == sizeof(Struct)) {
    out = *given;
  } else {
    if (Status s = check_struct_size(size); !s) return s;
    if (size > sizeof(Struct) && !is_zero_behind(given, sizeof(Struct), size)) {
      return unsupported(Resource::span_size, size);
    }
    out = Struct{};
    std::memcpy(&out, given, std::min<std::uint64_t>(size, sizeof(Struct)));
  }
  if constexpr (requires { out.reserved; }) {
    if (out.reserved != 0) return unsupported(Resource::span_size, size);
  }
  return {};
}

/// Does the same where NULL means all defaults.
template <class Struct>
Status read_optional_struct(const Struct* given, Struct& out) noexcept {
  if (given != nullptr) return read_struct(given, out);
  out = Struct{};
  return {};
}

/// Reads entry `i` of an array of structs. Returns invalid_argument (span_size) for one that names
/// another size than the first.
template <class Struct>
Status read_entry(const Struct* first, std::size_t i, Struct& out) noexcept {
  if (Status s = check_struct_size(first->struct_size); !s) return s;
  const Struct* const its = entry_of(first, i);
  if (its->struct_size == first->struct_size) return read_struct(its, out);
  const auto size = static_cast<std::int64_t>(first->struct_size);
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(its->struct_size), size,
                          size);
}

/// Returns whether results can be written to `target`.
template <class Struct>
Status check_target(const Struct* target) noexcept {
  if (target == nullptr) return refused_null();
  return target->struct_size == sizeof(Struct) ? Status{} : check_struct_size(target->struct_size);
}

/// Writes a result struct that check_target has accepted.
template <class Struct>
void write_struct(const Struct& value, Struct* target) noexcept {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  const std::uint64_t size = target->struct_size;
  const std::uint64_t known = std::min<std::uint64_t>(size, sizeof(Struct));
  constexpr std::size_t kFirst = sizeof(target->struct_size);
  auto* const bytes = reinterpret_cast<unsigned char*>(target);
  std::memcpy(bytes + kFirst, reinterpret_cast<const unsigned char*>(&value) + kFirst,
              known - kFirst);
  if (size > known) std::memset(bytes + known, 0, size - known);
}

/// Writes a result struct that check_target has accepted by `fill(struct)`, which sets every member
/// but struct_size. A struct of this version is filled in its place, because clearing or copying
/// one costs as much as reading figures.
template <class Struct, class Fill>
void fill_struct(Struct* target, Fill&& fill) noexcept {
  if (target->struct_size == sizeof(Struct)) return fill(*target);
  Struct copy;
  fill(copy);
  write_struct(copy, target);
}

/// Writes text by snprintf's rule and returns its whole length.
inline std::size_t write_text(std::string_view text, char* out, std::size_t size) noexcept {
  if (out != nullptr && size > 0) {
    const std::size_t count = std::min(text.size(), size - 1);
    std::memcpy(out, text.data(), count);
    out[count] = '\0';
  }
  return text.size();
}

/// Where a call writes text.
struct TextTarget {
  char* out;
  std::size_t size;
  std::size_t* length;

  /// Returns whether text can be written.
  Status check() const noexcept { return out == nullptr && size > 0 ? refused_null() : Status{}; }
  void write(std::string_view text) const noexcept {
    const std::size_t whole = write_text(text, out, size);
    if (length != nullptr) *length = whole;
  }
};

/// Runs `body`, which returns a Status, so that no exception leaves it.
template <class Body>
kvarena_status guarded(Body&& body) noexcept {
  try {
    return to_c(body());
  } catch (const std::bad_alloc&) {
    return to_c(exhausted(Resource::host_memory, 0, 0));
  } catch (...) {
    return to_c({StatusCode::invariant_violated, Resource::none});
  }
}

}  // namespace kvarena::capi
