#pragma once

/// @file
/// Counts what the library reports to the violation handler while an object of this class lives.

#include "kvarena/base/violation.hpp"

#include <string>
#include <vector>

namespace kvarena::test {

/// Installs a recording handler and puts the former one back. One at a time.
class ViolationRecorder {
 public:
  struct Entry {
    Status status;
    std::string call;
    std::string object;
  };

  ViolationRecorder() : former_(set_violation_handler(&ViolationRecorder::record)) {
    entries().clear();
  }
  ~ViolationRecorder() { set_violation_handler(former_); }
  ViolationRecorder(const ViolationRecorder&) = delete;
  ViolationRecorder& operator=(const ViolationRecorder&) = delete;

  /// What was reported so far.
  static std::vector<Entry>& entries() {
    static std::vector<Entry> list;
    return list;
  }

 private:
  static void record(const Status& status, const char* call, const char* object) {
    entries().push_back({status, call, object});
  }

  ViolationHandler former_;
};

}  // namespace kvarena::test
