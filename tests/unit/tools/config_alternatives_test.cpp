// Options that exclude one another, from every pair of sources: the stronger source's stays.

#include "support/test_files.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/config_world.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kSources = 4;  // user file, file, environment, command line

/// A replay with options from chosen sources, 0 the weakest.
class Replayed {
 public:
  void set(std::size_t source, const std::string& key, const std::string& value) {
    if (source < 2) {
      files_.at(source) += key + " = " + json(value).dump() + "\n";
      world_.write(source == 0 ? "home/kvarena/kvarena.toml" : "work/kvarena.toml",
                   "[replay]\n" + files_.at(source));
    } else if (source == 2) {
      const char* variable =
          key == "blocks" ? "KVARENA_REPLAY_BLOCKS" : "KVARENA_REPLAY_POOL_BYTES";
      world_.sources.environment[variable] = value;
    } else {
      arguments_.insert(arguments_.end(), {"--" + key, value});
    }
  }
  Outcome run() const { return world_.run(arguments_); }
  std::int64_t num_blocks() const {
    const Outcome outcome = run();
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return outcome.code == ExitCode::ok ? json::parse(outcome.out).at("num_blocks").get<int>() : -1;
  }

 private:
  ConfigWorld world_;
  test::TempFile trace_{test::mooncake_trace({{0, 100, 5}})};
  std::array<std::string, 2> files_;
  std::vector<std::string> arguments_{"replay", trace_.path(), "--json", "-"};
};

TEST(ConfigAlternatives, TheStrongerSourceWinsInEveryPair) {
  Replayed bytes_alone;
  bytes_alone.set(3, "pool-bytes", "1GiB");
  const std::int64_t of_bytes = bytes_alone.num_blocks();
  ASSERT_NE(of_bytes, 100);
  for (std::size_t strong = 0; strong < kSources; ++strong) {
    for (std::size_t weak = 0; weak <= strong; ++weak) {
      Replayed blocks_stronger;
      blocks_stronger.set(weak, "pool-bytes", "1GiB");
      blocks_stronger.set(strong, "blocks", "100");
      Replayed bytes_stronger;
      bytes_stronger.set(weak, "blocks", "100");
      bytes_stronger.set(strong, "pool-bytes", "1GiB");
      if (weak < strong) {
        EXPECT_EQ(blocks_stronger.num_blocks(), 100) << weak << strong;
        EXPECT_EQ(bytes_stronger.num_blocks(), of_bytes) << weak << strong;
      } else {
        EXPECT_EQ(blocks_stronger.run().code, ExitCode::usage) << weak;
        EXPECT_TRUE(contains(bytes_stronger.run().err, " excludes ")) << weak;
      }
    }
  }
}

std::string show(const ConfigWorld& world, const std::string& command) {
  const Outcome outcome = world.run({"config", "show", command});
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  return outcome.out;
}

TEST(ConfigAlternatives, WhatIsDisplacedDisplacesNothing) {
  ConfigWorld world;
  world.write("home/kvarena/kvarena.toml", "[bench.attention]\nheads = \"16/4\"\n");
  world.project("[bench.attention]\npreset = \"phi-3-mini\"\n");
  std::string shown = show(world, "bench.attention");
  EXPECT_TRUE(contains(shown, "\npreset = \"phi-3-mini\"\n")) << shown;
  EXPECT_TRUE(contains(shown, "\n# heads = ")) << shown;
  world.sources.environment["KVARENA_BENCH_ATTENTION_HEAD_DIM"] = "64";  // excludes the preset
  shown = show(world, "bench.attention");
  EXPECT_TRUE(contains(shown, "\n# preset = ")) << shown;
  EXPECT_TRUE(contains(shown, "\nheads = \"16/4\"\n")) << shown;
  EXPECT_TRUE(contains(shown, "\nhead-dim = 64\n")) << shown;
}

TEST(ConfigAlternatives, WhatNeedsTheDisplacedGoesWithIt) {
  ConfigWorld world;
  world.project("[monitor]\nurl = \"http://localhost:1\"\nhttp-token-file = \"t\"\n");
  world.sources.environment["KVARENA_MONITOR_DEVICE"] = "cpu";
  const std::string shown = show(world, "monitor");
  EXPECT_TRUE(contains(shown, "\ndevice = \"cpu\"\n")) << shown;
  EXPECT_TRUE(contains(shown, "\n# url = ")) << shown;
  EXPECT_TRUE(contains(shown, "\n# http-token-file = ")) << shown;
  world.sources.environment["KVARENA_MONITOR_HTTP_TOKEN_FILE"] = "t";  // as strong as the device
  const Outcome outcome = world.run({"monitor", "--once"});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_TRUE(contains(outcome.err, "--http-token-file requires --url")) << outcome.err;
}

TEST(ConfigAlternatives, AModelAndNumbersOfOneYieldToTheStronger) {
  const std::vector<std::string> numbers{"--layers",     "2",    "--kv-heads", "2",
                                         "--head-dim",   "64",   "--context",  "128",
                                         "--parameters", "1000", "--gpu",      "8GiB"};
  const std::vector<std::string> named{"--model", "Qwen2.5-0.5B", "--gpu", "8GiB"};
  const auto planned = [](const ConfigWorld& world, std::vector<std::string> words) {
    words.insert(words.begin(), "plan");
    words.insert(words.end(), {"-q", "--json", "-"});
    const Outcome outcome = world.run(words);
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return json::parse(outcome.out).at("model");
  };
  ConfigWorld with_model;
  with_model.project("[plan]\nmodel = \"Qwen2.5-0.5B\"\n");
  EXPECT_EQ(planned(with_model, numbers), "custom");
  EXPECT_EQ(planned(with_model, {"--gpu", "8GiB"}), "Qwen2.5-0.5B");
  with_model.sources.environment["KVARENA_PLAN_LAYERS"] = "3";
  with_model.sources.environment["KVARENA_PLAN_KV_HEADS"] = "2";
  EXPECT_EQ(planned(with_model, named), "Qwen2.5-0.5B");
  ConfigWorld with_variable;
  with_variable.sources.environment["KVARENA_PLAN_MODEL"] = "Qwen2.5-0.5B";
  EXPECT_EQ(planned(with_variable, numbers), "custom");
}

TEST(ConfigAlternatives, TheGpuYieldsToAStrongerClock) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  const auto replay = [&](const ConfigWorld& world, std::vector<std::string> more) {
    more.insert(more.begin(), {"replay", trace.path(), "--json", "-"});
    return world.run(std::move(more));
  };
  ConfigWorld world;
  const auto path = world.project(
      "[replay]\nclock = \"roofline\"\ngpu = \"H200-SXM\"\nmodel = \"Llama-3.1-8B\"\n");
  const auto roofline = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    const json document = outcome.code == ExitCode::ok ? json::parse(outcome.out) : json();
    return document.is_null() ? json() : document.at("options").at("roofline");
  };
  EXPECT_TRUE(roofline(replay(world, {})).is_object());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "step"})).is_null());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "linear", "--prefill-us", "3"})).is_null());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "roofline", "--gpu", "A10"})).is_object());
  EXPECT_EQ(replay(world, {"--clock", "step", "--gpu", "A10"}).code, ExitCode::usage);
  world.sources.environment["KVARENA_REPLAY_CLOCK"] = "step";
  EXPECT_TRUE(roofline(replay(world, {})).is_null());
  const Outcome both = replay(world, {"--gpu", "A10"});
  EXPECT_EQ(both.code, ExitCode::usage);
  EXPECT_TRUE(contains(both.err, "  configured: --clock step (env KVARENA_REPLAY_CLOCK)\n"));
  world.sources.environment.clear();
  world.project("[replay]\nclock = \"step\"\ngpu = \"H200-SXM\"\nmodel = \"Llama-3.1-8B\"\n");
  const Outcome equal = replay(world, {});
  EXPECT_EQ(equal.code, ExitCode::usage);
  EXPECT_TRUE(contains(equal.err, "  configured: --gpu H200-SXM (" + path + ":3)\n")) << equal.err;
  world.project("[replay]\nprefill-us = 3\ndecode-us = 5\ngpu = \"A10\"\nmodel = \"Llama-3.1-8B\"");
  EXPECT_TRUE(roofline(replay(world, {"--clock", "roofline"})).is_object());
}

TEST(ConfigAlternatives, TheDeviceYieldsToAStrongerAttentionOff) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  ConfigWorld world;
  world.project("[replay]\nattention = \"sample\"\ndevice = \"cuda:1023\"\n");
  const std::vector<std::string> replay = {"replay", trace.path(), "--attention", "off"};
  EXPECT_EQ(world.run(replay).code, ExitCode::ok);
  world.project("[replay]\nattention = \"off\"\n");
  EXPECT_EQ(world.run({"replay", trace.path(), "--device", "cuda:1023"}).code, ExitCode::usage);
}

}  // namespace
}  // namespace kvarena::tools
