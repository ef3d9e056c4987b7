#pragma once

/// @file
/// `UsageGate`: lets a thread that forgets an object wait until nobody uses it any more. Entering
/// never blocks, so that a user who hangs keeps no other out. Thread-safe.

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kvarena {

/// The door to one borrowed object.
class UsageGate {
 public:
  /// Holds the gate open while it lives; false when the gate was closed already.
  class Use {
   public:
    /// Enters unless the gate is closed.
    explicit Use(UsageGate& gate) : gate_(gate.enter() ? &gate : nullptr) {}
    ~Use() {
      if (gate_ != nullptr) gate_->leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    /// Whether the object may be used.
    explicit operator bool() const noexcept { return gate_ != nullptr; }

   private:
    UsageGate* gate_;
  };

  /// Nobody enters from now on; returns when everyone has left.
  void close() {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    left_.wait(lock, [this] { return num_users_ == 0; });
  }

 private:
  bool enter() {
    const std::scoped_lock lock(mutex_);
    if (is_closed_) return false;
    ++num_users_;
    return true;
  }
  void leave() {
    const std::scoped_lock lock(mutex_);
    // Under the lock: the gate may be destroyed once the closing thread has seen the last one go.
    if (--num_users_ == 0) left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  std::int64_t num_users_ = 0;
  bool is_closed_ = false;
};

}  // namespace kvarena
