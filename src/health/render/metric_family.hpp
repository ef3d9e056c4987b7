#pragma once

/// @file
/// How families of metrics are put together: samples with labels.

#include "kvarena/health/health_report.hpp"

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// What a family is, before it has samples.
struct MetricName {
  const char* name;  ///< "kvarena_..."
  const char* help;  ///< one line
};

/// A label of a sample.
struct MetricLabel {
  std::string_view name;
  std::string_view value;
};

/// An empty family of gauges.
prometheus::MetricFamily gauge(const MetricName& name);
/// An empty family of counters.
prometheus::MetricFamily counter(const MetricName& name);
/// Adds a sample; the family's type says which.
void add_sample(prometheus::MetricFamily& family, double value,
                std::initializer_list<MetricLabel> labels = {});

/// Adds the families of `pools`: blocks by state, tables, tickets, steps, pressure, audit. Ages are
/// told from `now_ns`.
void add_pool_families(const std::vector<PoolHealth>& pools, std::int64_t now_ns,
                       std::vector<prometheus::MetricFamily>& families);

/// The names of `objects`, with "#2", "#3", ... behind those that came before.
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
