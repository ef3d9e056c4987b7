#pragma once

/// @file
/// The options for the shape of a model's KV, which several commands share: a name, numbers, or a
/// name with some numbers replaced.

#include "tools/console.hpp"

#include "kvarena/base/layout.hpp"
#include "kvarena/base/shapes.hpp"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// A model's attention shape with its layout.
struct ChosenShape {
  std::string name;  ///< the model's, or "custom"
  std::int32_t num_layers = 0;
  std::int32_t num_q_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim_k = 0;
  std::int32_t head_dim_v = 0;
  DType dtype = DType::f16;
  std::int32_t block_size = 16;
  std::int64_t max_position = 0;  ///< tokens the model was published for; 0 when unknown
};

/// A built-in shape, in blocks of the usual size.
ChosenShape chosen_shape_of(const ModelShape& model);

/// What was given on the command line; zeros and empty strings mean "not given".
class ShapeOptions {
 public:
  /// Declares --layers, --kv-heads, --q-heads, --head-dim, --head-dim-v, --dtype and --block-size.
  void declare(CLI::App& command);

  /// Whether any number of a shape was given.
  bool any_number() const;
  /// Returns the shape of `model` (a built-in name, or "" for none), in which given numbers replace
  /// the model's. On failure reports the wrong or missing option on the console and returns
  /// nothing.
  std::optional<ChosenShape> choose(const Console& console, const std::string& model) const;
  /// Does the same for a known shape.
  std::optional<ChosenShape> choose(const Console& console, ChosenShape shape) const;
  /// Whether any number of heads or their elements was given.
  bool any_heads() const;
  /// Layers; 0: not given.
  std::int32_t layers() const { return layers_; }
  /// The type of K and V, if it was given.
  std::optional<DType> dtype() const;
  /// Tokens a block.
  std::int32_t block_size() const { return block_size_; }

 private:
  std::int32_t layers_ = 0;
  std::int32_t kv_heads_ = 0;
  std::int32_t q_heads_ = 0;
  std::int32_t head_dim_ = 0;
  std::int32_t head_dim_v_ = 0;
  std::string dtype_;
  std::int32_t block_size_ = 16;
};

/// Returns the layout of a shape. On failure reports it on the console and returns nothing.
std::optional<KvLayout> layout_of(const Console& console, const ChosenShape& shape);

}  // namespace kvarena::tools
