#pragma once

/// @file
/// The output of `kvarena bench attention`: the table's lines, the JSON of a row, and the
/// comparison of kvarena with other kernels. Pure functions.

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

/// Returns a row as JSON: the problem and its measurement. Numbers of µs and GB/s are not rounded.
nlohmann::ordered_json json_of(const meter::AttentionProblem& problem,
                               const meter::AttentionFigures& figures,
                               const meter::ReadCeiling& ceiling);

/// Returns how to compare kvarena with FlashInfer, cuDNN and others, and the time of the best of
/// them for each of `problems` that is in docs/benchmarks.md.
std::string peers_text(std::span<const meter::AttentionProblem> problems);
/// The same rows for programs.
nlohmann::ordered_json peers_json(std::span<const meter::AttentionProblem> problems);

}  // namespace kvarena::tools
