#pragma once

/// @file
/// Who may read: a bearer token, and on loopback without one the Host header. Pure functions.

#include <cstddef>
#include <string_view>

namespace kvarena::http {

inline constexpr std::size_t kMinTokenLength = 16;   ///< characters
inline constexpr std::size_t kMaxTokenLength = 256;  ///< characters

/// Whether `token` may be one: its length, and letters, digits and -._~+/= alone (RFC 6750).
bool is_valid_token(std::string_view token) noexcept;
/// Whether an Authorization header carries the token. Takes the same time wherever they differ.
bool carries_token(std::string_view authorization, std::string_view token) noexcept;
/// Whether a Host header names this machine's loopback: localhost, 127.x.x.x or [::1], with or
/// without a port. A page of another site that rebinds its name to loopback fails here.
bool names_loopback(std::string_view host) noexcept;

}  // namespace kvarena::http
