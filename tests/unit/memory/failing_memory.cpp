#include "failing_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace kvarena::test {
namespace {

std::atomic<long> pieces{0};
thread_local bool is_armed = false;
thread_local long refused_request = 0;
thread_local long requests = 0;

bool refuses() noexcept { return is_armed && ++requests == refused_request; }

void* counted(void* pointer) noexcept {
  if (pointer != nullptr) ++pieces;
  return pointer;
}

void* take(std::size_t bytes) noexcept {
  return refuses() ? nullptr : counted(std::malloc(bytes == 0 ? 1 : bytes));
}

void* take_aligned(std::size_t bytes, std::align_val_t alignment) noexcept {
  const auto step = static_cast<std::size_t>(alignment);
  return refuses() ? nullptr : counted(std::aligned_alloc(step, (bytes + step - 1) / step * step));
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  --pieces;
  std::free(pointer);
}

}  // namespace

FailingMemory::FailingMemory(long k) noexcept : k_(k) {
  requests = 0;
  refused_request = k;
  is_armed = true;
}

FailingMemory::~FailingMemory() { disarm(); }

void FailingMemory::disarm() noexcept {
  if (!is_armed) return;
  is_armed = false;
  made_ = requests;
}

bool FailingMemory::was_reached() const noexcept { return made_ >= k_; }

long live_pieces() noexcept { return pieces.load(); }

}  // namespace kvarena::test

// ---- in place of the system's -------------------------------------------------------------------

void* operator new(std::size_t bytes) {
  void* pointer = kvarena::test::take(bytes);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* pointer = kvarena::test::take_aligned(bytes, alignment);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return kvarena::test::take(bytes);
}
void operator delete(void* pointer) noexcept { kvarena::test::give_back(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { kvarena::test::give_back(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept {
  kvarena::test::give_back(pointer);
}
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept {
  kvarena::test::give_back(pointer);
}
void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  kvarena::test::give_back(pointer);
}

extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  const bool is_anonymous = file == -1 && (flags & MAP_ANONYMOUS) != 0;
  if (is_anonymous && kvarena::test::refuses()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  const long mapped = ::syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
  return mapped == -1 ? MAP_FAILED : reinterpret_cast<void*>(mapped);
}
