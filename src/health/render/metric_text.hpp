#pragma once

/// @file
/// Metric families and their text in Prometheus's exposition format 0.0.4. Plain values and a pure
/// function.

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

/// Returns the text of `families`, in order. Numbers are the shortest that read as the same double.
std::string to_text(const std::vector<MetricFamily>& families);

}  // namespace kvarena
