#pragma once

/// @file
/// What a server says, as values: an answer, and the bytes of answers that need no request.

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kvarena::http {

/// The body for a path and what it is.
struct Answer {
  int status = 200;          ///< 200 or 503
  const char* content_type;  ///< with charset or version
  std::string body;          ///< whole
};

/// Makes the answer of one path, at the moment it is asked for. May throw: 500.
using Route = std::function<Answer()>;
/// All paths there are.
using Routes = std::map<std::string, Route, std::less<>>;

/// A whole response that refuses a request which has not been understood or taken: 400, 408, 414,
/// 431 or 503. One line of text says why.
std::string refusal(int status);

}  // namespace kvarena::http
