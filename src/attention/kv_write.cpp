#include "kvarena/attention/kv_write.hpp"

#include "attention/checks.hpp"
#include "base/half.hpp"
#include "kernels/params.h"

#include <cstring>
#include <limits>

namespace kvarena {
namespace {

using namespace attention;

/// Converts the elements of one row.
template <class From, class To, class Convert>
void convert_row(const void* from, void* to, std::int32_t dim, Convert convert) noexcept {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  for (std::int32_t d = 0; d < dim; ++d) target[d] = convert(source[d]);
}

// Writes `dim` elements of one head. Validation has checked that rows are aligned to their
// elements.
void write_row(const void* from, DType from_dtype, void* to, DType to_dtype,
               std::int32_t dim) noexcept {
  using Half = std::uint16_t;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(dim * bytes_of(to_dtype)));
    return;
  }
  const auto to_f16 = [](float value) { return f16_from_f32(value); };
  const auto to_bf16 = [](float value) { return bf16_from_f32(value); };
  const auto f16 = [](Half bits) { return f32_from_f16(bits); };
  const auto bf16 = [](Half bits) { return f32_from_bf16(bits); };
  const auto bf16_to_f16 = [](Half bits) { return f16_from_f32(f32_from_bf16(bits)); };
  const auto f16_to_bf16 = [](Half bits) { return bf16_from_f32(f32_from_f16(bits)); };
  switch (from_dtype) {
    case DType::f16:
      if (to_dtype == DType::f32) return convert_row<Half, float>(from, to, dim, f16);
      return convert_row<Half, Half>(from, to, dim, f16_to_bf16);
    case DType::bf16:
      if (to_dtype == DType::f32) return convert_row<Half, float>(from, to, dim, bf16);
      return convert_row<Half, Half>(from, to, dim, bf16_to_f16);
    default:
      if (to_dtype == DType::f16) return convert_row<float, Half>(from, to, dim, to_f16);
      return convert_row<float, Half>(from, to, dim, to_bf16);
  }
}

/// One append, shared by all workers.
struct AppendRun {
  kernels::AppendParams params;
  std::int32_t num_workers;
};

/// Writes tokens [begin, end) to one plane.
void append_plane(const kernels::AppendParams& p, const PlaneView& plane, const void* input,
                  std::int64_t given_stride, std::int64_t begin, std::int64_t end) noexcept {
  const std::int64_t stride =
      kernels::token_stride(given_stride, plane.num_heads, plane.head_dim, p.dtype);
  const std::int64_t head_bytes = plane.head_dim * bytes_of(p.dtype);
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const std::int64_t block = slot / p.kv.block_size;
    const std::int64_t offset = slot - block * p.kv.block_size;
    const auto* from = static_cast<const std::byte*>(input) + token * stride;
    std::byte* to = plane.base + block * plane.block_stride + offset * plane.token_stride;
    for (std::int32_t head = 0; head < plane.num_heads; ++head) {
      write_row(from + head * head_bytes, p.dtype, to + head * plane.head_stride, plane.dtype,
                plane.head_dim);
    }
  }
}

/// The share of one worker.
void append_share(void* argument, std::int32_t worker) noexcept {
  const AppendRun& run = *static_cast<const AppendRun*>(argument);
  const kernels::AppendParams& p = run.params;
  const std::int64_t begin = p.num_tokens * worker / run.num_workers;
  const std::int64_t end = p.num_tokens * (worker + 1) / run.num_workers;
  append_plane(p, p.kv.key, p.key, p.key_token_stride, begin, end);
  if (p.value == nullptr) return;
  append_plane(p, p.kv.value, p.value, p.value_token_stride, begin, end);
}

/// Checks everything of an append, every slot too.
Status check_append(const AppendArgs& args) noexcept {
  if (Status s = check_layer(args.kv); !s) return s;
  if (Status s = cpu_dtype(Check::input_dtype, args.dtype); !s) return s;
  if (Status s = in_range(Check::num_tokens, Resource::num_tokens, args.num_tokens, 0,
                          std::numeric_limits<std::int32_t>::max());
      !s) {
    return s;
  }
  if (args.num_tokens == 0) return {};
  if (Status s = element_pointer(Check::key_pointer, Check::input_alignment, args.key, args.dtype);
      !s) {
    return s;
  }
  const bool aliased = args.kv.value.base == args.kv.key.base;
  if (args.value != nullptr || !aliased) {
    if (Status s =
            element_pointer(Check::value_pointer, Check::input_alignment, args.value, args.dtype);
        !s) {
      return s;
    }
  }
  const auto stride = [&](std::int64_t bytes, const PlaneView& plane) {
    return token_stride(Check::input_stride, bytes, plane.num_heads, plane.head_dim, args.dtype);
  };
  if (Status s = stride(args.key_token_stride_bytes, args.kv.key); !s) return s;
  if (Status s = stride(args.value_token_stride_bytes, args.kv.value); !s) return s;
  if (Status s = not_null(Check::slots_pointer, args.slots); !s) return s;
  const std::int64_t last = args.kv.num_blocks * args.kv.block_size - 1;
  for (std::int64_t i = 0; i < args.num_tokens; ++i) {
    if (Status s = in_range(Check::slot, Resource::token_index, args.slots[i], -1, last); !s)
      return s;
  }
  return {};
}

/// Checks every region and every copy.
Status check_copies(std::span<const BlockCopy> copies, std::span<const BlockRegion> regions,
                    std::int64_t num_blocks) noexcept {
  for (const BlockRegion& region : regions) {
    if (Status s = not_null(Check::region_pointer, region.base); !s) return s;
    if (Status s = in_range(Check::region_bytes, Resource::block_bytes, region.bytes, 0,
                            region.block_stride);
        !s) {
      return s;
    }
  }
  for (const BlockCopy& copy : copies) {
    for (const BlockId block : {copy.source, copy.target}) {
      if (Status s =
              in_range(Check::copy_block, Resource::block_index, block.value, 0, num_blocks - 1);
          !s) {
        return s;
      }
    }
    if (copy.source == copy.target) {
      return with(Check::copy_block,
                  invalid_argument(Resource::block_index, copy.target.value, 0, num_blocks - 1));
    }
  }
  return {};
}

}  // namespace

/// All slots are checked before anything is written.
Status append_kv(const AppendArgs& args, CpuWorkers* workers) noexcept {
  if (Status s = check_append(args); !s) return s;
  AppendRun run{{.kv = args.kv,
                 .key = args.key,
                 .value = args.value,
                 .slots = args.slots,
                 .num_tokens = args.num_tokens,
                 .dtype = args.dtype,
                 .key_token_stride = args.key_token_stride_bytes,
                 .value_token_stride = args.value_token_stride_bytes},
                1};
  if (workers == nullptr) {
    append_share(&run, 0);
  } else {
    run.num_workers = workers->num_threads();
    workers->run(append_share, &run);
  }
  return {};
}

Status copy_blocks(std::span<const BlockCopy> copies, std::span<const BlockRegion> regions,
                   std::int64_t num_blocks) noexcept {
  if (Status s = check_copies(copies, regions, num_blocks); !s) return s;
  for (const BlockCopy& copy : copies) {
    for (const BlockRegion& region : regions) {
      std::memcpy(region.base + copy.target.value * region.block_stride,
                  region.base + copy.source.value * region.block_stride,
                  static_cast<std::size_t>(region.bytes));
    }
  }
  return {};
}

}  // namespace kvarena
