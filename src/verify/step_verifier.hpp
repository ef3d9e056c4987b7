#pragma once

/// @file
/// `StepVerifier`: writes content into a cache in each step of an engine, and verifies it there.
/// One implementation is for layers that are all alike (verifier.hpp), one for groups of layers
/// (group_verifier.hpp). One thread at a time.

#include "verify/failure.hpp"
#include "verify/sequence.hpp"
#include "verify/verification.hpp"

#include "kvarena/base/result.hpp"
#include "kvarena/blocktable/table_groups.hpp"

#include <span>

namespace kvarena::verify {

class StepVerifier {
 public:
  StepVerifier() = default;
  virtual ~StepVerifier() = default;
  StepVerifier(const StepVerifier&) = delete;
  StepVerifier& operator=(const StepVerifier&) = delete;

  /// Writes what the new tokens keep, and verifies. `states` are those of the step's batch. Call it
  /// after a successful append, before the end of the step.
  virtual MaybeFailure verify_step(std::span<const StepRow> rows,
                                   std::span<const StateSlots> states) = 0;
  /// Compares what a finished sequence holds. Call it between steps, before the sequence is
  /// destroyed.
  virtual MaybeFailure check_sequence(const WrittenSequence& sequence) = 0;
  /// Returns the counts so far.
  virtual const VerificationReport& report() const noexcept = 0;
  /// Returns the device's time for attention so far. Waits for the device.
  virtual Result<MeasuredReport> measure() = 0;
};

}  // namespace kvarena::verify
