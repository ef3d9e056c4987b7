#pragma once

/// @file
/// The table of handles. A handle of the C interface is a number: the generation of a place in the
/// table, the place, and the kind of object. Places are never given back to the system, so a handle
/// that was released, or never was one, is found by comparing numbers. A place is used again only
/// after all other free ones, and has another generation then.
///
/// `Entry` lets one thread into an object; `Visit` lets any number in, for calls that any thread
/// may make. Neither waits. An object ends when its handle is closed, which fails while somebody is
/// inside, and when no other object keeps it.

#include "kvarena/base/status.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvarena::capi {

/// What a handle stands for.
enum class Kind : std::uint8_t { none, device, cache, pool, kernels, monitor };

/// A place of the table.
struct Place {
  /// generation << 8 | state << 4 | kind. State is 0 open, 1 closing.
  std::atomic<std::uint64_t> word{0};
  std::atomic<std::uint32_t> inside{0};    ///< 1: a thread is inside
  std::atomic<std::uint32_t> visitors{0};  ///< threads that make calls for any thread
  void* object = nullptr;                  ///< while open
  std::shared_ptr<void> owner;             ///< keeps `object`
};

inline constexpr std::uint32_t kPlacesOfPart = 1024;
inline constexpr std::uint32_t kMaxParts = 1024;

/// The table grows by parts, which stay.
extern std::array<std::atomic<Place*>, kMaxParts> place_parts;

/// The number that a handle is.
struct HandleNumber {
  std::uint64_t generation;
  std::uint32_t place;
  Kind kind;

  static HandleNumber of(const void* handle) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    return {bits >> 24, static_cast<std::uint32_t>(bits >> 4) & 0xfffffU,
            static_cast<Kind>(bits & 15U)};
  }
  void* handle() const noexcept {
    return reinterpret_cast<void*>((generation << 24) | (std::uint64_t{place} << 4) |
                                   static_cast<std::uint64_t>(kind));
  }
  /// Place::word while the handle is open.
  std::uint64_t word() const noexcept { return (generation << 8) | static_cast<unsigned>(kind); }
};

/// Puts `object` into the table. Returns its handle, or nullptr when the table or memory is full.
void* open_handle(Kind kind, std::shared_ptr<void> object) noexcept;
/// Takes the object out of the table; the caller ends it. Returns stale_handle, or
/// failed_precondition (thread) while a thread is inside; nothing has changed then.
Status close_handle(void* handle, Kind kind, std::shared_ptr<void>& object) noexcept;

/// The refusal of a handle that is not open: NULL, released, or of another kind.
inline Status refused_handle(const void* handle) noexcept {
  if (handle == nullptr) return invalid_argument(Resource::pointer, 0, 1, -1);
  return {StatusCode::stale_handle, Resource::pointer, Option::none, 0,
          reinterpret_cast<std::uintptr_t>(handle)};
}

/// Returns the place of a handle if there is one, open or not; the caller compares its word.
inline Place* place_of(const HandleNumber& number) noexcept {
  Place* const part = place_parts[number.place / kPlacesOfPart].load(std::memory_order_acquire);
  return part == nullptr ? nullptr : part + number.place % kPlacesOfPart;
}

/// One thread inside an object.
class Entry {
 public:
  Entry(const void* handle, Kind kind) noexcept {
    const HandleNumber number = HandleNumber::of(handle);
    Place* const place = number.kind == kind ? place_of(number) : nullptr;
    // The first look keeps calls with an old handle from touching the place's new object.
    if (place == nullptr || place->word.load(std::memory_order_acquire) != number.word()) {
      status_ = refused_handle(handle);
    } else if (place->inside.exchange(1, std::memory_order_acquire) != 0) {
      status_ = failed_precondition(Resource::thread);
    } else if (place->word.load(std::memory_order_relaxed) != number.word()) {
      place->inside.store(0, std::memory_order_release);
      status_ = refused_handle(handle);
    } else {
      place_ = place;
    }
  }
  ~Entry() {
    if (place_ != nullptr) place_->inside.store(0, std::memory_order_release);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  /// Returns whether the thread is inside.
  explicit operator bool() const noexcept { return place_ != nullptr; }
  /// Returns why it is not.
  const Status& status() const noexcept { return status_; }
  /// Returns the object.
  void* object() const noexcept { return place_->object; }
  /// Returns a share in the object.
  std::shared_ptr<void> share() const noexcept { return place_->owner; }

 private:
  Place* place_ = nullptr;
  Status status_;
};

/// One of any number of threads that make calls for any thread.
class Visit {
 public:
  Visit(const void* handle, Kind kind) noexcept {
    const HandleNumber number = HandleNumber::of(handle);
    Place* const place = number.kind == kind ? place_of(number) : nullptr;
    if (place == nullptr || place->word.load(std::memory_order_acquire) != number.word()) {
      status_ = refused_handle(handle);
      return;
    }
    // Sequentially consistent, as in close_handle: either this thread sees that the handle closes,
    // or the thread that closes it sees this one.
    place->visitors.fetch_add(1);
    const std::uint64_t word = place->word.load();
    if (word == number.word()) {
      place_ = place;
      return;
    }
    place->visitors.fetch_sub(1);
    const bool is_closing = word == (number.word() | 16U);
    status_ = is_closing ? failed_precondition(Resource::thread) : refused_handle(handle);
  }
  ~Visit() {
    if (place_ != nullptr) place_->visitors.fetch_sub(1);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  /// Returns whether the thread is inside.
  explicit operator bool() const noexcept { return place_ != nullptr; }
  /// Returns why it is not.
  const Status& status() const noexcept { return status_; }
  /// Returns the object.
  void* object() const noexcept { return place_->object; }
  /// Returns a share in the object.
  std::shared_ptr<void> share() const noexcept { return place_->owner; }

 private:
  Place* place_ = nullptr;
  Status status_;
};

}  // namespace kvarena::capi
