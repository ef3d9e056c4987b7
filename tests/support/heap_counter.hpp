#pragma once

/// @file
/// Counts C++ heap allocations of the whole program and the bytes they hold, and makes one of a
/// thread's fail. It replaces the global operators, so include it in exactly one source file of a
/// test program. Thread-safe.

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace kvarena::test {

/// Allocations since the program started, on all threads.
inline std::atomic<std::int64_t> heap_allocations{0};
/// Held now, on all threads, as malloc rounds them up.
inline std::atomic<std::int64_t> heap_bytes{0};
/// The most since the last HeapPeak began.
inline std::atomic<std::int64_t> heap_most_bytes{0};

/// How many allocations happened while it lives.
class HeapCounter {
 public:
  /// Allocations since construction.
  std::int64_t count() const noexcept { return heap_allocations.load() - start_; }

 private:
  std::int64_t start_ = heap_allocations.load();
};

/// How many bytes more were held at once while it lives. One at a time.
class HeapPeak {
 public:
  HeapPeak() { heap_most_bytes = start_; }
  /// The most since construction.
  std::int64_t bytes() const noexcept { return heap_most_bytes.load() - start_; }

 private:
  std::int64_t start_ = heap_bytes.load();
};

/// Allocations that this thread has before one fails; negative: none does.
inline thread_local std::int64_t allocations_left = -1;

/// While it lives, the allocation of this thread that comes after `allocations` others fails.
class FailingHeap {
 public:
  explicit FailingHeap(std::int64_t allocations) noexcept { allocations_left = allocations; }
  ~FailingHeap() { allocations_left = -1; }
  FailingHeap(const FailingHeap&) = delete;
  FailingHeap& operator=(const FailingHeap&) = delete;
  /// Whether it has failed.
  bool has_failed() const noexcept { return allocations_left < 0; }
};

/// Counted memory, or nullptr. Never inlined: the compiler would see malloc's memory go to operator
/// delete, and warn.
[[gnu::noinline]] inline void* counted_allocation(std::size_t bytes,
                                                  std::size_t alignment) noexcept {
  ++heap_allocations;
  if (allocations_left >= 0 && allocations_left-- == 0) return nullptr;
  void* pointer = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  const auto held = static_cast<std::int64_t>(::malloc_usable_size(pointer));
  const std::int64_t now = heap_bytes += held;
  std::int64_t most = heap_most_bytes.load();
  while (now > most && !heap_most_bytes.compare_exchange_weak(most, now)) {
  }
  return pointer;
}
/// `pointer`; throws bad_alloc for nullptr.
inline void* required(void* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
/// Gives counted memory back.
[[gnu::noinline]] inline void release(void* pointer) noexcept {
  heap_bytes -= static_cast<std::int64_t>(::malloc_usable_size(pointer));
  std::free(pointer);
}
/// What operator new without an alignment promises.
inline constexpr std::size_t kDefaultAlignment = alignof(std::max_align_t);

}  // namespace kvarena::test

// The array and sized forms of the standard library call these.
void* operator new(std::size_t bytes) {
  return kvarena::test::required(
      kvarena::test::counted_allocation(bytes, kvarena::test::kDefaultAlignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return kvarena::test::counted_allocation(bytes, kvarena::test::kDefaultAlignment);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return kvarena::test::required(
      kvarena::test::counted_allocation(bytes, static_cast<std::size_t>(alignment)));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return kvarena::test::counted_allocation(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* pointer) noexcept { kvarena::test::release(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { kvarena::test::release(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { kvarena::test::release(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept {
  kvarena::test::release(pointer);
}
