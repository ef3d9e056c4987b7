#pragma once

/// @file
/// `UsageGate`: counts the users of a borrowed object, so that a thread can wait until nobody uses
/// the object. Entering never blocks, so a hung user does not stop other users. Thread-safe.

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kvarena {

/// The gate of one borrowed object.
class UsageGate {
 public:
  /// One use of the object, from construction to destruction. It is false when the gate was already
  /// closed.
  class Use {
   public:
    /// Enters the gate unless it is closed.
    explicit Use(UsageGate& gate) : gate_(gate.enter() ? &gate : nullptr) {}
    ~Use() {
      if (gate_ != nullptr) gate_->leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    /// Returns whether the object may be used.
    explicit operator bool() const noexcept { return gate_ != nullptr; }

   private:
    UsageGate* gate_;
  };

  /// Closes the gate for new users and waits until all users have left.
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
    // Notifies under the lock, because the closing thread may destroy the gate when the last user
    // has left.
    if (--num_users_ == 0) left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  std::int64_t num_users_ = 0;
  bool is_closed_ = false;
};

}  // namespace kvarena
