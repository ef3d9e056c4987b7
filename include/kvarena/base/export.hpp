#pragma once

/// @file
/// Symbol visibility. Everything is hidden unless a declaration carries KVARENA_EXPORT.

/// Marks what a shared library shows to its users.
#define KVARENA_EXPORT __attribute__((visibility("default")))
