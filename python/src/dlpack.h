#pragma once

/// @file
/// The part of DLPack 1.3 that the module reads. The names and the form are those of
/// https://github.com/dmlc/dlpack (include/dlpack/dlpack.h).

#include <cstdint>

namespace kvarena::python::dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : std::uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  bool operator==(const DataType&) const = default;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: dense
  std::uint64_t byte_offset;
};

/// What a capsule named "dltensor" holds.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

inline constexpr std::uint64_t kReadOnly = 1;

/// What a capsule named "dltensor_versioned" holds.
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

/// What a type's `__dlpack_c_exchange_api__` points to: the way without a Python call. Functions
/// return 0, or -1 with a Python exception.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, VersionedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_of)(void* object, VersionedTensor** out);
  int (*object_of)(VersionedTensor* tensor, void** out);
  int (*borrow)(void* object, Tensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace kvarena::python::dlpack
