#include "tools/monitor/monitor_frame.hpp"

#include "tools/quantity.hpp"

#include <algorithm>

namespace kvarena::tools {

void LineFields::append(std::string_view value) {
  if (!value.empty() && value.find_first_of(" =\"") == value.npos) {
    text_ += value;
    return;
  }
  std::string quoted(value);
  std::replace(quoted.begin(), quoted.end(), '"', '\'');
  text_ += '"' + quoted + '"';
}

void LineFields::add(std::string_view key, std::string_view value) {
  text_ += ' ';
  append(key);
  text_ += '=';
  append(value);
}

void LineFields::add_bytes(std::string_view key, std::int64_t bytes) {
  std::string amount = human_bytes(bytes);
  std::erase(amount, ' ');
  add(key, amount);
}

}  // namespace kvarena::tools
