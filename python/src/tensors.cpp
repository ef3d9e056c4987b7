#include "tensors.hpp"

#include <algorithm>
#include <cstdlib>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

std::string name_of(dlpack::DataType dtype) {
  const char* const kind = dtype.code == dlpack::kFloat    ? "float"
                           : dtype.code == dlpack::kBfloat ? "bfloat"
                           : dtype.code == dlpack::kInt    ? "int"
                           : dtype.code == dlpack::kUint   ? "uint"
                                                           : nullptr;
  if (kind == nullptr) return "DLPack type " + std::to_string(dtype.code);
  return kind + std::to_string(dtype.bits) +
         (dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes));
}

std::string name_of(dlpack::Device device) {
  if (device.type == dlpack::kCpu || device.type == dlpack::kCudaHost) return "on the host";
  if (device.type == dlpack::kCuda) return "on cuda:" + std::to_string(device.id);
  return "on DLPack device type " + std::to_string(device.type);
}

std::string numbers(const std::int64_t* values, std::size_t count) {
  std::string text = "[";
  for (std::size_t i = 0; i < count; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + "]";
}

std::string type_words(nb::handle object) {
  return "an object of type " + nb::cast<std::string>(nb::inst_name(object));
}

/// Returns the exchange API of an object's type, or null. The last answer is kept, because the
/// tensors of a step have one type.
const dlpack::ExchangeApi* exchange_of(nb::handle object) {
  static PyTypeObject* last_type = nullptr;
  static const dlpack::ExchangeApi* last_api = nullptr;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == last_type) return last_api;
  const dlpack::ExchangeApi* api = nullptr;
  nb::object capsule = nb::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (capsule.is_valid()) {
    api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  }
  PyErr_Clear();
  while (api != nullptr && api->version.major != 1) api = api->previous;
  if (api != nullptr && api->borrow == nullptr) api = nullptr;
  // A kept type must stay alive, else another could come to its address. Types are few.
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  last_type = type;
  last_api = api;
  return api;
}

/// Turns the Python exception of a producer into ValueError with the argument's name. What ends a
/// program, and MemoryError, goes on as it is.
[[noreturn]] void raise_from_producer(std::string_view argument) {
  nb::python_error error;
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
  auto said = nb::cast<std::string>(nb::str(error.value()));
  if (said.empty()) said = nb::cast<std::string>(error.type().attr("__name__"));
  const std::string text = std::string(argument) + ": its producer refuses DLPack: " + said;
  nb::raise_from(error, PyExc_ValueError, "%s", text.c_str());
}

/// Returns whether `__dlpack_device__` says CUDA. Raises TypeError for what is no device.
bool is_on_cuda(std::string_view argument, nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  std::int32_t type = 0;
  std::int32_t id = 0;
  const bool is_pair = PyTuple_Check(device.ptr()) != 0 && nb::len(device) == 2;
  // Types are enumerations of the producer's.
  if (!is_pair || PyIndex_Check(nb::object(device[0]).ptr()) == 0 ||
      !nb::try_cast(nb::int_(device[0]), type) || !nb::try_cast(device[1], id)) {
    raise_type(argument,
               "a __dlpack_device__ that returns " + nb::cast<std::string>(nb::repr(device)),
               "a tuple of device type and device id");
  }
  return type == dlpack::kCuda;
}

bool requires_grad(nb::handle object) {
  const nb::object flag = nb::steal(PyObject_GetAttrString(object.ptr(), "requires_grad"));
  if (!flag.is_valid()) {
    nb::python_error error;
    if (!error.matches(PyExc_Exception)) throw error;
  }
  return flag.ptr() == Py_True;
}

}  // namespace

Tensor::Tensor(std::string_view argument, nb::handle object, const Place& place)
    : argument_(argument) {
  if (requires_grad(object)) {
    raise_value(argument, "a tensor that requires grad",
                "tensors without; use torch.no_grad() or .detach()");
  }
  if (!take_by_exchange(object)) take_by_capsule(object, place);
  require_place(place);
}

Tensor::~Tensor() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
  if (versioned_ != nullptr && versioned_->deleter != nullptr) versioned_->deleter(versioned_);
}

bool Tensor::take_by_exchange(nb::handle object) {
  const dlpack::ExchangeApi* const api = exchange_of(object);
  if (api == nullptr) return false;
  dlpack::Tensor tensor{};
  if (api->borrow(object.ptr(), &tensor) != 0) raise_from_producer(argument_);
  take_fields(tensor);
  return true;
}

void Tensor::take_by_capsule(nb::handle object, const Place& place) {
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) {
    raise_type(argument_, type_words(object), "tensors with DLPack (__dlpack__)");
  }
  bool is_cuda = false;
  nb::object capsule;
  try {
    is_cuda = is_on_cuda(argument_, object);
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_TypeError)) throw;
    error.restore();
    raise_from_producer(argument_);
  }
  try {
    const nb::object produce = object.attr("__dlpack__");
    nb::dict how;
    if (place.stream != nullptr && is_cuda) {
      how["stream"] = reinterpret_cast<std::uintptr_t>(place.stream);
    }
    nb::dict versioned;
    versioned.update(how);
    versioned["max_version"] = nb::make_tuple(1, 0);
    try {
      capsule = produce(**versioned);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = produce(**how);  // a producer older than DLPack 1.0
    }
  } catch (nb::python_error& error) {
    error.restore();
    raise_from_producer(argument_);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    versioned_ = static_cast<dlpack::VersionedTensor*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    read_only_ = (versioned_->flags & dlpack::kReadOnly) != 0;
    take_fields(versioned_->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    managed_ = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    take_fields(managed_->tensor);
  } else {
    raise_type(argument_, "a __dlpack__ that returns no DLPack capsule",
               "tensors with DLPack (__dlpack__)");
  }
}

void Tensor::take_fields(const dlpack::Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) {
    raise_value(argument_, std::to_string(tensor.ndim) + " dimensions", "at most 8");
  }
  ndim_ = tensor.ndim;
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  dtype_ = tensor.dtype;
  device_ = tensor.device;
  std::int64_t dense = 1;
  for (std::size_t i = static_cast<std::size_t>(ndim_); i-- > 0;) {
    shape_[i] = tensor.shape[i];
    // The stride of a dimension of one index is not read.
    strides_[i] = tensor.strides == nullptr || shape_[i] == 1 ? dense : tensor.strides[i];
    dense *= shape_[i];
  }
  const bool is_number = dtype_.code <= dlpack::kFloat || dtype_.code == dlpack::kBfloat;
  const auto element = static_cast<std::uintptr_t>(bytes_of_element());
  if (is_number && element > 1 && !is_empty() &&
      reinterpret_cast<std::uintptr_t>(data_) % element != 0) {
    raise_value(argument_, "elements at addresses that are no multiples of their size",
                "aligned memory, " + std::to_string(element) + " bytes here");
  }
}

bool Tensor::is_empty() const {
  return std::any_of(shape_.begin(), shape_.begin() + ndim_,
                     [](std::int64_t extent) { return extent == 0; });
}

void Tensor::require_place(const Place& place) const {
  const bool is_host = device_.type == dlpack::kCpu || device_.type == dlpack::kCudaHost;
  if (place.is_cuda) {
    if (device_.type == dlpack::kCuda && device_.id == place.ordinal) return;
    raise_value(argument_, "a tensor " + name_of(device_),
                "tensors on cuda:" + std::to_string(place.ordinal) + ", where the device is");
  }
  if (!is_host) {
    raise_value(argument_, "a tensor " + name_of(device_), "tensors on the host");
  }
}

void Tensor::require_shape(std::initializer_list<std::int64_t> expected,
                           std::string_view form) const {
  const auto count = static_cast<std::size_t>(ndim_);
  if (count == expected.size() && std::equal(expected.begin(), expected.end(), shape_.begin())) {
    return;
  }
  raise_value(argument_, "shape " + numbers(shape_.data(), count),
              std::string(form) + " = " + numbers(expected.begin(), expected.size()));
}

void Tensor::require_dense(int first, std::string_view accepted) const {
  if (is_empty()) return;  // some libraries give no strides then
  std::int64_t dense = 1;
  for (int i = ndim_ - 1; i >= first; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (strides_[dim] != dense && shape_[dim] > 1) {
      raise_value(argument_,
                  "strides " + numbers(strides_.data(), static_cast<std::size_t>(ndim_)) +
                      " of shape " + numbers(shape_.data(), static_cast<std::size_t>(ndim_)),
                  accepted);
    }
    dense *= shape_[dim];
  }
}

void Tensor::require_dtype(dlpack::DataType dtype) const {
  if (dtype_ == dtype) return;
  raise_type(argument_, "elements of type " + name_of(dtype_), name_of(dtype));
}

void Tensor::require_writable() const {
  if (read_only_) raise_value(argument_, "a read-only tensor", "writable tensors");
}

std::int32_t Tensor::float_dtype() const {
  for (const std::int32_t dtype : {KVARENA_F32, KVARENA_BF16, KVARENA_F16}) {
    if (dlpack_dtype(dtype) == dtype_) return dtype;
  }
  raise_type(argument_, "elements of type " + name_of(dtype_), "float32, float16, bfloat16");
}

std::int64_t Tensor::token_stride_bytes() const {
  std::int64_t dense = bytes_of_element();
  for (int i = 1; i < ndim_; ++i) dense *= shape(i);
  if (shape(0) <= 1 || stride_bytes(0) == dense) return 0;
  if (stride_bytes(0) < dense) {
    raise_value(argument_, "tokens " + std::to_string(stride_bytes(0)) + " bytes apart",
                "tokens that do not overlap, " + std::to_string(dense) + " bytes apart or more");
  }
  return stride_bytes(0);
}

dlpack::DataType dlpack_dtype(std::int32_t dtype) {
  switch (dtype) {
    case KVARENA_F16: return {dlpack::kFloat, 16, 1};
    case KVARENA_BF16: return {dlpack::kBfloat, 16, 1};
    case KVARENA_F32: return kFloat32;
    case KVARENA_INT8: return {dlpack::kInt, 8, 1};
    default: return {dlpack::kUint, 8, 1};  // fp8 by its bytes
  }
}

nb::object new_tensor(nb::handle like, const Tensor& taken, std::vector<std::int64_t> shape) {
  const dlpack::ExchangeApi* const api = exchange_of(like);
  if (api != nullptr && api->allocate != nullptr && api->object_of != nullptr) {
    dlpack::Tensor prototype{nullptr,
                             taken.device(),
                             static_cast<std::int32_t>(shape.size()),
                             taken.dtype(),
                             shape.data(),
                             nullptr,
                             0};
    dlpack::VersionedTensor* made = nullptr;
    const auto set_error = [](void*, const char*, const char* message) {
      PyErr_SetString(PyExc_MemoryError, message);
    };
    if (api->allocate(&prototype, &made, nullptr, set_error) != 0) throw nb::python_error();
    void* object = nullptr;
    if (api->object_of(made, &object) != 0) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
  }
  if (nb::hasattr(like, "new_empty")) return like.attr("new_empty")(nb::tuple(nb::cast(shape)));
  if (nb::hasattr(like, "__array_namespace__") && nb::hasattr(like, "device")) {
    return like.attr("__array_namespace__")().attr("empty")(
        nb::tuple(nb::cast(shape)), nb::arg("dtype") = like.attr("dtype"),
        nb::arg("device") = like.attr("device"));
  }
  if (taken.device().type == dlpack::kCuda) {
    raise_type("out", "None for " + type_words(like), "a tensor on the GPU that gets the result");
  }
  std::int64_t bytes = taken.bytes_of_element();
  for (const std::int64_t extent : shape) bytes *= extent;
  void* const memory = std::malloc(static_cast<std::size_t>(bytes) + 1);
  if (memory == nullptr) throw std::bad_alloc();
  const nb::capsule owner(memory, [](void* p) noexcept { std::free(p); });
  return array_of(memory, taken.dtype(), {}, std::move(shape), owner);
}

nb::object array_of(void* data, dlpack::DataType dtype, const Place& place,
                    std::vector<std::int64_t> shape, nb::handle owner,
                    std::vector<std::int64_t> strides) {
  std::vector<std::size_t> extents(shape.begin(), shape.end());
  const nb::dlpack::dtype type{dtype.code, dtype.bits, dtype.lanes};
  const nb::ndarray<nb::array_api> array(
      data, extents.size(), extents.data(), owner, strides.empty() ? nullptr : strides.data(), type,
      place.is_cuda ? dlpack::kCuda : dlpack::kCpu, place.is_cuda ? place.ordinal : 0);
  return nb::cast(array);
}

}  // namespace kvarena::python
