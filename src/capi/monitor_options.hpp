#pragma once

/// @file
/// The options of a monitor of the C interface as the library takes them. Pure functions.

#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_server.hpp"
#include "kvarena/kvarena.h"

namespace kvarena::capi {

/// Checks the members whose type in the library cannot hold every value. Returns invalid_argument
/// with the option.
Status check_members(const kvarena_monitor_options& given) noexcept;
/// Returns the refusal of the library's options as kvarena_monitor_options names and accepts them.
Status as_member(Status refused) noexcept;
/// Returns the options of the monitor, without its functions.
HealthOptions health_options(const kvarena_monitor_options& given);
/// Returns the options of its server.
HealthServerOptions server_options(const kvarena_monitor_options& given);

}  // namespace kvarena::capi
