#pragma once

/// @file
/// What the parts of the module share: option structs, failures as exceptions, text, streams. The
/// module stands on kvarena.h alone. All functions need the GIL, unless they say otherwise.

#include <kvarena/kvarena.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>

namespace kvarena::python {

namespace nb = nanobind;

/// Returns a struct of the C interface that is zero but for its size.
template <class Struct>
Struct sized() {
  Struct result{};
  result.struct_size = sizeof(Struct);
  return result;
}

/// Who can say more about a failure than its numbers. All may be null.
struct Witness {
  kvarena_cache* cache = nullptr;
  kvarena_device* device = nullptr;
  kvarena_pool* pool = nullptr;
  bool kernels = false;  ///< the status is of a call on kernels
};

/// Throws the Python exception of a failed status: the class of its code, with its fields.
[[noreturn]] void raise(const kvarena_status& status, const Witness& witness = {});
/// As raise, with the text given, and the index of the refused demand (-1: none).
[[noreturn]] void raise(const kvarena_status& status, const Witness& witness, std::string text,
                        std::int64_t demand);
/// Throws when the status is a failure.
inline void check(const kvarena_status& status, const Witness& witness = {}) {
  if (status.code != KVARENA_OK) [[unlikely]] {
    raise(status, witness);
  }
}

/// Throws ValueError or TypeError: "argument: given; accepted: accepted".
[[noreturn]] void raise_value(std::string_view argument, const std::string& given,
                              std::string_view accepted);
[[noreturn]] void raise_type(std::string_view argument, const std::string& given,
                             std::string_view accepted);

/// Throws TypeError unless `function` is None or can be called.
void require_function(std::string_view argument, nb::handle function);

/// Throws kvarena.FailedPrecondition for a call out of order.
[[noreturn]] void raise_order(const char* what);
/// Throws kvarena.FailedPrecondition for a call on an object that was closed: "the cache is
/// closed".
[[noreturn]] void raise_closed(const char* what);

/// Makes a call without the GIL: for calls that may wait or take long. The arguments are read
/// before the GIL is released.
template <class Call, class... Arguments>
auto without_gil(Call&& call, Arguments... arguments) {
  nb::gil_scoped_release released;
  return call(arguments...);
}

/// Makes a last call on an object, whose end may come when Python has ended: without the GIL where
/// there is one.
template <class Call, class... Arguments>
auto at_end(Call&& call, Arguments... arguments) {
  return Py_IsInitialized() != 0 ? without_gil(call, arguments...) : call(arguments...);
}

/// Returns the whole text that `write(out, size, length)` writes; `write` returns a status.
template <class Write>
std::string text_of(Write&& write, const Witness& witness = {}) {
  std::size_t length = 0;
  check(write(nullptr, std::size_t{0}, &length), witness);
  std::string text(length, '\0');
  // Text of a live object may have grown since it was measured.
  for (std::size_t room = length; true; room = length) {
    text.resize(room + 1);
    check(write(text.data(), text.size(), &length), witness);
    if (length <= room) break;
  }
  text.resize(length);
  return text;
}

/// Returns class `name` of the Python part of the package (kvarena._records, kvarena._errors).
nb::object python_class(const char* module, const char* name);
/// Returns a made record of kvarena._records: the class `name` with the members of `values`.
nb::object make_record(const char* name, const nb::dict& values);

/// Returns the number of a word of an enumeration, such as "growth". Raises ValueError with the
/// accepted words.
std::int32_t number_of(std::string_view argument, std::string_view word,
                       const std::string_view* words, std::size_t count);
template <std::size_t count>
std::int32_t number_of(std::string_view argument, std::string_view word,
                       const std::string_view (&words)[count]) {
  return number_of(argument, word, words, count);
}

inline constexpr std::string_view kUrgencies[] = {"default", "growth", "admission"};
inline constexpr std::string_view kDtypes[] = {"f16",      "bf16", "f32",
                                               "fp8_e4m3", "int8", "latent_fp8"};
inline constexpr std::string_view kTileOrders[] = {"best", "rows", "chunked"};
inline constexpr std::string_view kBlockOrders[] = {"block_major", "layer_major"};
inline constexpr std::string_view kScrubs[] = {"never", "on_owner_change", "always"};
inline constexpr std::string_view kDuplicates[] = {"duplicate", "share", "wait"};
inline constexpr std::string_view kEvictions[] = {"tail_first", "head_first", "fifo", "lfu",
                                                  "priority"};
inline constexpr std::string_view kPurposes[] = {"model_weights", "kv_cache",
                                                 "intermediate_buffers", "unknown"};
inline constexpr std::string_view kMemoryKinds[] = {"device", "staging"};
inline constexpr std::string_view kContents[] = {"unwritten", "being_written", "published",
                                                 "failed"};
inline constexpr std::string_view kBlockStates[] = {"free",      "referenced", "fenced",
                                                    "evictable", "offline",    "absent"};
static_assert(std::size(kBlockStates) == KVARENA_BLOCK_ABSENT + 1);

inline std::int32_t urgency_of(std::string_view word) {
  return number_of("urgency", word, kUrgencies);
}
/// Returns the kvarena_dtype of "bf16", "bfloat16", "torch.bfloat16", torch.bfloat16, ...
std::int32_t dtype_of(nb::handle dtype);

/// Returns the stream that an argument names: a handle as an integer, or an object with one
/// (`cuda_stream`, `ptr`, `__cuda_stream__`). 0 is CUDA's legacy default stream, as in torch.
void* stream_of(nb::handle stream);
/// Returns torch's current stream on GPU `ordinal`, or null when torch has none in this process.
void* current_stream(std::int32_t ordinal);

// The parts of the module.
void bind_library(nb::module_& module);
void bind_device(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_sequence(nb::module_& module);
void bind_step(nb::module_& module);
void bind_groups(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_kernels(nb::module_& module);
void bind_monitor(nb::module_& module);
void bind_lines(nb::module_& module);

}  // namespace kvarena::python
