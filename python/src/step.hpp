#pragma once

/// @file
/// A step as the module holds it.

#include <string>
#include <vector>

#include "cache.hpp"

namespace kvarena::python {

enum class StepKind { eager, recording, replay };

/// A step of a cache: a context manager. Entering begins it and appends its demands; leaving ends
/// it, or aborts it when an exception leaves it.
struct Step {
  explicit Step(CacheArgument of) : cache(of) {}
  Step(Step&&) = default;  ///< before it is entered
  ~Step();

  CacheReference cache;
  StepKind kind = StepKind::eager;
  nb::object demands;  ///< None: the caller appends
  nb::object tokens;   ///< of the demands; None: they are not told
  kvarena_recorded_step shape = sized<kvarena_recorded_step>();
  void* stream = nullptr;   ///< null: that of the last step
  bool holds = false;       ///< tensors must be held until their work has completed
  bool is_entered = false;  ///< once, for good
  bool is_open = false;     ///< begun and not ended
  std::int32_t urgency = 0;
  kvarena_batch batch = sized<kvarena_batch>();
  std::vector<nb::object> held;

  Witness witness() const { return cache->witness(); }
  Place place() const { return cache->device->place(stream); }
};

/// Raises kvarena.FailedPrecondition unless the step is open.
void require_open(const Step& step, const std::string& call);
/// Raises kvarena.FailedPrecondition when the cache's step is not what it was at `changes`: Python
/// code, and other threads with it, may run while arguments are read.
void require_unchanged(const Step& step, std::uint64_t changes);
/// Keeps an object until the work that uses its memory has completed.
void hold(Step& step, nb::handle object);

/// Returns a copy of the slots, because the next step writes over the cache's own.
nb::object slots_of(const Step& step);
/// Returns what the step put on the device for one part of the pool, as arrays there.
nb::object device_batch(const Step& step, std::int32_t part);
/// Returns the slots of the step's `index`-th group of states.
nb::object states_of(const Step& step, std::int32_t index);
/// Writes the new tokens' keys of a sparse-attention index.
void write_index(Step& step, std::int32_t layer, nb::handle key);
/// Writes K and V of a sequence's encoder.
void write_cross(Step& step, std::int32_t layer, const Sequence& sequence, nb::handle key,
                 nb::handle value, nb::handle key_scale, nb::handle value_scale);

}  // namespace kvarena::python
