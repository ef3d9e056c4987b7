#pragma once

/// @file
/// Memory that is refused on demand: this program's operator new and its anonymous mmap. Only the
/// thread that arms it is refused. Counts what is taken and not given back.

namespace kvarena::test {

/// Refuses the k-th request of this thread from its construction to disarm() or its end.
class FailingMemory {
 public:
  explicit FailingMemory(long k) noexcept;
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  void disarm() noexcept;
  /// Whether there have been k requests.
  bool was_reached() const noexcept;

 private:
  long k_;
  long made_ = 0;
};

/// Heap blocks and mappings that have not been given back.
long live_pieces() noexcept;

}  // namespace kvarena::test
