#include <kvarena/cache/kv_cache.hpp>
#include <kvarena/device/host_device.hpp>

#include <array>
#include <cstdio>

int main() {
  using namespace kvarena;
  auto device = HostDevice::create().value();
  KvCacheOptions options{.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 64}};
  options.size.num_blocks = 128;  // of 16 tokens
  options.num_q_heads = 1;
  auto cache = KvCache::create(*device, options).value();
  const std::array prompt{AppendDemand{cache.create_sequence().value(), 20}};  // tokens
  std::array<float, 20 * 64> kv, out;
  kv.fill(0.5F);
  const bool ok = cache.begin_step() && cache.append(prompt) &&
                  cache.write_kv({0, kv.data(), kv.data(), DType::f32}) &&
                  cache.attend({0, kv.data(), DType::f32, out.data(), DType::f32}) &&
                  cache.end_step() && cache.synchronize();
  std::printf("%sout[0] = %.1f\n", to_string(cache.manager().explain(0)).c_str(), double{out[0]});
  return ok ? 0 : 1;
}
