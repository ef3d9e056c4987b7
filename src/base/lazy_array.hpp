#pragma once

/// @file
/// `LazyArray<T>`: a fixed-size array of zero bytes. The system commits its memory when it is first
/// touched, so a table sized for the worst case costs only what is used. A large array is committed
/// in huge pages where the system has them. Move-only, not resizable. Elements start as all-zero
/// bytes, whatever the default of T is.

#include <sys/mman.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

namespace kvarena {

/// A zeroed array of trivially copyable T. Throws std::bad_alloc when there is no memory.
template <class T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  LazyArray() = default;
  explicit LazyArray(std::size_t size)
      : data_(zeroed(size), Free{size == 0 ? 1 : size}), size_(size) {}

  std::size_t size() const noexcept { return size_; }
  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  T& operator[](std::size_t i) noexcept { return data_.get()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  // AddressSanitizer checks the bounds of memory from malloc, but not of mapped memory.
  struct Free {
    std::size_t size = 0;
    void operator()(T* data) const noexcept { std::free(data); }
  };
  static T* zeroed(std::size_t size) {
    void* data = std::calloc(size == 0 ? 1 : size, sizeof(T));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<T*>(data);
  }
#else
  /// Arrays from this size on ask for huge pages: reading them anywhere then costs fewer misses of
  /// the address cache.
  static constexpr std::size_t kManyBytes = std::size_t{4} << 20;
  // calloc is not used: after a large array has been freed, it takes the next one from the heap and
  // writes zeros.
  struct Free {
    std::size_t size = 0;
    void operator()(T* data) const noexcept { ::munmap(data, size * sizeof(T)); }
  };
  static T* zeroed(std::size_t size) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* data = ::mmap(nullptr, (size == 0 ? 1 : size) * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    if (size * sizeof(T) >= kManyBytes) ::madvise(data, size * sizeof(T), MADV_HUGEPAGE);
    return static_cast<T*>(data);
  }
#endif
  std::unique_ptr<T[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace kvarena
