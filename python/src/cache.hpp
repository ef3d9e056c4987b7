#pragma once

/// @file
/// A cache and its sequences, as the module holds them.

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core.hpp"
#include "device.hpp"
#include "layer_args.hpp"

namespace kvarena::python {

/// A handle of a cache, and the objects whose memory its queued work may still use. The cache
/// shares it with the arrays in the cache's memory, and it ends with the last of them.
struct CacheHandle {
  kvarena_cache* handle = nullptr;
  nb::object log;                            ///< receives operations; None or null: no one
  nb::object events;                         ///< receives events of the prefix cache; the same
  std::deque<std::vector<nb::object>> held;  ///< of the last steps, newest last

  ~CacheHandle();
};

/// What Python has of a cache.
struct Cache {
  std::shared_ptr<CacheHandle> open = std::make_shared<CacheHandle>();  ///< null: closed
  std::shared_ptr<Device> device;
  kvarena_cache_options options{};            ///< with every default filled in
  nb::object name;                            ///< as given, or None
  nb::object groups;                          ///< as given: a sequence of kvarena.LayerGroup
  std::map<std::int32_t, LayerShape> layers;  ///< with groups: the shape of each layer
  std::vector<kvarena_demand> demands;        ///< room for those of a step
  std::uint64_t changes = 0;  ///< rises when a step begins, gets its tokens, or ends

  ~Cache();
  /// Returns the handle. Raises kvarena.FailedPrecondition after close.
  kvarena_cache* handle() const {
    if (open == nullptr) raise_closed("the cache is closed");
    return open->handle;
  }
  /// Returns the shape of a layer. Raises ValueError for one that is in no group.
  LayerShape shape_of(std::int32_t layer) const;
  Witness witness() const { return {.cache = open == nullptr ? nullptr : open->handle}; }
  /// Returns a Python object that keeps the cache's memory: the owner of arrays in it. Raises
  /// kvarena.FailedPrecondition after close.
  nb::object memory_owner() const;
  /// Lets no more calls in. The handle ends now, or with the last array in its memory. Raises
  /// kvarena.Error, and the cache stays open, while another thread is inside.
  void close();
  /// Keeps objects until the work of the step that ends now has completed.
  void hold(std::vector<nb::object> objects);
  /// Lets go of what was held for steps that have completed by now, because a new step has begun.
  void drop_completed();
};

/// A cache as an argument of a bound function.
using CacheArgument = nb::pointer_and_handle<Cache>;

/// A Python reference to a cache, which Python's cycle collector can see.
class CacheReference {
 public:
  CacheReference(CacheArgument cache) : cache_(cache.p), object_(nb::borrow(cache.h)) {}

  Cache* get() const noexcept { return cache_; }
  Cache* operator->() const noexcept { return cache_; }
  Cache& operator*() const noexcept { return *cache_; }
  const nb::object& object() const noexcept { return object_; }

 private:
  Cache* cache_;
  nb::object object_;
};

/// A sequence of a cache. It is a name: only destroy ends the sequence.
struct Sequence {
  CacheReference cache;
  kvarena_sequence id = 0;
};

/// Tells the cycle collector of the cache that a `Holder` (Sequence, Pin, Step) refers to.
template <class Holder>
int visit_cache(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Holder>(self)->cache.object().ptr());
  return 0;
}

/// Returns the sequence in a Python object, or null.
const Sequence* sequence_in(nb::handle object);

/// Reads demands into `rows`: sequences (one token each), (sequence, tokens) or (sequence, tokens,
/// urgency). Raises TypeError or ValueError with the index.
void read_demands(const Cache& cache, nb::handle demands, std::vector<kvarena_demand>& rows);

/// Reads the words and numbers of a kvarena.CacheOptions; not stream, name and functions. Raises
/// TypeError or ValueError with the member's name.
kvarena_cache_options read_cache_options(nb::handle options);

/// Adds the questions to the class of caches.
void bind_questions(nb::class_<Cache>& cache);
/// Adds the accounts of salts, and what the prefix cache tells about its use.
void bind_accounts(nb::class_<Cache>& cache);

/// The event function of a cache whose user is the nb::object of a Python function: calls it with
/// the kvarena.PrefixEvent. None or null: no one listens any more.
void hear_event(void* user, const kvarena_prefix_event* event);

}  // namespace kvarena::python
