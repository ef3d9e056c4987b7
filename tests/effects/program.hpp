#pragma once

/// @file
/// A random program for one of the worlds, and what came of playing it. An operation has numbers
/// instead of names of things: a world resolves each modulo what exists at that moment and skips an
/// operation for which nothing exists. So every part of a program is a program, too.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena::test {

/// One step of a program. What `kind` and `numbers` mean is the world's business.
struct Operation {
  std::uint32_t kind = 0;
  std::array<std::uint32_t, 4> numbers{};

  friend bool operator==(const Operation&, const Operation&) = default;
};

/// The sizes of a world and what happens in it.
struct Program {
  std::array<std::uint32_t, 8> setup{};
  std::vector<Operation> operations;

  friend bool operator==(const Program&, const Program&) = default;
};

/// A promise that was broken.
struct Failure {
  std::string kind;  ///< which promise; failures of one kind are taken for one defect
  std::string text;  ///< who was promised what, and what was found
};

/// What a world tells while a program is played: one line for each call, when somebody listens.
class Story {
 public:
  /// `text` receives the lines; nullptr: nobody listens, and nothing is formatted.
  explicit Story(std::string* text) noexcept : text_(text) {}

  /// Adds a line made of the parts.
  template <class... Parts>
  void tell(const Parts&... parts) {
    if (text_ == nullptr) return;
    std::ostringstream line;
    ((line << parts), ...);
    *text_ += "  " + line.str() + "\n";
  }

 private:
  std::string* text_;
};

/// How often a world's programs use a kind of operation.
struct KindWeight {
  std::uint32_t kind = 0;
  std::uint32_t weight = 1;
};

/// A kind of world. `play` carries out a program in a new world and returns the first broken
/// promise; `story` may be null.
struct World {
  const char* name = "";
  std::span<const KindWeight> weights;
  std::optional<Failure> (*play)(const Program& program, std::string* story) = nullptr;
};

/// A program of `length` operations. Each program leaves out some kinds and favours others, so that
/// together they reach what evenly mixed ones do not.
Program random_program(std::mt19937_64& random, std::span<const KindWeight> weights,
                       std::size_t length);

/// Up to four neighbours among `size` things, which the first two numbers of an operation choose.
std::vector<std::size_t> several(const std::array<std::uint32_t, 4>& numbers, std::size_t size);

/// The program as the initializer of a Program.
std::string to_text(const Program& program);

}  // namespace kvarena::test
