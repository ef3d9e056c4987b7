#pragma once

/// @file
/// The answer of `GET /metrics`: a HealthReport as Prometheus families, and their text in the
/// exposition format 0.0.4. Plain values and pure functions. Names begin with `kvarena_` and use
/// base units; names of counters end in `_total`. When two pools or devices have the same name, the
/// label of the second gets a number ("default#2"), because a scrape may have each series only
/// once.

#include "kvarena/health/health_report.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena {

/// The types of families that kvarena has. A summary has a sum and a count, and no quantiles.
enum class MetricType : std::uint8_t { gauge, counter, summary, histogram };

/// A label of a sample. The value may hold any bytes.
struct MetricLabel {
  std::string name;
  std::string value;
};

/// A bucket of a histogram.
struct MetricBucket {
  double bound = 0.0;       ///< the largest value that it counts
  std::uint64_t count = 0;  ///< of values up to the bound
};

/// One sample.
struct MetricSample {
  std::vector<MetricLabel> labels{};
  double value = 0.0;                   ///< of a summary or histogram: the sum
  std::uint64_t count = 0;              ///< summaries and histograms only
  std::vector<MetricBucket> buckets{};  ///< histograms only, rising; without that of all values
};

/// A name with its samples.
struct MetricFamily {
  std::string name;  ///< "kvarena_..."
  std::string help;  ///< one line
  MetricType type = MetricType::gauge;
  std::vector<MetricSample> samples;
};

std::vector<MetricFamily> metric_families(const HealthReport& report);
/// Returns the text of `families`, in order. Numbers are the shortest that read as the same double.
std::string to_text(const std::vector<MetricFamily>& families);
/// Returns the families' text, for `Content-Type: text/plain; version=0.0.4`.
std::string metrics_text(const HealthReport& report);

}  // namespace kvarena
