#include "kvarena/base/state_layout.hpp"

#include "base/range_checks.hpp"
#include "kvarena/base/layout.hpp"

namespace kvarena {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;

constexpr std::int64_t padded(std::int64_t bytes) noexcept {
  constexpr std::int64_t kAlignment = KvLayout::kPlaneAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Status validate(const StatePlane& plane) noexcept {
  if (Status s = check_enum(Option::dtype, plane.dtype, DType::int8); !s) return s;
  if (Status s = check_option(Option::num_dims, plane.num_dims, 1, StatePlane::kMaxDims); !s) {
    return s;
  }
  std::int64_t bytes = bytes_of(plane.dtype);
  for (std::int32_t i = 0; i < plane.num_dims; ++i) {
    const std::int64_t extent = plane.shape[static_cast<std::size_t>(i)];
    if (Status s = check_option(Option::shape, extent, 1, kMaxBytes); !s) return s;
    if (extent > kMaxBytes / bytes) {
      return invalid_option(Option::layer_bytes, kMaxBytes + 1, 1, kMaxBytes);
    }
    bytes *= extent;
  }
  return {};
}

Result<std::int64_t> state_bytes(std::span<const StatePlane> planes) noexcept {
  const auto count = static_cast<std::int64_t>(planes.size());
  constexpr auto kMost = static_cast<std::int64_t>(StateView::kMaxPlanes);
  if (Status s = check_option(Option::planes, count, 1, kMost); !s) return s;
  std::int64_t bytes = 0;
  for (const StatePlane& plane : planes) {
    if (Status s = validate(plane); !s) return s;
    bytes += padded(plane.num_elements() * bytes_of(plane.dtype));
  }
  return bytes;
}

}  // namespace kvarena
