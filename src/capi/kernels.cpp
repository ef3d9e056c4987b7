// Attention for engines with block tables of their own: on the host the CPU's code, on CUDA the
// kernels.

#include "capi/convert.hpp"
#include "capi/kernels_object.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// K and V of a layer.
Result<KvLayerView> layer_of(const kvarena_plane* key, const kvarena_plane* value) {
  kvarena_plane k, v;
  if (Status s = read_struct(key, k); !s) return s;
  if (Status s = read_struct(value, v); !s) return s;
  return view_from_c(k, v);
}

}  // namespace

kvarena_status kvarena_kernels_create(kvarena_device* device,
                                      const kvarena_kernels_options* options,
                                      kvarena_kernels** kernels) {
  const Visit visit(device, Kind::device);
  if (!visit) return capi::to_c(visit.status());
  return guarded([&]() -> Status {
    kvarena_kernels_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (kernels == nullptr) return refused_null();
    auto created =
        KernelsObject::create(std::static_pointer_cast<DeviceObject>(visit.share()), given);
    return created ? open(std::move(*created), kernels) : created.status();
  });
}

kvarena_status kvarena_kernels_release(kvarena_kernels* kernels) {
  return close<KernelsObject>(kernels, [](KernelsObject&) {});
}

kvarena_status kvarena_kernels_workspace_bytes(kvarena_kernels* kernels, int64_t* bytes) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    if (bytes == nullptr) return refused_null();
    *bytes = object.workspace_bytes();
    return {};
  });
}

kvarena_status kvarena_kernels_schedule(kvarena_kernels* kernels, const kvarena_tables* tables,
                                        int32_t windowed, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_tables given;
    if (Status s = read_struct(tables, given); !s) return s;
    return object.schedule(given, windowed != 0, stream);
  });
}

kvarena_status kvarena_kernels_write(kvarena_kernels* kernels, const kvarena_plane* key,
                                     const kvarena_plane* value, const int64_t* slots,
                                     int64_t num_tokens, const kvarena_write_args* args,
                                     int32_t overlap, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_write_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<KvLayerView> layer = layer_of(key, value);
    if (!layer) return layer.status();
    const Result<DType> dtype = dtype_from_c(given.dtype);
    if (!dtype) return dtype.status();
    AppendArgs write;
    write.kv = *layer;
    write.key = given.key;
    write.value = given.value;
    write.dtype = *dtype;
    write.slots = slots;
    write.num_tokens = num_tokens;
    write.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    write.key_token_stride_bytes = given.key_token_stride_bytes;
    write.value_token_stride_bytes = given.value_token_stride_bytes;
    return object.write(write, overlap != 0, stream);
  });
}

kvarena_status kvarena_kernels_attend(kvarena_kernels* kernels, const kvarena_plane* key,
                                      const kvarena_plane* value, const kvarena_attend_args* args,
                                      int32_t overlap, void* stream) {
  return enter<KernelsObject>(kernels, [&](KernelsObject& object) -> Status {
    kvarena_attend_args given;
    if (Status s = read_struct(args, given); !s) return s;
    const Result<KvLayerView> layer = layer_of(key, value);
    if (!layer) return layer.status();
    const Result<DType> q_dtype = dtype_from_c(given.q_dtype);
    if (!q_dtype) return q_dtype.status();
    const Result<DType> out_dtype = dtype_from_c(given.out_dtype);
    if (!out_dtype) return out_dtype.status();
    AttentionArgs attend;
    attend.kv = *layer;
    attend.q = given.q;
    attend.q_dtype = *q_dtype;
    attend.out = given.out;
    attend.out_dtype = *out_dtype;
    attend.lse = given.lse;
    attend.scale = given.scale != 0.0F ? given.scale
                                       : 1.0F / std::sqrt(static_cast<float>(layer->key.head_dim));
    attend.soft_cap = given.soft_cap;
    attend.scales = {given.key_scale, given.value_scale, given.scale_per_head != 0};
    attend.sinks = given.sinks;
    attend.tree_mask = given.tree_mask;
    attend.q_token_stride_bytes = given.q_token_stride_bytes;
    attend.out_token_stride_bytes = given.out_token_stride_bytes;
    return object.attend(attend, given.windowed != 0, overlap != 0, stream);
  });
}

kvarena_status kvarena_kernels_check_tables(kvarena_kernels* kernels, int32_t windowed,
                                            void* stream) {
  return enter<KernelsObject>(
      kernels, [&](KernelsObject& object) { return object.check_tables(windowed != 0, stream); });
}

size_t kvarena_kernels_describe(const kvarena_status* status, char* out, size_t size) {
  if (status == nullptr) return write_text("no status was given", out, size);
  return write_text(describe_attention(from_c(*status)), out, size);
}
