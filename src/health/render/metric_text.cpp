#include "health/render/metrics.hpp"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <iterator>
#include <string_view>

namespace kvarena {
namespace {

std::string_view name_of(MetricType type) noexcept {
  switch (type) {
    case MetricType::gauge: return "gauge";
    case MetricType::counter: return "counter";
    case MetricType::summary: return "summary";
    case MetricType::histogram: return "histogram";
  }
  return "untyped";
}

std::string number_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  return fmt::format("{}", value);
}

/// Help and label values: backslashes, ends of lines and quotes would end them.
std::string escaped(std::string_view text, bool is_quoted) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\\\";
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '"' && is_quoted) {
      result += "\\\"";
    } else {
      result += c;
    }
  }
  return result;
}

/// The labels, and the bound of a bucket unless it is empty.
std::string labels_of(const MetricSample& sample, std::string_view bound = {}) {
  if (sample.labels.empty() && bound.empty()) return "";
  std::string text = "{";
  for (const MetricLabel& label : sample.labels) {
    if (text.size() > 1) text += ",";
    fmt::format_to(std::back_inserter(text), "{}=\"{}\"", label.name, escaped(label.value, true));
  }
  if (!bound.empty()) {
    if (text.size() > 1) text += ",";
    fmt::format_to(std::back_inserter(text), "le=\"{}\"", bound);
  }
  return text + "}";
}

void add_buckets(const MetricFamily& family, const MetricSample& sample, std::string& text) {
  const auto end = std::back_inserter(text);
  for (const MetricBucket& bucket : sample.buckets) {
    fmt::format_to(end, "{}_bucket{} {}\n", family.name, labels_of(sample, number_of(bucket.bound)),
                   bucket.count);
  }
  fmt::format_to(end, "{}_bucket{} {}\n", family.name, labels_of(sample, "+Inf"), sample.count);
}

}  // namespace

std::string to_text(const std::vector<MetricFamily>& families) {
  std::string text;
  const auto end = std::back_inserter(text);
  for (const MetricFamily& family : families) {
    fmt::format_to(end, "# HELP {} {}\n# TYPE {} {}\n", family.name, escaped(family.help, false),
                   family.name, name_of(family.type));
    for (const MetricSample& sample : family.samples) {
      const std::string labels = labels_of(sample);
      if (family.type == MetricType::histogram) add_buckets(family, sample, text);
      if (family.type == MetricType::summary || family.type == MetricType::histogram) {
        fmt::format_to(end, "{}_count{} {}\n{}_sum{} {}\n", family.name, labels, sample.count,
                       family.name, labels, number_of(sample.value));
      } else {
        fmt::format_to(end, "{}{} {}\n", family.name, labels, number_of(sample.value));
      }
    }
  }
  return text;
}

}  // namespace kvarena
