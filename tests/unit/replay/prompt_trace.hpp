#pragma once

/// @file
/// Traces whose prompts have blocks of 512 tokens in common, and an observer that acts once.

#include "replay/admission.hpp"
#include "replay/engine_pool.hpp"
#include "replay/replay.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::test {

/// A request: ids of its blocks of 512 tokens.
struct Prompt {
  std::int64_t tokens;
  std::int64_t outputs;
  std::vector<std::int64_t> ids;
  std::string tenant = "a";
};

/// A Mooncake trace of them, all at one time.
inline std::string trace_of(const std::vector<Prompt>& prompts) {
  std::string text;
  for (const Prompt& p : prompts) {
    std::string ids;
    for (const std::int64_t id : p.ids) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    text += "{\"timestamp\":0,\"input_length\":" + std::to_string(p.tokens) +
            ",\"output_length\":" + std::to_string(p.outputs) + ",\"hash_ids\":[" + ids +
            "],\"tenant\":\"" + p.tenant + "\"}\n";
  }
  return text;
}

/// An observer that does something with the pool just before the first sequence ends.
class AtTheFirstEnd final : public replay::ReplayObserver {
 public:
  using Act = std::function<void(replay::EnginePool&, const replay::Job&)>;
  explicit AtTheFirstEnd(Act act) : act_(std::move(act)) {}
  void on_pool(StepPublisher&) override {}
  void on_progress(const replay::ReplayProgress&) override {}
  void on_end(std::unique_ptr<replay::EnginePool>) noexcept override {}
  void before_destroy(replay::EnginePool& pool, const replay::Job& job) override {
    if (Act act = std::exchange(act_, nullptr)) act(pool, job);
  }

 private:
  Act act_;
};

}  // namespace kvarena::test
