#pragma once

/// @file
/// Tables of figures become metric families that have a sample of each object. The families of
/// groups and of prefix caches.

#include "health/render/metrics.hpp"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace kvarena {

using Families = std::vector<MetricFamily>;
using Labels = std::vector<MetricLabel>;
using Now = std::int64_t;
/// A figure; nothing where it is unknown.
using Value = std::optional<double>;

/// The name and help of a family.
struct MetricName {
  const char* name;  ///< "kvarena_..."
  const char* help;  ///< one line
};

/// One figure of an object.
template <class Object>
struct Figure {
  MetricName name;
  Value (*value)(const Object& object, Now now_ns);
};

/// The count of one state of an object.
template <class Object>
using State = std::pair<const char*, std::int64_t Object::*>;

/// Something that has figures, which is borrowed, and the labels of its samples.
template <class Object>
struct Labelled {
  const Object& object;
  Labels labels;
};

template <class Number>
Value number(Number figure) {
  return static_cast<double>(figure);
}

/// The value of a figure that is a member.
template <class Object, auto Member>
Value member_of(const Object& object, Now /*now_ns*/) {
  return number(object.*Member);
}

/// Returns an empty family: of counters where the name says so, else of gauges.
inline MetricFamily family_of(const MetricName& name) {
  const bool counts = std::string_view(name.name).ends_with("_total");
  return {name.name, name.help, counts ? MetricType::counter : MetricType::gauge, {}};
}

/// Adds a sample; none of an unknown figure.
inline void add_sample(MetricFamily& family, Value value, Labels labels = {}) {
  if (value) family.samples.push_back({.labels = std::move(labels), .value = *value});
}

/// Returns `labels` and one more.
inline Labels with(Labels labels, const char* name, std::string_view value) {
  labels.push_back({name, std::string(value)});
  return labels;
}

/// Adds a family of each figure.
template <class Object, std::size_t N>
void add_figures(const Figure<Object> (&figures)[N], const std::vector<Labelled<Object>>& objects,
                 Now now_ns, Families& families) {
  for (const Figure<Object>& figure : figures) {
    MetricFamily& family = families.emplace_back(family_of(figure.name));
    for (const auto& [object, labels] : objects) {
      add_sample(family, figure.value(object, now_ns), labels);
    }
  }
}

/// Adds a family with a sample of each state of each object.
template <class Object, std::size_t N>
void add_states(const MetricName& name, const State<Object> (&states)[N],
                const std::vector<Labelled<Object>>& objects, Families& families) {
  MetricFamily& family = families.emplace_back(family_of(name));
  for (const auto& [object, labels] : objects) {
    for (const auto& [state, count] : states) {
      add_sample(family, number(object.*count), with(labels, "state", state));
    }
  }
}

using LabelledPools = std::vector<Labelled<PoolHealth>>;

/// Adds the families of pages and groups, unless no pool has groups.
void add_group_families(const LabelledPools& pools, Families& families);
/// Adds the families of prefix caches, unless no pool has one.
void add_prefix_families(const LabelledPools& pools, Families& families);

}  // namespace kvarena
