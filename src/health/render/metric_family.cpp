#include "health/render/metric_family.hpp"

namespace kvarena {

prometheus::MetricFamily gauge(const MetricName& name) {
  return {name.name, name.help, prometheus::MetricType::Gauge, {}};
}

prometheus::MetricFamily counter(const MetricName& name) {
  return {name.name, name.help, prometheus::MetricType::Counter, {}};
}

void add_sample(prometheus::MetricFamily& family, double value,
                std::initializer_list<MetricLabel> labels) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  for (const MetricLabel& label : labels) {
    metric.label.push_back({std::string(label.name), std::string(label.value)});
  }
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

}  // namespace kvarena
