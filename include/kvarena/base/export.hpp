#pragma once

/// @file
/// Symbol visibility. Everything is hidden unless a declaration carries KVARENA_EXPORT.

#define KVARENA_EXPORT __attribute__((visibility("default")))
