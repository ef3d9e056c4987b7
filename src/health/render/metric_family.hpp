#pragma once

/// @file
/// Functions that build families of metrics from samples with labels.

#include "kvarena/health/health_report.hpp"

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// The name and help of a family.
struct MetricName {
  const char* name;  ///< "kvarena_..."
  const char* help;  ///< one line
};

/// A label of a sample.
struct MetricLabel {
  std::string_view name;
  std::string_view value;
};

/// Returns an empty family of gauges.
prometheus::MetricFamily gauge(const MetricName& name);
/// Returns an empty family of counters.
prometheus::MetricFamily counter(const MetricName& name);
/// Adds a sample of the family's type.
void add_sample(prometheus::MetricFamily& family, double value,
                std::initializer_list<MetricLabel> labels = {});

/// Adds the families of `pools`: blocks by state, tables, tickets, steps, pressure, audit. Ages are
/// counted back from `now_ns`.
void add_pool_families(const std::vector<PoolHealth>& pools, std::int64_t now_ns,
                       std::vector<prometheus::MetricFamily>& families);

/// Returns the names of `objects`. A repeated name gets "#2", "#3", ... at its end.
template <class Object>
std::vector<std::string> unique_names(const std::vector<Object>& objects) {
  std::vector<std::string> names;
  for (const Object& object : objects) {
    std::string name = object.name;
    const auto is_taken = [&] {
      for (const std::string& other : names) {
        if (other == name) return true;
      }
      return false;
    };
    for (std::size_t n = 2; is_taken(); ++n) name = object.name + "#" + std::to_string(n);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace kvarena
