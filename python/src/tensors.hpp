#pragma once

/// @file
/// Tensors of other libraries. A `Tensor` is taken from anything with DLPack and is checked here,
/// before anything is queued: each refusal names the argument, what was given and what is accepted.
/// Nothing is copied.

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core.hpp"
#include "dlpack.h"

namespace kvarena::python {

inline constexpr int kMaxDims = 8;

/// Where tensors must be.
struct Place {
  bool is_cuda = false;
  std::int32_t ordinal = -1;
  void* stream = nullptr;  ///< CUDA: of the work that will read them; null: no one waits
};

/// Memory of an argument. It keeps the producer's promise, not the object: who queues work holds
/// the object for as long as the work needs it.
class Tensor {
 public:
  /// Takes `object`. Raises TypeError for an object without DLPack, ValueError for a tensor that
  /// requires grad, lies elsewhere than `place` or is unaligned, and for a producer that raises an
  /// Exception. What ends a program (KeyboardInterrupt, SystemExit) and MemoryError pass unchanged.
  Tensor(std::string_view argument, nb::handle object, const Place& place);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void* data() const noexcept { return data_; }
  int ndim() const noexcept { return ndim_; }
  std::int64_t shape(int dim) const noexcept { return shape_[static_cast<std::size_t>(dim)]; }
  /// Bytes from one index of a dimension to the next.
  std::int64_t stride_bytes(int dim) const noexcept {
    return strides_[static_cast<std::size_t>(dim)] * bytes_of_element();
  }
  std::int64_t bytes_of_element() const noexcept { return dtype_.bits / 8; }
  dlpack::DataType dtype() const noexcept { return dtype_; }
  dlpack::Device device() const noexcept { return device_; }

  /// Raises ValueError unless the shape is `expected`; `form` names the dimensions.
  void require_shape(std::initializer_list<std::int64_t> expected, std::string_view form) const;
  /// Raises ValueError unless dimensions `first` .. last are dense.
  void require_dense(int first, std::string_view accepted) const;
  /// Raises TypeError unless the elements are of this type, such as "int32".
  void require_dtype(dlpack::DataType dtype) const;
  /// Raises ValueError for read-only memory.
  void require_writable() const;
  /// Returns the kvarena_dtype of floating-point elements. Raises TypeError for others.
  std::int32_t float_dtype() const;
  /// Returns the bytes from one token (dimension 0) to the next; 0: dense.
  std::int64_t token_stride_bytes() const;

 private:
  bool is_empty() const;
  bool take_by_exchange(nb::handle object);
  void take_by_capsule(nb::handle object, const Place& place);
  void take_fields(const dlpack::Tensor& tensor);
  void require_place(const Place& place) const;

  std::string_view argument_;
  void* data_ = nullptr;
  int ndim_ = 0;
  bool read_only_ = false;
  dlpack::DataType dtype_{};
  dlpack::Device device_{};
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> strides_{};
  dlpack::ManagedTensor* managed_ = nullptr;
  dlpack::VersionedTensor* versioned_ = nullptr;
};

inline constexpr dlpack::DataType kInt32{dlpack::kInt, 32, 1};
inline constexpr dlpack::DataType kInt64{dlpack::kInt, 64, 1};
inline constexpr dlpack::DataType kUint64{dlpack::kUint, 64, 1};
inline constexpr dlpack::DataType kFloat32{dlpack::kFloat, 32, 1};

/// Returns the DLPack type of a kvarena_dtype.
dlpack::DataType dlpack_dtype(std::int32_t dtype);

/// Makes a new tensor of the library that made `like`, which was taken as `taken`, on its device
/// and of its type: by DLPack's exchange API, `new_empty`, or the array API. Other libraries get an
/// array of this module on the host; on CUDA, raises TypeError that asks for `out`.
nb::object new_tensor(nb::handle like, const Tensor& taken, std::vector<std::int64_t> shape);

/// Returns memory as an object with DLPack (and the buffer protocol on the host), which keeps
/// `owner`. Strides are in elements; empty: dense.
nb::object array_of(void* data, dlpack::DataType dtype, const Place& place,
                    std::vector<std::int64_t> shape, nb::handle owner,
                    std::vector<std::int64_t> strides = {});

}  // namespace kvarena::python
