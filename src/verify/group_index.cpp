// The keys of a sparse-attention index: written beside K and V, compared as the pool keeps them.

#include "verify/group_verifier.hpp"

#include "base/half.hpp"
#include "kernels/reference/element.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvarena::verify {

// The keys are given in bf16, as a model computes them. The cache finds the elements and the scale.
Status GroupVerifier::write_index(const Layer& layer, std::int64_t offset) {
  const std::int32_t dim = groups_[layer.group].index_dim;
  index_row_.resize(static_cast<std::size_t>(dim));
  std::byte* const keys = content_.host() + offset;
  std::int64_t element = 0;
  for (const std::uint64_t hash : step_hashes_) {
    const float scale = fill_index_row(hash, layer.layer, dim, index_row_.data());
    for (const std::byte bits : index_row_) {
      const float value = kernels::reference::f32_from_fp8(std::to_integer<std::uint8_t>(bits));
      store_f32(keys, DType::bf16, element++, value * scale);
    }
  }
  if (Status s = bytes_.upload(content_, offset, element * bytes_of(DType::bf16)); !s) return s;
  report_.index_bytes_written += num_tokens() * (dim + std::int64_t{sizeof(float)});
  return cache_.write_index(
      {.layer = layer.layer, .key = content_.device() + offset, .dtype = DType::bf16});
}

// The blocks are those of check_layer, which comes first.
MaybeFailure GroupVerifier::check_index(const WrittenSequence& sequence, const Layer& layer,
                                        std::int64_t first, std::int64_t end) {
  const std::int32_t block_size = layer.view.block_size;
  const std::int32_t dim = groups_[layer.group].index_dim;
  Status read = bytes_.read_rows(layer.index, block_size, blocks_, first, end, rows_);
  if (read) read = bytes_.read_scales(layer.index, block_size, blocks_, first, end, scales_);
  if (!read) return unexpected("read_rows", read);
  index_row_.resize(static_cast<std::size_t>(dim));
  report_.index_bytes_compared += (end - first) * (dim + std::int64_t{sizeof(float)});
  for (std::int64_t i = 0; i < end - first; ++i) {
    const std::uint64_t hash = hashes_[static_cast<std::size_t>(first + i)];
    const float scale = fill_index_row(hash, layer.layer, dim, index_row_.data());
    const auto found = rows_.begin() + i * dim;
    const auto at = std::mismatch(index_row_.begin(), index_row_.end(), found);
    if (at.first != index_row_.end()) {
      const std::string what = fmt::format("byte {} is {:#04x}", at.first - index_row_.begin(),
                                           std::to_integer<unsigned>(*at.second));
      return wrong_index(sequence, layer, first, first + i, what,
                         fmt::format("{:#04x}", std::to_integer<unsigned>(*at.first)));
    }
    const float stored = scales_[static_cast<std::size_t>(i)];
    if (stored == scale) continue;
    return wrong_index(sequence, layer, first, first + i, fmt::format("the scale is {}", stored),
                       fmt::format("{}", scale));
  }
  return std::nullopt;
}

MaybeFailure GroupVerifier::wrong_index(const WrittenSequence& sequence, const Layer& layer,
                                        std::int64_t first, std::int64_t token,
                                        std::string_view what, std::string wanted) {
  ++report_.failures;
  const std::int64_t block = token / layer.view.block_size;
  const auto place = static_cast<std::size_t>(block - first / layer.view.block_size);
  return Failure{
      RunEnd::check_failed,
      {.found = fmt::format("the index key of request {} sample {}, token {}, layer {}: {} (block "
                            "{} of table {}, entry {})",
                            sequence.stream.owner(), sequence.stream.sample(), token, layer.layer,
                            what, blocks_[place], layer.part, block),
       .expected = std::move(wanted) + ", what was written for this token",
       .advice = "a block was overwritten, mapped wrongly or not copied; report it"}};
}

}  // namespace kvarena::verify
