#pragma once

/// @file
/// The table of handles. A handle of the C interface is a number: the generation of a place in the
/// table, the place, and the kind of object. Places are never given back to the system, so a handle
/// that was released, or never was one, is found by comparing numbers. A place is used again only
/// after all other free ones, and has another generation then.
///
/// `Entry` lets one thread into an object; `Visit` lets any number in, for calls that any thread
/// may make. Neither waits. close_handle lets no more calls in and waits for the visits that are
/// inside, so that visits which always overlap cannot keep an object alive. An object ends when its
/// handle is closed and no other object keeps it.

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
  /// generation << 8 | kind while open; generation << 8 while it closes and when it is free.
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
/// Takes the object out of the table; the caller ends it. Waits for the visits of other threads.
/// Returns stale_handle, or failed_precondition (thread) while a thread is inside by an Entry,
/// while another thread closes the handle, or in a visit of the calling thread; nothing has changed
/// then.
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
    if (place->word.load() != number.word()) {
      leave(*place);
      status_ = refused_handle(handle);
      return;
    }
    place_ = place;
    if (depth_ < kMostNested) nested_[depth_] = place;
    ++depth_;
  }
  ~Visit() {
    if (place_ == nullptr) return;
    --depth_;
    leave(*place_);
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

  /// Returns whether the calling thread is inside the place by a visit.
  static bool is_inside(const Place& place) noexcept;

 private:
  /// A place is never given back, so it may be touched when its object has ended.
  static void leave(Place& place) noexcept {
    if (place.visitors.fetch_sub(1) == 1) place.visitors.notify_all();
  }

  /// A visit in a callback of a visit, and so on. Deeper ones are not remembered.
  static constexpr std::size_t kMostNested = 8;
  static thread_local constinit std::array<const Place*, kMostNested> nested_;  ///< of this thread
  static thread_local constinit std::size_t depth_;                             ///< of its visits

  Place* place_ = nullptr;
  Status status_;
};

}  // namespace kvarena::capi
