#include "allocator/eviction_order.hpp"

#include <array>
#include <utility>

namespace kvarena {
namespace {

constexpr std::array<std::pair<EvictionPolicy, std::string_view>, kEvictionPolicies.size()> kNames{{
    {EvictionPolicy::tail_first, "tail-first"},
    {EvictionPolicy::head_first, "head-first"},
    {EvictionPolicy::fifo, "fifo"},
    {EvictionPolicy::lfu, "lfu"},
    {EvictionPolicy::priority, "priority"},
}};

}  // namespace

std::string_view name_of(EvictionPolicy policy) noexcept {
  for (const auto& [value, name] : kNames) {
    if (value == policy) return name;
  }
  return "unknown";
}

std::optional<EvictionPolicy> eviction_policy_of(std::string_view name) noexcept {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

EvictionOrder::EvictionOrder(EvictionPolicy policy, std::int64_t num_blocks)
    : policy_(policy), order_(order_of(policy, num_blocks)) {}

EvictionOrder::Order EvictionOrder::order_of(EvictionPolicy policy, std::int64_t num_blocks) {
  switch (policy) {
    case EvictionPolicy::fifo: return EntryOrder(num_blocks);
    case EvictionPolicy::lfu: return UseOrder(num_blocks);
    case EvictionPolicy::priority: return PriorityOrder(num_blocks);
    case EvictionPolicy::tail_first:
    case EvictionPolicy::head_first: break;
  }
  return RecencyOrder(policy == EvictionPolicy::head_first, num_blocks);
}

std::int64_t EvictionOrder::bytes(EvictionPolicy policy, std::int64_t num_blocks) noexcept {
  switch (policy) {
    case EvictionPolicy::fifo: return EntryOrder::bytes(num_blocks);
    case EvictionPolicy::lfu: return UseOrder::bytes(num_blocks);
    case EvictionPolicy::priority: return PriorityOrder::bytes(num_blocks);
    case EvictionPolicy::tail_first:
    case EvictionPolicy::head_first: break;
  }
  return RecencyOrder::bytes(num_blocks);
}

bool EvictionOrder::is_whole() const {
  return std::visit([this](const auto& order) { return order.is_whole(size_); }, order_);
}

}  // namespace kvarena
