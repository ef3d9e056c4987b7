#pragma once

/// @file
/// States of recurrent layers: their planes, and the view by which a kernel finds them. A state has
/// a fixed number of bytes for each layer, whatever the length of its sequence. The layers of a
/// group are cut into equal parts (choose_pages.hpp), and each part of a state lies in a block of
/// its own, the *slot*. Plain values for any thread.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// How a kernel of states works.
enum class StateMode : std::uint8_t {
  /// It reads and writes one slot. A state that has to stay is copied before the layers, and the
  /// state of an empty sequence is cleared.
  in_place,
  /// It reads one slot and writes another, or the same one; it takes zeros for -1.
  read_write,
};

/// One tensor of a layer's state.
struct StatePlane {
  static constexpr std::int32_t kMaxDims = 4;  ///< entries of `shape`

  DType dtype = DType::f32;                     ///< element type
  std::int32_t num_dims = 1;                    ///< 1 .. kMaxDims
  std::array<std::int64_t, kMaxDims> shape{1};  ///< the first num_dims, each 1 .. 2^40

  /// The number of elements. Requires a valid plane.
  constexpr std::int64_t num_elements() const noexcept {
    std::int64_t product = 1;
    for (std::int32_t i = 0; i < num_dims; ++i) product *= shape[static_cast<std::size_t>(i)];
    return product;
  }
  friend bool operator==(const StatePlane&, const StatePlane&) = default;
};

/// A plane and its place in a slot.
struct StatePlaneView {
  std::int64_t offset =
      0;             ///< bytes from StateView::base to this plane of slot 0; a multiple of 16
  StatePlane plane;  ///< its type and shape, in C order without gaps
};

/// The states of one layer of a pool. Plane `p` of the state in slot `s` begins at
/// `base + s * slot_stride + planes[p].offset`.
struct StateView {
  static constexpr std::size_t kMaxPlanes = 8;  ///< planes of a layer

  std::byte* base = nullptr;     ///< of slot 0
  std::int64_t slot_stride = 0;  ///< bytes from a slot to the next
  std::int64_t num_slots = 0;    ///< slots in the pool
  std::int32_t group = 0;        ///< which of the step's StateSlots has its slots
  std::int32_t part = 0;         ///< which of the parts of these
  std::size_t num_planes = 0;    ///< used entries of `planes`
  std::array<StatePlaneView, kMaxPlanes> planes{};  ///< in the order of LayerGroup::planes
};

/// Returns ok, or invalid_argument with the member, its value and its range: (dtype, num_dims,
/// shape), or (layer_bytes) for more than 2^40 bytes.
KVARENA_EXPORT Status validate(const StatePlane& plane) noexcept;
/// Returns the bytes of a layer's state with padding: each plane begins at a multiple of 16 bytes.
/// Returns what validate returns for a plane, or invalid_argument (planes) for none or more than
/// StateView::kMaxPlanes.
KVARENA_EXPORT Result<std::int64_t> state_bytes(std::span<const StatePlane> planes) noexcept;

}  // namespace kvarena
