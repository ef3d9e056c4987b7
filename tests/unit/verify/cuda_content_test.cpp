// Content and comparisons on a GPU against those on the host.

#include "support/device_buffer.hpp"
#include "support/gpu.hpp"
#include "support/status_matchers.hpp"
#include "verify/attention_error.hpp"
#include "verify/cuda/content_kernels.h"
#include "verify/cuda/exact_attention.h"
#include "verify/sequence.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvarena::verify {
namespace {

using test::DeviceBuffer;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr RowKind kKinds[] = {RowKind::key, RowKind::value, RowKind::query};

std::vector<std::uint64_t> some_hashes(std::size_t count) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < count; ++i) hashes.push_back(mix(i + 1));
  return hashes;
}

class CudaContent : public testing::Test {
 protected:
  void SetUp() override {
    KVARENA_NEEDS_GPU();
    device_ = test::make_cuda();
    ASSERT_NE(device_, nullptr);
    stream_ = device_->create_stream().value();
    native_ = static_cast<cudaStream_t>(device_->native_stream(stream_).value());
  }

  template <class T>
  DeviceBuffer upload(const std::vector<T>& values) {
    const auto bytes = values.size() * sizeof(T);
    DeviceBuffer buffer = DeviceBuffer::create(*device_, bytes).value();
    EXPECT_OK(device_->copy(buffer.data(), values.data(), bytes, stream_));
    EXPECT_OK(device_->synchronize(stream_));
    return buffer;
  }
  template <class T>
  std::vector<T> download(const DeviceBuffer& buffer, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_OK(device_->copy(values.data(), buffer.data(), count * sizeof(T), stream_));
    EXPECT_OK(device_->synchronize(stream_));
    return values;
  }

  // Counts on the device how many words of `rows` are not content.
  std::int64_t wrong_words(const ContentRows& rows) {
    const DeviceBuffer workspace = DeviceBuffer::create(*device_, kCountWorkspaceBytes).value();
    const auto count = count_wrong_words(rows, static_cast<std::byte*>(workspace.data()), native_);
    EXPECT_OK(count.status());
    return count ? *count : -1;
  }

  void expect_same_rows(DType dtype, RowKind kind, std::int32_t head_dim);

  std::unique_ptr<CudaDevice> device_;
  StreamId stream_{};
  cudaStream_t native_ = nullptr;
};

// Three layers of five tokens with three heads, a gap behind each layer.
void CudaContent::expect_same_rows(DType dtype, RowKind kind, std::int32_t head_dim) {
  constexpr std::int32_t kFirstLayer = 4, kLayers = 3, kHeads = 3;
  constexpr std::int64_t kTokens = 5;
  const auto hashes = some_hashes(kTokens);
  const std::int64_t row = head_dim * bytes_of(dtype);
  const std::int64_t stride = (kTokens * kHeads * row + 3) / 4 * 4 + 8;
  std::vector<std::byte> expected(static_cast<std::size_t>(kLayers * stride), std::byte{0xee});
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int64_t i = 0; i < kTokens * kHeads; ++i) {
      fill_row(dtype, hashes[static_cast<std::size_t>(i / kHeads)], kFirstLayer + layer, kind,
               static_cast<std::int32_t>(i % kHeads), head_dim,
               expected.data() + layer * stride + i * row);
    }
  }
  const DeviceBuffer device_hashes = upload(hashes);
  const DeviceBuffer rows = upload(std::vector<std::byte>(expected.size(), std::byte{0xee}));
  const ContentRows content{.hashes = static_cast<const std::uint64_t*>(device_hashes.data()),
                            .rows = static_cast<std::byte*>(rows.data()),
                            .layer_stride = stride,
                            .num_tokens = kTokens,
                            .first_layer = kFirstLayer,
                            .num_layers = kLayers,
                            .num_heads = kHeads,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .kind = kind};
  ASSERT_OK(launch_fill_rows(content, native_));
  const auto found = download<std::byte>(rows, expected.size());
  ASSERT_EQ(found, expected) << name_of(dtype) << " kind " << static_cast<int>(kind) << " dim "
                             << head_dim;
  EXPECT_EQ(wrong_words(content), 0);
  // The last byte of the last row of the last layer, and the first of all.
  for (const std::int64_t at : {(kLayers - 1) * stride + kTokens * kHeads * row - 1, 0L}) {
    std::byte flipped = expected[static_cast<std::size_t>(at)] ^ std::byte{1};
    ASSERT_OK(device_->copy(content.rows + at, &flipped, 1, stream_));
    ASSERT_OK(device_->synchronize(stream_));
  }
  EXPECT_EQ(wrong_words(content), 2) << name_of(dtype) << " dim " << head_dim;
}

TEST_F(CudaContent, IsTheHostsByteForByte) {
  for (const DType dtype : kTypes) {
    for (const RowKind kind : kKinds) {
      for (const std::int32_t head_dim : {1, 3, 8, 63, 64, 65, 96, 128, 256}) {
        expect_same_rows(dtype, kind, head_dim);
      }
    }
  }
}

struct Heads {
  std::int32_t q, kv, dim_k, dim_v;
};

// Attention of the last tokens of two sequences in two layers, computed on the host and rounded to
// `dtype`: the GPU has to find exactly the distance that the host finds.
class CudaExactAttention : public CudaContent {
 protected:
  void expect_same_sums(DType dtype, const Heads& heads);
};

void CudaExactAttention::expect_same_sums(DType dtype, const Heads& heads) {
  constexpr std::int32_t kFirstLayer = 2, kLayers = 2;
  const UniformLayoutOptions shape{.num_layers = 8,
                                   .num_kv_heads = heads.kv,
                                   .head_dim_k = heads.dim_k,
                                   .head_dim_v = heads.dim_v,
                                   .dtype = dtype};
  DerivedContent derived(shape, heads.q);
  const auto hashes = some_hashes(1500);
  // The first sequence is hashes 0 .. 3, the second 4 .. 1499; of the latter two query tokens.
  const std::vector<QueryToken> tokens = {{0, 4, 2}, {4, 1495, 0}, {4, 1496, 1}};
  const std::int64_t row = std::int64_t{heads.q} * heads.dim_v;
  const std::int64_t stride = (3 * row * bytes_of(dtype) + 255) / 256 * 256;
  std::vector<std::byte> out(static_cast<std::size_t>(kLayers * stride));
  std::vector<AttentionSums> expected;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (const QueryToken& token : tokens) {
      const auto sequence = std::span(hashes).subspan(static_cast<std::size_t>(token.first_hash),
                                                      static_cast<std::size_t>(token.seq_len));
      const auto wanted = derived.attend(sequence, kFirstLayer + layer, 1);
      std::byte* results = out.data() + layer * stride + token.q_token * row * bytes_of(dtype);
      for (std::int64_t i = 0; i < row; ++i) {
        store_f32(results, dtype, i, wanted[static_cast<std::size_t>(i)] * 1.01F);
      }
      expected.push_back(compare_rows(wanted, results, dtype));
    }
  }
  const DeviceBuffer device_hashes = upload(hashes);
  const DeviceBuffer device_tokens = upload(tokens);
  const DeviceBuffer results = upload(out);
  const std::int64_t items = kLayers * std::ssize(tokens);
  const DeviceBuffer partials =
      DeviceBuffer::create(
          *device_, static_cast<std::uint64_t>(items * partial_bytes(1496, heads.q, heads.dim_v)))
          .value();
  const DeviceBuffer sums = upload(std::vector<AttentionSums>(expected.size()));
  ASSERT_OK(
      launch_exact_attention({.hashes = static_cast<const std::uint64_t*>(device_hashes.data()),
                              .tokens = static_cast<const QueryToken*>(device_tokens.data()),
                              .num_tokens = static_cast<std::int32_t>(tokens.size()),
                              .longest_tokens = 1496,
                              .first_layer = kFirstLayer,
                              .num_layers = kLayers,
                              .num_q_heads = heads.q,
                              .num_kv_heads = heads.kv,
                              .head_dim_k = heads.dim_k,
                              .head_dim_v = heads.dim_v,
                              .dtype = dtype,
                              .out_dtype = dtype,
                              .out = static_cast<const std::byte*>(results.data()),
                              .layer_stride = stride,
                              .partials = static_cast<double*>(partials.data()),
                              .sums = static_cast<AttentionSums*>(sums.data())},
                             native_));
  const auto found = download<AttentionSums>(sums, expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    // The host's exact outputs are rounded to f32.
    EXPECT_NEAR(found[i].exact / expected[i].exact, 1.0, 1e-6) << name_of(dtype) << " item " << i;
    EXPECT_NEAR(relative_error(found[i]), relative_error(expected[i]), 1e-6)
        << name_of(dtype) << ", " << heads.q << '/' << heads.kv << " heads, dims " << heads.dim_k
        << ' ' << heads.dim_v << ", item " << i;
  }
}

TEST_F(CudaExactAttention, FindsTheHostsDistances) {
  for (const DType dtype : kTypes) {
    for (const Heads& heads : {Heads{14, 2, 64, 64}, Heads{8, 2, 128, 128}, Heads{2, 2, 96, 96},
                               Heads{3, 1, 256, 256}, Heads{2, 1, 7, 5}, Heads{1, 1, 300, 520}}) {
      expect_same_sums(dtype, heads);
    }
  }
}

}  // namespace
}  // namespace kvarena::verify
