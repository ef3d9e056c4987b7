// Which files are found, and which one wins.

#include "unit/tools/config_world.hpp"

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;

int block_size_in(const ConfigWorld& world, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"shapes", "--json", "-"});
  const auto outcome = world.run(arguments);
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  return outcome.code == ExitCode::ok ? json::parse(outcome.out).at("block_size").get<int>() : -1;
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
    EXPECT_TRUE(contains(outcome.err, "--no-config")) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(world.run({"shapes", "--help", "--config", path}).code, ExitCode::ok);
    EXPECT_EQ(world.run({"--version", "--config", path}).code, ExitCode::ok);
  }
  world.sources.environment["KVARENA_CONFIG"] = world.path("absent.toml");
  const auto outcome = world.run({"shapes"});
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_TRUE(contains(outcome.err, "KVARENA_CONFIG names ")) << outcome.err;
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
    const auto outcome = world.run({"shapes"});
    EXPECT_EQ(outcome.code, ExitCode::ok);
    EXPECT_TRUE(contains(outcome.err, "warning: " + path + " is passed over")) << outcome.err;
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
    const auto outcome = world.run({"shapes"});
    EXPECT_EQ(outcome.code, ExitCode::ok);
    EXPECT_TRUE(contains(outcome.err, "warning: " + path + " is passed over")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, " belongs to another user (")) << outcome.err;
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

}  // namespace
}  // namespace kvarena::tools
