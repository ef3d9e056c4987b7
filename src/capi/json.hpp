#pragma once

/// @file
/// JSON of the C interface: documents that keep the order of their members, on one line.

#include "kvarena/base/group_layout.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace kvarena::capi {

/// JSON whose members keep the order in which they are written.
using Json = nlohmann::ordered_json;

/// Returns the text of a document. Bytes that are not UTF-8 are replaced.
inline std::string to_text(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The members of a kvarena_layer_group; `layers` has pairs of layer and reads_layer.
Json json_of(const LayerGroup& group);

}  // namespace kvarena::capi
