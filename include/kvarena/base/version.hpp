#pragma once

/// @file
/// The version of the library that these headers belong to. The build system reads it from here.

#define KVARENA_VERSION_MAJOR 0         ///< incompatible changes
#define KVARENA_VERSION_MINOR 1         ///< additions
#define KVARENA_VERSION_PATCH 0         ///< fixes
#define KVARENA_VERSION_STRING "0.1.0"  ///< "major.minor.patch"
