// Failures as exceptions, records, words and streams.

#include "core.hpp"

#include "explain.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

namespace kvarena::python {

namespace {

std::string text_of_failure(const kvarena_status& status, const Witness& witness) {
  const auto with_status = [&](auto describe, auto* handle) {
    return text_of([&](char* out, std::size_t size, std::size_t* length) {
      return describe(handle, &status, out, size, length);
    });
  };
  // A witness whose handle is over, or who is busy in another thread, has nothing to say.
  try {
    if (witness.cache != nullptr) return with_status(kvarena_cache_describe, witness.cache);
    if (witness.device != nullptr) return with_status(kvarena_device_describe, witness.device);
  } catch (nb::python_error&) {
  }
  const auto describe = witness.kernels ? kvarena_kernels_describe : kvarena_describe;
  std::string text(describe(&status, nullptr, 0) + 1, '\0');
  text.resize(describe(&status, text.data(), text.size()));
  return text;
}

/// The explanation of refused blocks, or None.
nb::object explanation_of_failure(const kvarena_status& status, const Witness& witness) {
  const bool blocks =
      status.code == KVARENA_EXHAUSTED && (status.resource == KVARENA_RESOURCE_BLOCK ||
                                           status.resource == KVARENA_RESOURCE_RESERVATION);
  auto explanation = sized<kvarena_explanation>();
  kvarena_status asked{};
  asked.code = KVARENA_NOT_FOUND;
  if (blocks && witness.cache != nullptr) {
    asked = kvarena_cache_explain(witness.cache, &status, 0, 0, &explanation);
  } else if (blocks && witness.pool != nullptr) {
    asked = kvarena_pool_explain(witness.pool, &status, 0, 0, &explanation);
  }
  return asked.code == KVARENA_OK ? explanation_record(explanation) : nb::none();
}

[[noreturn]] void raise_builtin(PyObject* type, std::string_view argument, const std::string& given,
                                std::string_view accepted) {
  const std::string text =
      std::string(argument) + ": " + given + "; accepted: " + std::string(accepted);
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

}  // namespace

void raise(const kvarena_status& status, const Witness& witness) {
  raise(status, witness, text_of_failure(status, witness), -1);
}

void raise(const kvarena_status& status, const Witness& witness, std::string text,
           std::int64_t demand) {
  if (text.empty()) text = text_of_failure(status, witness);
  const nb::object make = python_class("kvarena._errors", "make");
  const nb::object error =
      make(kvarena_name_of_code(status.code), text, kvarena_name_of_resource(status.resource),
           status.option == 0 ? "" : kvarena_name_of_option(status.option), status.native,
           status.subject, status.required, status.available,
           explanation_of_failure(status, witness), demand);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void raise_value(std::string_view argument, const std::string& given, std::string_view accepted) {
  raise_builtin(PyExc_ValueError, argument, given, accepted);
}

void raise_type(std::string_view argument, const std::string& given, std::string_view accepted) {
  raise_builtin(PyExc_TypeError, argument, given, accepted);
}

void require_function(std::string_view argument, nb::handle function) {
  if (function.is_none() || PyCallable_Check(function.ptr()) != 0) return;
  raise_type(argument, nb::cast<std::string>(nb::repr(function)), "None or a function");
}

void raise_order(const char* what) {
  kvarena_status status{};
  status.code = KVARENA_FAILED_PRECONDITION;
  status.resource = KVARENA_RESOURCE_STEP;
  raise(status, {}, what, -1);
}

void raise_closed(const char* what) {
  kvarena_status status{};
  status.code = KVARENA_FAILED_PRECONDITION;
  raise(status, {}, what, -1);
}

nb::object python_class(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

nb::object make_record(const char* name, const nb::dict& values) {
  return python_class("kvarena._records", name)(**values);
}

std::int32_t number_of(std::string_view argument, std::string_view word,
                       const std::string_view* words, std::size_t count) {
  std::string accepted;
  for (std::size_t i = 0; i < count; ++i) {
    if (words[i] == word) return static_cast<std::int32_t>(i);
    accepted += (i == 0 ? "\"" : ", \"") + std::string(words[i]) + "\"";
  }
  raise_value(argument, "\"" + std::string(word) + "\"", accepted);
}

std::int32_t dtype_of(nb::handle dtype) {
  std::string name = nb::cast<std::string>(nb::str(dtype));
  if (name.starts_with("torch.")) name.erase(0, 6);
  constexpr std::string_view kOthers[][2] = {{"float16", "f16"},   {"half", "f16"},
                                             {"bfloat16", "bf16"}, {"float32", "f32"},
                                             {"float", "f32"},     {"float8_e4m3fn", "fp8_e4m3"}};
  for (const auto& [other, ours] : kOthers) {
    if (name == other) return number_of("dtype", ours, kDtypes);
  }
  return number_of("dtype", name, kDtypes);
}

void* stream_of(nb::handle stream) {
  nb::object number = nb::borrow(stream);
  if (nb::hasattr(stream, "cuda_stream")) {
    number = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "__cuda_stream__")) {
    number = stream.attr("__cuda_stream__")()[1];
  } else if (nb::hasattr(stream, "ptr")) {
    number = stream.attr("ptr");
  }
  std::uint64_t handle = 0;
  if (!nb::try_cast<std::uint64_t>(number, handle)) {
    raise_type("stream", nb::cast<std::string>(nb::repr(stream)),
               "None, a stream's handle as an int, or an object with cuda_stream");
  }
  return reinterpret_cast<void*>(handle == 0 ? std::uint64_t{KVARENA_STREAM_LEGACY} : handle);
}

void* current_stream(std::int32_t ordinal) {
  const nb::object stream = python_class("kvarena._torch", "current_stream")(ordinal);
  return stream.is_none() ? nullptr : stream_of(stream);
}

}  // namespace kvarena::python
