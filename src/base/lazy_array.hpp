#pragma once

/// @file
/// `LazyArray<T>`: a fixed-size array of zero bytes whose memory the system commits when it is
/// first touched, so that a table sized for the worst case costs what is used. Move-only, not
/// resizable. Elements start as all-zero bytes, whatever T's default is.

#include <cstdlib>
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
      : data_(static_cast<T*>(std::calloc(size == 0 ? 1 : size, sizeof(T)))), size_(size) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

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
  struct Free {
    void operator()(T* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace kvarena
