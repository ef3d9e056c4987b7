#include "tools/attention_meter/attention_meter.hpp"

namespace kvarena::meter {

Result<std::unique_ptr<AttentionMeter>> make_cuda_meter(CudaDevice& /*device*/,
                                                        const MeterOptions& /*options*/) {
  return unsupported(Resource::device);
}

}  // namespace kvarena::meter
