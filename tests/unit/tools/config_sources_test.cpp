// Which files are found, which source wins, and options that exclude one another: from every pair
// of sources, the stronger source's stays.

#include "support/test_files.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;

int block_size_in(const ConfigWorld& world, const std::vector<std::string>& arguments = {}) {
  return parsed(world.run(words("shapes --json -", arguments))).value("block_size", -1);
}

/// The origin that `config show` names for --block-size of shapes.
std::string origin_in(const ConfigWorld& world) {
  const auto outcome = world.run({"config", "show", "shapes", "--origin"});
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto line = outcome.out.find("block-size");
  const auto comment = outcome.out.find("# ", line);
  return outcome.out.substr(comment + 2, outcome.out.find('\n', comment) - comment - 2);
}

TEST(ConfigPrecedence, EverySetOfSources) {
  for (unsigned set = 0; set < 16; ++set) {
    ConfigWorld world;
    std::vector<std::string> arguments;
    int expected = 16;
    std::string origin = "default";
    if ((set & 1U) != 0) {
      expected = 17;
      origin = world.write("home/kvarena/kvarena.toml", "[shapes]\nblock-size = 17\n") + ":2";
    }
    if ((set & 2U) != 0) {
      expected = 18;
      origin = world.project("\n[shapes]\nblock-size = 18\n") + ":3";
    }
    if ((set & 4U) != 0) {
      expected = 19;
      origin = "env KVARENA_SHAPES_BLOCK_SIZE";
      world.sources.environment["KVARENA_SHAPES_BLOCK_SIZE"] = "19";
    }
    EXPECT_EQ(origin_in(world), origin) << set;
    if ((set & 8U) != 0) {
      expected = 20;
      arguments = {"--block-size", "20"};
    }
    EXPECT_EQ(block_size_in(world, arguments), expected) << set;
    arguments.emplace_back("--no-config");
    EXPECT_EQ(block_size_in(world, arguments), (set & 8U) != 0 ? 20 : 16) << set;
  }
}

TEST(ConfigPrecedence, AFlagCanBeTakenBackByEachStrongerSource) {
  ConfigWorld world;
  world.write("home/kvarena/kvarena.toml", "[bench.attention]\npeers = true\n");
  const std::vector<std::string> bench = {"bench", "attention", "--preset", "llama-3-8b"};
  EXPECT_EQ(world.run(bench).code, ExitCode::ok);
  const auto peers = [&] {
    const auto shown = world.run({"config", "show", "bench", "attention"});
    EXPECT_EQ(shown.code, ExitCode::ok) << shown.err;
    return contains(shown.out, "\npeers = true\n")    ? "true"
           : contains(shown.out, "\npeers = false\n") ? "false"
                                                      : "neither";
  };
  EXPECT_STREQ(peers(), "true");
  world.project("[bench.attention]\npeers = false\n");
  EXPECT_STREQ(peers(), "false");
  world.sources.environment["KVARENA_BENCH_ATTENTION_PEERS"] = "on";
  EXPECT_STREQ(peers(), "true");
  world.sources.environment["KVARENA_BENCH_ATTENTION_PEERS"] = "0";
  EXPECT_STREQ(peers(), "false");
}

TEST(ConfigPrecedence, TheCommandLineTakesAFlagBackWithAllThatItNeeds) {
  ConfigWorld world;
  world.sources.environment["KVARENA_REPLAY_LINGER"] = "1";
  EXPECT_EQ(world.run({"replay", "/nonexistent"}).code, ExitCode::usage);
  EXPECT_EQ(world.run({"replay", "/nonexistent", "--linger=false"}).code, ExitCode::bad_input);
}

TEST(ConfigFiles, TheNearestParentHasTheProjectsFile) {
  ConfigWorld world;
  world.project("[shapes]\nblock-size = 18\n");
  world.sources.folder = world.path("work/inner");
  EXPECT_EQ(block_size_in(world), 18);
  world.write("work/inner/kvarena.toml", "");
  EXPECT_EQ(block_size_in(world), 16);  // one project file, not a chain of them
  std::filesystem::remove(world.path("work/inner/kvarena.toml"));
  std::filesystem::create_directory(world.path("work/inner/kvarena.toml"));
  EXPECT_EQ(block_size_in(world), 18);  // a folder of that name is none
}

TEST(ConfigFiles, AnotherOneIsNamedByOptionOrVariable) {
  ConfigWorld world;
  world.project("[shapes]\nblock-size = 18\n");
  world.write("home/kvarena/kvarena.toml", "[replay]\nsamples = 3\n[shapes]\nblock-size = 17\n");
  const auto other = world.write("other.toml", "[shapes]\nblock-size = 21\n");
  EXPECT_EQ(block_size_in(world, {"--config", other}), 21);
  world.sources.environment["KVARENA_CONFIG"] = world.write("third.toml", "");
  EXPECT_EQ(block_size_in(world), 17);  // the user's stays below it
  EXPECT_EQ(block_size_in(world, {"--config", other}), 21);
  EXPECT_EQ(world.run({"shapes", "--config", other, "--no-config"}).code, ExitCode::usage);
  world.sources.environment["KVARENA_CONFIG"] = "";
  EXPECT_EQ(block_size_in(world), 18);
  const auto shown = world.run({"config", "show", "--origin"});
  EXPECT_TRUE(shown.out.starts_with("# read: " + world.path("work/kvarena.toml") +
                                    "\n# read: " + world.path("home/kvarena/kvarena.toml") + "\n"))
      << shown.out;
}

TEST(ConfigFiles, TheUsersFileIsReadOnceWhereItIsTheProjects) {
  ConfigWorld world;
  world.write("home/kvarena/kvarena.toml", "[shapes]\nblock-size = 17\n");
  world.sources.folder = world.path("home/kvarena");
  const auto shown = json::parse(world.run({"config", "show", "--json", "-"}).out);
  EXPECT_EQ(shown.at("files").size(), 1u);
  EXPECT_EQ(block_size_in(world), 17);
}

TEST(ConfigFiles, WhatCannotBeReadIsNamed) {
  ConfigWorld world;
  for (const std::string& path : {world.path("absent.toml"), world.path("work")}) {
    const auto outcome = world.run({"shapes", "--config", path});
    EXPECT_EQ(outcome.code, ExitCode::bad_input);
    EXPECT_TRUE(outcome.err.starts_with("error: " + path + " was not readable")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "--no-config"));
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(world.run({"shapes", "--help", "--config", path}).code, ExitCode::ok);
    EXPECT_EQ(world.run({"--version", "--config", path}).code, ExitCode::ok);
  }
  world.sources.environment["KVARENA_CONFIG"] = world.path("absent.toml");
  EXPECT_TRUE(ended(world.run({"shapes"}), ExitCode::bad_input, {"KVARENA_CONFIG names "}));
  EXPECT_EQ(world.run({"shapes", "--no-config"}).code, ExitCode::ok);
  if (::geteuid() == 0) return;  // root reads everything
  world.sources.environment.clear();
  const auto secret = world.project("");
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  EXPECT_TRUE(contains(world.run({"shapes"}).err, "it cannot be read"));
}

TEST(ConfigFiles, OnesThatEverybodyMayWriteArePassedOverUnlessNamed) {
  using std::filesystem::perms;
  for (const char* opened : {"work/kvarena.toml", "work"}) {
    ConfigWorld world;
    const auto path = world.project("[shapes]\nblock-size = 18\n");
    std::filesystem::permissions(world.path(opened), perms::all);
    EXPECT_TRUE(
        ended(world.run({"shapes"}), ExitCode::ok, {"warning: " + path + " is passed over"}));
    EXPECT_EQ(block_size_in(world), 16);
    EXPECT_EQ(block_size_in(world, {"--config", path}), 18);
    EXPECT_EQ(world.run({"shapes", "--no-config"}).err, "");
  }
}

TEST(ConfigFiles, OnesOfAnotherUserArePassedOverUnlessNamed) {
  for (const char* foreign : {"work/kvarena.toml", "work"}) {
    ConfigWorld world;
    const auto path = world.project("[shapes]\nblock-size = 18\n");
    EXPECT_EQ(block_size_in(world), 18);
    constexpr ::uid_t kOther = 4321;
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown(world.path(foreign).c_str(), kOther, static_cast<::gid_t>(-1)), 0);
    } else {
      world.sources.user = kOther;  // as whom the files are another's
    }
    EXPECT_TRUE(ended(world.run({"shapes"}), ExitCode::ok,
                      {"warning: " + path + " is passed over", " belongs to another user ("}));
    EXPECT_EQ(block_size_in(world), 16);
    EXPECT_EQ(block_size_in(world, {"--config", path}), 18);
    if (::geteuid() != 0) continue;
    world.sources.user = kOther;  // one's own, in a folder of root's or the other way round
    EXPECT_EQ(block_size_in(world), 18);
  }
}

TEST(ConfigFiles, GroupsAreTrusted) {
  ConfigWorld world;
  const auto path = world.project("[shapes]\nblock-size = 18\n");
  using std::filesystem::perms;
  std::filesystem::permissions(path, perms::group_write, std::filesystem::perm_options::add);
  EXPECT_EQ(block_size_in(world), 18);
}

TEST(ConfigSources, OfThisProcess) {
  const char* before = std::getenv("HOME");
  const std::string home = before == nullptr ? "/" : before;
  ASSERT_EQ(::setenv("KVARENA_SHAPES_LAYERS", "7", 1), 0);
  ASSERT_EQ(::setenv("XDG_CONFIG_HOME", "/xdg", 1), 0);
  ConfigSources sources = ConfigSources::of_process();
  EXPECT_EQ(sources.variable("KVARENA_SHAPES_LAYERS"), "7");
  EXPECT_EQ(sources.variable("KVARENA_SHAPES_Q_HEADS"), std::nullopt);
  EXPECT_EQ(sources.environment.count("PATH"), 0u);
  EXPECT_EQ(sources.folder, std::filesystem::current_path());
  EXPECT_EQ(sources.user_file, "/xdg/kvarena/kvarena.toml");
  ASSERT_EQ(::setenv("XDG_CONFIG_HOME", "relative", 1), 0);  // to be ignored, says its standard
  ASSERT_EQ(::setenv("HOME", "/home/somebody", 1), 0);
  EXPECT_EQ(ConfigSources::of_process().user_file, "/home/somebody/.config/kvarena/kvarena.toml");
  ::unsetenv("HOME");
  EXPECT_EQ(ConfigSources::of_process().user_file, "");
  ::setenv("HOME", home.c_str(), 1);
  ::unsetenv("XDG_CONFIG_HOME");
  ::unsetenv("KVARENA_SHAPES_LAYERS");
}

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
  std::int64_t num_blocks() const { return parsed(run()).value("num_blocks", -1); }

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
  EXPECT_TRUE(contains_all(shown, {"\npreset = \"phi-3-mini\"\n", "\n# heads = "}));
  world.sources.environment["KVARENA_BENCH_ATTENTION_HEAD_DIM"] = "64";  // excludes the preset
  shown = show(world, "bench.attention");
  EXPECT_TRUE(contains_all(shown, {"\n# preset = ", "\nheads = \"16/4\"\n", "\nhead-dim = 64\n"}));
}

TEST(ConfigAlternatives, WhatNeedsTheDisplacedGoesWithIt) {
  ConfigWorld world;
  world.project("[monitor]\nurl = \"http://localhost:1\"\nhttp-token-file = \"t\"\n");
  world.sources.environment["KVARENA_MONITOR_DEVICE"] = "cpu";
  const std::string shown = show(world, "monitor");
  EXPECT_TRUE(
      contains_all(shown, {"\ndevice = \"cpu\"\n", "\n# url = ", "\n# http-token-file = "}));
  world.sources.environment["KVARENA_MONITOR_HTTP_TOKEN_FILE"] = "t";  // as strong as the device
  EXPECT_TRUE(ended(world.run({"monitor", "--once"}), ExitCode::usage,
                    {"--http-token-file requires --url"}));
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
    return parsed(outcome).value(json::json_pointer("/options/roofline"), json("failed"));
  };
  EXPECT_TRUE(roofline(replay(world, {})).is_object());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "step"})).is_null());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "linear", "--prefill-us", "3"})).is_null());
  EXPECT_TRUE(roofline(replay(world, {"--clock", "roofline", "--gpu", "A10"})).is_object());
  EXPECT_EQ(replay(world, {"--clock", "step", "--gpu", "A10"}).code, ExitCode::usage);
  world.sources.environment["KVARENA_REPLAY_CLOCK"] = "step";
  EXPECT_TRUE(roofline(replay(world, {})).is_null());
  EXPECT_TRUE(ended(replay(world, {"--gpu", "A10"}), ExitCode::usage,
                    {"  configured: --clock step (env KVARENA_REPLAY_CLOCK)\n"}));
  world.sources.environment.clear();
  world.project("[replay]\nclock = \"step\"\ngpu = \"H200-SXM\"\nmodel = \"Llama-3.1-8B\"\n");
  EXPECT_TRUE(ended(replay(world, {}), ExitCode::usage,
                    {"  configured: --gpu H200-SXM (" + path + ":3)\n"}));
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

TEST(ConfigFiles, OneWithoutEndIsReadNoFurtherThanTheLimit) {
  EXPECT_TRUE(ended(ConfigWorld().run({"shapes", "--config", "/dev/zero"}), ExitCode::bad_input,
                    {"/dev/zero:1: ", "more than 262144 bytes"}));
}

TEST(ConfigFiles, AnEmptyNameIsRefused) {
  ConfigWorld world;
  world.project("[shapes]\nblock-size = 18\n");
  EXPECT_TRUE(ended(world.run({"shapes", "--config", ""}), ExitCode::usage,
                    {"--config: \"\" is no file name"}));
}

TEST(ConfigFiles, WhatIsNoFileIsPassedOverWithAWarning) {
  namespace fs = std::filesystem;
  const auto make = [](const char* kind, const std::string& path) {
    const std::string_view name = kind;
    if (name == "pipe" && ::mkfifo(path.c_str(), 0600) != 0) ADD_FAILURE() << path;
    if (name == "folder") fs::create_directory(path);
    if (name == "loop") fs::create_symlink(path, path);
    if (name == "device") fs::create_symlink("/dev/null", path);
    if (name == "broken") fs::create_symlink("/nonexistent", path);
  };
  for (const char* kind : {"pipe", "folder", "loop", "device", "broken"}) {
    for (const char* name : {"work/kvarena.toml", "home/kvarena/kvarena.toml"}) {
      const ConfigWorld world;
      make(kind, world.path(name));
      EXPECT_TRUE(ended(world.run({"shapes"}), ExitCode::ok,
                        {"warning: " + world.path(name) + " is passed over: it is no file"}))
          << kind;
      EXPECT_EQ(world.run({"shapes", "--no-config"}).err, "");
    }
  }
}

TEST(ConfigAlternatives, TheClockYieldsWithItsGpuToAStrongerCost) {
  const test::TempFile trace(test::mooncake_trace({{0, 10, 1}}));
  for (const char* cost : {"--prefill-us", "--decode-us"}) {
    ConfigWorld world;
    world.project("[replay]\nclock = \"roofline\"\ngpu = \"H200-SXM\"\n");
    const json replayed = parsed(world.run({"replay", trace.path(), cost, "20", "--json", "-"}));
    EXPECT_EQ(replayed.value(json::json_pointer("/options/clock"), "none"), "step");
    world.sources
        .environment[cost == std::string_view("--prefill-us") ? "KVARENA_REPLAY_PREFILL_US"
                                                              : "KVARENA_REPLAY_DECODE_US"] = "20";
    EXPECT_TRUE(contains_all(show(world, "replay"), {"\n# clock = \"step\"\n", "\n# gpu = "}));
  }
}

}  // namespace
}  // namespace kvarena::tools
