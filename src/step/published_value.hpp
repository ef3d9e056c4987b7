#pragma once

/// @file
/// `PublishedValue<T>`: a value that one thread replaces and other threads read as a whole (a
/// sequence lock). The writer never waits. A reader that meets a write reads again.
///
/// Each word is stored with release and loaded with acquire. A reader that saw one word of a newer
/// value therefore also sees the changed version. This needs no fences, and ThreadSanitizer
/// understands it.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

namespace kvarena {

/// A published value. One writer at a time, any number of readers.
template <class T>
class PublishedValue {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0);

 public:
  /// Replaces the value, or only its first `bytes`, a multiple of 8: readers may then see older
  /// bytes behind them. Wait-free.
  void store(const T& value, std::size_t bytes = sizeof(T)) noexcept {
    const auto* const source = reinterpret_cast<const std::byte*>(&value);
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
      std::uint64_t word;
      std::memcpy(&word, source + i * sizeof word, sizeof word);
      words_[i].store(word, std::memory_order_release);
    }
    version_.store(version + 2, std::memory_order_release);
  }

  /// Returns the value of one store, never an older one than a value that this thread has seen.
  T load() const noexcept {
    Words words;
    while (!try_load(words)) std::this_thread::yield();
    return std::bit_cast<T>(words);
  }

 private:
  using Words = std::array<std::uint64_t, sizeof(T) / sizeof(std::uint64_t)>;

  bool try_load(Words& words) const noexcept {
    const std::uint64_t version = version_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = words_[i].load(std::memory_order_acquire);
    }
    return version % 2 == 0 && version_.load(std::memory_order_relaxed) == version;
  }

  alignas(64) std::atomic<std::uint64_t> version_{0};  // odd while the value is being replaced
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> words_{};
};

}  // namespace kvarena
