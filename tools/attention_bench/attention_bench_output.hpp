#pragma once

/// @file
/// What `kvarena bench attention` prints: the table's lines, the JSON of a row, and how kvarena is
/// compared with other kernels. Pure functions.

#include "tools/attention_meter/attention_meter.hpp"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>

namespace kvarena::tools {

/// "32/8 D=128".
std::string heads_text(const meter::AttentionShape& shape);
/// "64 x 4k", or "64 x 330..65536" for lengths that differ.
std::string batch_text(std::span<const std::int32_t> lengths);

/// The table's first line.
std::string table_header();
/// The line of one row.
std::string table_line(const meter::AttentionProblem& problem,
                       const meter::AttentionFigures& figures, const meter::ReadCeiling& ceiling);

/// One row: what was measured and what it gave. Numbers of µs and GB/s are not rounded.
nlohmann::ordered_json json_of(const meter::AttentionProblem& problem,
                               const meter::AttentionFigures& figures,
                               const meter::ReadCeiling& ceiling);

/// How kvarena is compared with FlashInfer, cuDNN and others, and what the best of them took on the
/// rows of `problems` that docs/benchmarks.md knows.
std::string peers_text(std::span<const meter::AttentionProblem> problems);
/// The same rows for programs.
nlohmann::ordered_json peers_json(std::span<const meter::AttentionProblem> problems);

}  // namespace kvarena::tools
