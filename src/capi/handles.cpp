#include "capi/handles.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

namespace kvarena::capi {

constinit std::array<std::atomic<Place*>, kMaxParts> place_parts{};

namespace {

/// Which places are free. Locked only when handles open and close.
struct FreePlaces {
  std::mutex mutex;
  std::deque<std::uint32_t> places;  // the one that has been free for longest comes first
  std::uint32_t parts = 0;           // made so far

  /// Makes another part. The free places have room for all of it, so that nothing is lost.
  bool grow() {
    if (parts == kMaxParts) return false;
    auto part = std::make_unique<Place[]>(kPlacesOfPart);
    for (std::uint32_t i = 0; i < kPlacesOfPart; ++i) places.push_back(parts * kPlacesOfPart + i);
    // Never freed: late calls with old handles still look here.
    place_parts[parts++].store(part.release(), std::memory_order_release);
    return true;
  }
};

/// Never destroyed, so that objects that outlive main can still be released.
FreePlaces& free_places() {
  static FreePlaces& instance = *new FreePlaces;
  return instance;
}

}  // namespace

void* open_handle(Kind kind, std::shared_ptr<void> object) noexcept try {
  FreePlaces& free = free_places();
  const std::lock_guard lock(free.mutex);
  if (free.places.empty() && !free.grow()) return nullptr;
  const std::uint32_t index = free.places.front();
  free.places.pop_front();
  Place& place = place_parts[index / kPlacesOfPart].load()[index % kPlacesOfPart];
  const std::uint64_t generation = ((place.word.load() >> 8) + 1) & 0xffffffffU;
  place.object = object.get();
  place.owner = std::move(object);
  const HandleNumber number{generation, index, kind};
  place.word.store(number.word(), std::memory_order_release);
  return number.handle();
} catch (const std::bad_alloc&) {
  return nullptr;
}

thread_local constinit std::array<const Place*, Visit::kMostNested> Visit::nested_{};
thread_local constinit std::size_t Visit::depth_ = 0;

bool Visit::is_inside(const Place& place) noexcept {
  const auto end = nested_.begin() + static_cast<std::ptrdiff_t>(std::min(depth_, kMostNested));
  return std::find(nested_.begin(), end, &place) != end;
}

Status close_handle(void* handle, Kind kind, std::shared_ptr<void>& object) noexcept {
  const HandleNumber number = HandleNumber::of(handle);
  {
    const Entry entry(handle, kind);
    if (!entry) return entry.status();
    Place& place = *place_of(number);
    if (Visit::is_inside(place)) return failed_precondition(Resource::thread);
    place.word.store(number.generation << 8);
    for (;;) {
      const std::uint32_t visitors = place.visitors.load();
      if (visitors == 0) break;
      place.visitors.wait(visitors);
    }
    object = std::move(place.owner);
    place.object = nullptr;
  }
  FreePlaces& free = free_places();
  const std::lock_guard lock(free.mutex);
  try {
    free.places.push_back(number.place);
  } catch (const std::bad_alloc&) {  // the place is not used again
  }
  return {};
}

}  // namespace kvarena::capi
