#pragma once

/// @file
/// A cache and its sequences, as the module holds them.

#include <deque>
#include <memory>
#include <vector>

#include "core.hpp"
#include "device.hpp"

namespace kvarena::python {

/// A handle of a cache, and the objects whose memory its queued work may still use.
struct Cache {
  kvarena_cache* handle = nullptr;
  std::shared_ptr<Device> device;
  kvarena_cache_options options{};           ///< with every default filled in
  nb::object name;                           ///< as given, or None
  nb::object log;                            ///< receives operations, or None
  std::vector<kvarena_demand> demands;       ///< room for those of a step
  std::deque<std::vector<nb::object>> held;  ///< of the last steps, newest last

  ~Cache();
  Witness witness() const { return {.cache = handle}; }
  /// Ends the handle and lets go of what is held. Raises kvarena.Error.
  void close();
  /// Lets go of what was held for steps that have completed by now, because a new step has begun.
  void drop_completed();
};

using CachePointer = std::shared_ptr<Cache>;

/// A sequence of a cache. It is a name: only destroy ends the sequence.
struct Sequence {
  CachePointer cache;
  kvarena_sequence id = 0;
};

/// Returns the sequence in a Python object, or null.
const Sequence* sequence_in(nb::handle object);

/// Reads demands into `cache.demands`: sequences (one token each), (sequence, tokens) or (sequence,
/// tokens, urgency). Raises TypeError or ValueError with the index.
void read_demands(Cache& cache, nb::handle demands);

/// Reads the words and numbers of a kvarena.CacheOptions; not stream, name and log. Raises
/// TypeError or ValueError with the member's name.
kvarena_cache_options read_cache_options(nb::handle options);

/// Adds the questions to the class of caches.
void bind_questions(nb::class_<Cache>& cache);

}  // namespace kvarena::python
