#include "capacity/files/bounded_json.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvarena::capacity {
namespace {

using Json = nlohmann::json;

// Builds a value. The limits bound its depth, so that its destruction does not recurse far.
class Tree final : public JsonReceiver {
 public:
  explicit Tree(Json& root) : next_(&root) {}

  std::optional<JsonDefect> scalar(const JsonScalar& value) override {
    std::visit([&](const auto& plain) { place() = Json(plain); }, value);
    return {};
  }
  std::optional<JsonDefect> key(std::string_view name) override {
    next_ = &(*open_.back())[std::string(name)];
    return {};
  }
  std::optional<JsonDefect> open_object() override { return open(Json::object()); }
  std::optional<JsonDefect> open_array() override { return open(Json::array()); }
  std::optional<JsonDefect> close() override {
    open_.pop_back();
    return {};
  }

 private:
  Json& place() {
    if (!open_.empty() && open_.back()->is_array()) {
      return open_.back()->emplace_back();
    }
    return *next_;
  }
  std::optional<JsonDefect> open(Json empty) {
    Json& here = place();
    here = std::move(empty);
    open_.push_back(&here);
    return {};
  }

  Json* next_;               // where an object's next value goes, and the first of all
  std::vector<Json*> open_;  // an array grows only while its last value is closed
};

}  // namespace

Status parse_json(const JsonText& text, const JsonLimits& limits, Json& value,
                  ReadFailure& failure) {
  value = nullptr;
  Tree tree(value);
  return stream_json(text, limits, tree, failure);
}

}  // namespace kvarena::capacity
