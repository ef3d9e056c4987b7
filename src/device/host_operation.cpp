#include "device/host_operation.hpp"

#include <cstring>

namespace kvarena {

Status run(const HostOperation& operation) noexcept {
  // memcpy and memset forbid nullptr even for 0 bytes. A Device allows it.
  const bool is_empty = operation.bytes == 0;
  switch (operation.kind) {
    case HostOperation::Kind::copy:
      if (!is_empty) std::memcpy(operation.target, operation.source, operation.bytes);
      break;
    case HostOperation::Kind::fill:
      if (!is_empty) std::memset(operation.target, operation.value, operation.bytes);
      break;
    case HostOperation::Kind::host_function: return operation.function(operation.argument);
    case HostOperation::Kind::wait: break;
  }
  return {};
}

}  // namespace kvarena
