// What a configuration does to commands, what is wrong with it, and `kvarena config show`.

#include "support/test_files.hpp"
#include "unit/replay/trace_text.hpp"
#include "unit/tools/command_run.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;

json shown(const ConfigWorld& world) {
  return parsed(world.run({"config", "show", "--json", "-"}));
}

json option_in(const json& document, const std::string& command, const std::string& name) {
  for (const json& option : document.at("options")) {
    if (option.at("command") == command && option.at("option") == name) return option;
  }
  ADD_FAILURE() << command << " " << name;
  return {};
}

/// A value that an option takes and that is not its default, by the word of its help.
json sample_of(const json& option) {
  const std::string word = option.at("takes");
  const auto other_than_default = [&](const std::string& words, char between) {
    std::istringstream alternatives(words);
    std::string alternative;
    do {
      std::getline(alternatives, alternative, between);
    } while (json(alternative) == option.at("value"));
    return json(alternative);
  };
  if (word == "true|false") return true;
  if (word.starts_with("auto|cpu")) return "cpu";
  const std::map<std::string, json> samples = {{"pressure.scenario", json::array({"leaks"})},
                                               {"replay.gpu", "L40S"},
                                               {"replay.model", "Llama-3.1-8B"},
                                               {"replay.http", "127.0.0.1:0"},
                                               {"replay.pure-cache", 3},
                                               {"plan.gpu", "L40S"},
                                               {"plan.model", "Llama-3.1-8B"},
                                               {"plan.weights-dtype", "q8_0"},
                                               {"plan.kv-dtype", "q8_0"},
                                               {"monitor.url", "http://localhost:1"},
                                               {"bench.attention.preset", "phi-3-mini"}};
  const auto known =
      samples.find(std::string(option.at("command")) + "." + std::string(option.at("option")));
  if (known != samples.end()) return known->second;
  if (word == "SIZE") return "3GiB";
  if (word == "Q/KV") return "16/4";
  if (word.starts_with("FLOAT") || word == "US") return 0.5;
  if (word.starts_with("N") && !word.starts_with("NAME")) return 3;
  if (option.at("value").is_number()) return 0.5;
  if (word.find('|') != word.npos) return other_than_default(word, '|');
  return "text";
}

/// As a variable has it.
std::string text_of(const json& value) {
  if (value.is_string()) return value;
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const json& item : value) text += (text.empty() ? "" : ",") + text_of(item);
  return text;
}

TEST(Config, EveryOptionOfEveryCommandIsTakenFromFileAndEnvironment) {
  const ConfigWorld plain;
  const json defaults = shown(plain);
  ASSERT_GE(defaults.at("options").size(), 60u);
  for (const json& option : defaults.at("options")) {
    const std::string command = option.at("command");
    const std::string name = option.at("option");
    EXPECT_EQ(option.at("source"), "default") << command << name;
    const json sample = sample_of(option);
    EXPECT_NE(sample, option.at("value")) << command << " " << name;
    const bool needs_http = name == "linger" || (name == "http-token-file" && command == "replay");
    const std::string needed = needs_http                  ? "http = \"127.0.0.1:0\"\n"
                               : name.starts_with("http-") ? "url = \"http://localhost:1\"\n"
                                                           : "";
    const std::string table = command.empty() ? "" : "[" + command + "]\n";
    ConfigWorld world;
    const auto path = world.project(table + needed + name + " = " + sample.dump() + "\n");
    const json from_file = option_in(shown(world), command, name);
    const bool is_list = from_file.at("value").is_array() && !sample.is_array();
    const json expected = is_list ? json::array({sample}) : sample;
    EXPECT_EQ(from_file.at("value"), expected) << command << " " << name;
    EXPECT_EQ(from_file.at("source"), "file");
    const int line = (command.empty() ? 1 : 2) + (needed.empty() ? 0 : 1);
    EXPECT_EQ(from_file.at("origin"), path + ":" + std::to_string(line));

    world.project(table + needed);
    world.sources.environment[option.at("variable")] = text_of(sample);
    const json from_environment = option_in(shown(world), command, name);
    EXPECT_EQ(from_environment.at("value"), expected) << command << " " << name;
    EXPECT_EQ(from_environment.at("source"), "environment");
    EXPECT_EQ(from_environment.at("origin"), "env " + option.at("variable").get<std::string>());
  }
}

TEST(Config, CommandsDoWhatItSays) {
  const test::TempFile trace(test::mooncake_trace({{0, 100, 5}, {10, 600, 20}, {20, 50, 40}}));
  ConfigWorld world;
  world.project(
      "quiet = true\n"
      "[replay]\nrequests = 2\nblocks = 100\n"
      "[bench.attention]\npeers = true\npreset = \"phi-3-mini\"\n"
      "[monitor]\nurl = \"http://127.0.0.1:1\"\nonce = true\n"
      "[pressure]\ndevice = \"cuda:1023\"\n"
      "[devices]\n");
  const auto replayed = world.run({"replay", trace.path(), "--json", "-"});
  EXPECT_EQ(json::parse(replayed.out).at("requests"), 2);
  EXPECT_EQ(json::parse(replayed.out).at("num_blocks"), 100);
  EXPECT_EQ(replayed.err, "");  // quiet
  EXPECT_EQ(world.run({"bench", "attention"}).code, ExitCode::ok);
  EXPECT_TRUE(ended(world.run({"monitor"}), ExitCode::environment, {"127.0.0.1:1"}));
  EXPECT_TRUE(ended(world.run({"pressure"}), ExitCode::environment, {"cuda:1023"}));
  EXPECT_EQ(world.run({"devices"}).code, ExitCode::ok);
  world.sources.environment["KVARENA_BENCH_ATTENTION_BATCH"] = "8,64";
  EXPECT_EQ(world.run({"bench", "attention", "--context", "1k"}).code, ExitCode::ok);
}

TEST(Config, WhatIsWrongInAFileIsNamedWithItsPlace) {
  struct Case {
    const char* text;
    const char* place;  // behind the path
    std::vector<const char*> parts;
  };
  const std::vector<Case> cases = {
      {"[replay]\nblok-size = 3\n", ":2: ", {"\"blok-size\"", "did you mean block-size?"}},
      {"[replay]\nblock_size = 3\n", ":2: ", {"did you mean block-size?"}},
      {"[replai]\nblock-size = 3\n", ":1: ", {"\"replai\"", "did you mean replay?"}},
      {"replay.block-size = 3\n", ":1: ", {"\"replay.block-size = 3\"", "[table], or key"}},
      {"[bench]\nbatch = 3\n", ":2: ", {"batch belongs to [bench.attention]"}},
      {"block-size = 3\n", ":1: ", {"[replay]", "[bench.attention]", "[shapes]"}},
      {"[shapes]\nquiet = true\n", ":2: ", {"quiet belongs to the lines before all tables"}},
      {"[bench.atention]\nbatch = 3\n", ":1: ", {"did you mean bench.attention?"}},
      {"[\"bench.attention\"]\nbatch = 3\n", ":1: ", {"[table], or key = value"}},
      {"temperature = 3\n", ":1: ", {"'kvarena --help' lists the options"}},
      {"[replay]\nblock-size = 2024-01-01\n", ":2: ", {"the value \"2024-01-01\"", "in quotes"}},
      {"[replay.block-size]\nx = 3\n", ":1: ", {"\"replay.block-size\"", "the table of a command"}},
      {"[pressure]\nscenario = []\n", ":2: ", {"the value \"[]\""}},
      {"[bench.attention]\nbatch = [[3]]\n", ":2: ", {"an array of these"}},
      {"replay = 3\n", ":1: ", {"\"replay\""}},
      {"[[replay]]\nblock-size = 3\n", ":1: ", {"a table is [replay]"}},
      {"[replay]\njson = \"-\"\n",
       ":2: ",
       {"json of kvarena replay, which belongs on the command line"}},
      {"[replay]\nTRACE = \"x\"\n",
       ":2: ",
       {"TRACE of kvarena replay, which belongs on the command"}},
      {"[replay]\nhelp = true\n", ":2: ", {"belongs on the command line"}},
      {"config = \"x\"\n", ":1: ", {"config of kvarena, which belongs on the command line"}},
      {"no-config = true\n", ":1: ", {"belongs on the command line"}},
      {"[pressure-neighbour]\ndevice = \"cpu\"\n", ":1: ", {"\"pressure-neighbour\""}},
      {"[config.show]\norigin = true\n", ":2: ", {"belongs on the command line"}},
  };
  for (const Case& wrong : cases) {
    const ConfigWorld world;
    const auto path = world.project(wrong.text);
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"devices"}, {"config", "show"}}) {
      const auto outcome = world.run(arguments);
      EXPECT_EQ(outcome.code, ExitCode::bad_input) << wrong.text;
      EXPECT_EQ(outcome.out, "") << wrong.text;
      EXPECT_TRUE(outcome.err.starts_with("error: " + path + wrong.place)) << outcome.err;
      for (const char* part : wrong.parts) {
        EXPECT_TRUE(contains(outcome.err, part)) << wrong.text;
      }
    }
  }
}

TEST(Config, ValuesOutOfTheirRangeAreNamedWhereTheyAreUsed) {
  for (const char* text : {"[shapes]\nblock-size = 0\n", "[shapes]\nblock-size = 65537\n",
                           "[shapes]\ndtype = \"f64\"\n", "[shapes]\npool-bytes = \"1gig\"\n",
                           "[shapes]\npool-bytes = -1\n", "[shapes]\nblock-size = \"many\"\n",
                           "[shapes]\nblock-size = 3.5\n", "[shapes]\nblock-size = true\n",
                           "[shapes]\nblock-size = [3, 4]\n"}) {
    ConfigWorld world;
    const auto path = world.project(text);
    const auto outcome = world.run({"shapes"});
    EXPECT_EQ(outcome.code, ExitCode::bad_input) << text;
    EXPECT_TRUE(outcome.err.starts_with("error: " + path + ":2:")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "--"));
    EXPECT_EQ(world.run({"config", "show"}).code, ExitCode::bad_input) << text;
    EXPECT_EQ(world.run({"devices"}).code, ExitCode::ok) << text;  // not its option
    EXPECT_EQ(world.run({"shapes", "--no-config"}).code, ExitCode::ok) << text;
  }
  ConfigWorld world;
  world.sources.environment["KVARENA_SHAPES_BLOCK_SIZE"] = "many";
  const auto outcome = world.run({"shapes"});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_TRUE(outcome.err.starts_with("error: KVARENA_SHAPES_BLOCK_SIZE: ")) << outcome.err;
}

TEST(Config, VariablesOfCommandsAreOptionsAndOthersAreNotOurs) {
  ConfigWorld world;
  for (const char* other :
       {"KVARENA_DATA_DIR", "KVARENA_REQUIRE_GPU", "KVARENA_PROMTOOL", "KVARENA_SANITIZE_GPU",
        "KVARENA_SEED", "KVARENA_QUITE", "KVARENA_REPLAYS", "KVARENA_BENCH", "KVARENA_VERSION"}) {
    world.sources.environment[other] = "1";
  }
  world.sources.environment["KVARENA_REPLAY_TRACE"] = "";  // empty: not set
  EXPECT_EQ(world.run({"shapes"}).code, ExitCode::ok);
  struct Case {
    const char* name;
    const char* value;
    const char* part;
  };
  for (const Case& wrong :
       {Case{"KVARENA_REPLAY_BLOK_SIZE", "3", "did you mean KVARENA_REPLAY_BLOCK_SIZE?"},
        {"KVARENA_BENCH_ATTENTION_BACH", "3", "did you mean KVARENA_BENCH_ATTENTION_BATCH?"},
        {"KVARENA_BENCH_CUDA", "3", "'kvarena bench --help'"},
        {"KVARENA_SHAPES_", "3", "KVARENA_SHAPES_OPTION"},
        {"KVARENA_REPLAY_JSON", "-", "unset KVARENA_REPLAY_JSON"},
        {"KVARENA_REPLAY_TRACE", "x", "unset KVARENA_REPLAY_TRACE"},
        {"KVARENA_CONFIG_SHOW_ORIGIN", "1", "belongs on the command line"},
        {"KVARENA_QUIET", "perhaps", "--quiet = perhaps"}}) {
    ConfigWorld other;
    other.sources.environment[wrong.name] = wrong.value;
    EXPECT_TRUE(ended(other.run({"shapes"}), ExitCode::usage, {wrong.name, wrong.part}))
        << wrong.name;
  }
}

TEST(Config, OptionsThatExcludeOrNeedOneAnotherAreNamedWithBothOrigins) {
  ConfigWorld world;
  const auto path = world.project("[replay]\npool-bytes = \"24GiB\"\nblocks = 3\n");
  auto outcome = world.run({"replay", "x"});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_TRUE(contains(outcome.err, "--blocks excludes --pool-bytes") ||
              contains(outcome.err, "--pool-bytes excludes --blocks"))
      << outcome.err;
  EXPECT_TRUE(contains_all(outcome.err, {"  configured: --blocks 3 (" + path + ":3)\n",
                                         "  configured: --pool-bytes 24GiB (" + path + ":2)\n"}));
  world.sources.environment["KVARENA_REPLAY_BLOCKS"] = "3";
  world.sources.environment["KVARENA_REPLAY_POOL_BYTES"] = "24GiB";
  outcome = world.run({"replay", "x"});
  EXPECT_TRUE(ended(outcome, ExitCode::usage,
                    {"--blocks 3 (env KVARENA_REPLAY_BLOCKS)",
                     "--pool-bytes 24GiB (env KVARENA_REPLAY_POOL_BYTES)"}));
  world.project("");
  world.sources.environment = {{"KVARENA_REPLAY_LINGER", "yes"}};
  outcome = world.run({"replay", "x"});
  EXPECT_TRUE(
      ended(outcome, ExitCode::usage, {"--linger requires --http", "(env KVARENA_REPLAY_LINGER)"}));
  EXPECT_EQ(world.run({"replay", "/nonexistent", "--http", "127.0.0.1:0"}).code,
            ExitCode::bad_input);
}

TEST(Config, WhatACommandRefusesItselfComesWithTheOrigins) {
  ConfigWorld world;
  const auto path = world.project("quiet = true\n[replay]\nq-heads = 3\ntimeline = \"x\\u001b\"\n");
  const auto outcome = world.run({"replay", "x", "--samples", "2"});
  EXPECT_EQ(outcome.code, ExitCode::usage);
  EXPECT_TRUE(contains_all(outcome.err, {"  configured: --q-heads 3 (" + path + ":3)\n",
                                         "  configured: --timeline x? (" + path + ":4)\n"}));
  EXPECT_FALSE(contains(outcome.err, "--samples"));
  EXPECT_EQ(contains(world.run({"replay", "x", "--blocks", "0", "--no-config"}).err, "configured"),
            false);
}

TEST(Config, NothingThatItSaysOfASourceReachesATerminalAsAControl) {
  ConfigWorld world;
  const std::string folder = world.path("work/a\x1b\xc2\x9b");
  std::filesystem::create_directories(folder);
  world.sources.folder = folder;
  std::ofstream(folder + "/kvarena.toml") << "[replay]\nq-heads = 3\ntimeline = \"\xc2\x9b\"\n";
  std::string told = world.run({"replay", "x"}).err;
  EXPECT_TRUE(contains(told, "configured: --timeline ? ("));
  told += world.run({"config", "show", "--origin"}).out;
  EXPECT_TRUE(contains(told, "\ntimeline = \"\\u009b\""));
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  const std::string warning = world.run({"shapes"}).err;
  EXPECT_TRUE(contains(warning, "is passed over"));
  EXPECT_FALSE(contains(told + warning, "\x1b"));
  EXPECT_FALSE(contains(told + warning, "\xc2\x9b"));
}

TEST(Config, HiddenCommandsHelpAndUsageErrorsDoNotReadIt) {
  ConfigWorld world;
  world.project("this is no TOML");
  EXPECT_EQ(world.run({"shapes"}).code, ExitCode::bad_input);
  EXPECT_EQ(world.run({"shapes", "--help"}).code, ExitCode::ok);
  EXPECT_EQ(world.run({"--help"}).code, ExitCode::ok);
  EXPECT_EQ(world.run({"--version"}).code, ExitCode::ok);
  EXPECT_EQ(world.run({}).code, ExitCode::usage);
  EXPECT_TRUE(contains(world.run({"pressure-neighbour", "--device", "gpu"}).err, "\"gpu\""));
}

// ---- kvarena config show -----------------------------------------------------------------------

TEST(ConfigShow, IsAFileThatChangesNothing) {
  ConfigWorld world;
  const auto first = world.run({"config", "show"});
  EXPECT_EQ(first.code, ExitCode::ok) << first.err;
  EXPECT_TRUE(
      contains_all(first.out, {"\n# block-size = 16\n", "\n# reserve = <full|prompt|none>\n"}));
  world.project(first.out);
  EXPECT_EQ(world.run({"config", "show"}).out, first.out);
  world.project(
      "quiet = true\n[replay]\ntimeline = \"quo\\\"te\\n\\u007f\\\\\"\nwatermark = 7\n"
      "pool-bytes = 1024\nprefill-us = 0.5\nlinger = false\n"
      "[bench.attention]\nbatch = [8, \"4k\"]\n[pressure]\nscenario = [\"leaks\"]\n");
  const auto second = world.run({"config", "show"});
  EXPECT_EQ(second.code, ExitCode::ok) << second.err;
  EXPECT_TRUE(contains_all(
      second.out, {"quiet = true\n", "\ntimeline = \"quo\\\"te\\n\\u007f\\\\\"\n",
                   "\nwatermark = 7\n", "\npool-bytes = 1024\n", "\nprefill-us = 0.5\n",
                   "\nlinger = false\n", "\nbatch = [8, \"4k\"]\n", "\nscenario = [\"leaks\"]\n"}));
  world.project(second.out);
  EXPECT_EQ(world.run({"config", "show"}).out, second.out);
  const auto with_origins = world.run({"config", "show", "--origin"});
  world.project(with_origins.out);
  EXPECT_EQ(world.run({"config", "show"}).out, second.out);
}

TEST(ConfigShow, EveryDefaultMayBeWrittenOut) {
  ConfigWorld world;
  std::istringstream lines(world.run({"config", "show"}).out);
  std::string text;
  int defaults = 0;
  for (std::string line; std::getline(lines, line); text += line + '\n') {
    if (!line.starts_with("# ") || contains(line, " = <")) continue;
    line.erase(0, 2);
    ++defaults;
  }
  EXPECT_GT(defaults, 40);
  EXPECT_TRUE(contains(text, "\ngraph-memory = \"0B\"\n"));
  world.project(text);
  const auto shown = world.run({"config", "show"});
  EXPECT_EQ(shown.code, ExitCode::ok) << shown.err;
  EXPECT_EQ(shown.out, text);
  const auto planned = world.run({"plan", "--model", "Qwen2.5-0.5B", "--gpu", "80GiB"});
  EXPECT_EQ(planned.code, ExitCode::ok) << planned.err;
  EXPECT_EQ(planned.out,
            ConfigWorld().run({"plan", "--model", "Qwen2.5-0.5B", "--gpu", "80GiB"}).out);
}

TEST(ConfigShow, OriginsOfAllSources) {
  ConfigWorld world;
  const auto user = world.write("home/kvarena/kvarena.toml", "[shapes]\nq-heads = 8\n");
  const auto file = world.project("no-color = true\n[shapes]\nlayers = 3\n");
  world.sources.environment["KVARENA_SHAPES_KV_HEADS"] = "4";
  const auto outcome = world.run({"--quiet", "config", "show", "--origin"});
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"\nquiet = true", "# command line\n"},
      {"\nno-color = true", "# " + file + ":1\n"},
      {"\nlayers = 3", "# " + file + ":3\n"},
      {"\nkv-heads = 4", "# env KVARENA_SHAPES_KV_HEADS\n"},
      {"\nq-heads = 8", "# " + user + ":2\n"},
      {"\n# block-size = 16", "# default\n"},
      {"\n# pool-bytes = <SIZE>", "# not set\n"},
  };
  for (const auto& [line, origin] : expected) {
    const auto at = outcome.out.rfind(line);
    ASSERT_NE(at, std::string::npos) << line << outcome.out;
    const auto comment = outcome.out.find(origin, at);
    EXPECT_LT(comment, outcome.out.find('\n', at + 1)) << line << outcome.out;
  }
}

TEST(ConfigShow, ItsHelpDoesNotOverwriteTheFileThatItReads) {
  const auto help = ConfigWorld().run({"config", "show", "--help"});
  EXPECT_TRUE(contains(help.out, "config show > "));
  EXPECT_FALSE(contains(help.out, "> kvarena.toml"));
}

TEST(ConfigShow, OneCommand) {
  ConfigWorld world;
  world.project("[bench.attention]\nbatch = 3\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"bench", "attention"}, {"bench.attention"}, {"bench"}}) {
    std::vector<std::string> arguments = {"config", "show"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const auto outcome = world.run(arguments);
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    EXPECT_TRUE(contains_all(outcome.out, {"[bench.attention]\n", "\nbatch = [3]\n"}));
    EXPECT_FALSE(contains(outcome.out, "[replay]"));
    EXPECT_FALSE(contains(outcome.out, "quiet"));
  }
  EXPECT_TRUE(
      ended(world.run({"config", "show", "relpay"}), ExitCode::usage, {"did you mean replay?"}));
  EXPECT_EQ(world.run({"config", "show", "devices"}).code, ExitCode::usage);
  EXPECT_EQ(world.run({"config"}).code, ExitCode::usage);
}

TEST(ConfigShow, BytesThatAreNotUtf8DoNotBreakIt) {
  ConfigWorld world;
  world.sources.environment["KVARENA_REPLAY_TIMELINE"] = "a\xff\x01";
  const auto outcome = world.run({"config", "show"});
  EXPECT_TRUE(contains(outcome.out, "\ntimeline = \"a\xef\xbf\xbd\\u0001\"\n"));
  EXPECT_EQ(option_in(shown(world), "replay", "timeline").at("value"), "a\xef\xbf\xbd\x01");
}

/// A setting of a table that its command cannot use.
struct BadSetting {
  const char* table;
  const char* line;
};

TEST(ConfigShow, ChecksEveryValueAsItsCommandDoes) {
  for (const auto& [table, line] : {BadSetting{"replay", "blocks = -4"},
                                    {"replay", "blocks = \"abc\""},
                                    {"replay", "blocks = 0"},
                                    {"replay", "watermark = \"x%\""},
                                    {"replay", "gpu = \"zzz\""},
                                    {"replay", "model = \"nonsense\""},
                                    {"replay", "http = \"no\""},
                                    {"replay", "efficiency-bandwidth = \"nan\""},
                                    {"plan", "gpu = \"zzz\""},
                                    {"plan", "gpu = \"1KiB\""},
                                    {"plan", "model = \"nonsense\""},
                                    {"plan", "weights-dtype = \"zzz\""},
                                    {"plan", "kv-dtype = \"zzz\""},
                                    {"plan", "utilization = \"nan\""},
                                    {"plan", "percentile = \"nan\""},
                                    {"monitor", "url = \"localhost\""},
                                    {"monitor", "interval = \"nan\""},
                                    {"bench.attention", "preset = \"zzz\""}}) {
    const ConfigWorld world;
    const auto path = world.project(fmt::format("[{}]\n{}\n", table, line));
    std::string command = table;
    std::ranges::replace(command, '.', ' ');
    for (const std::string& words :
         {std::string("config show"), command + (command == "replay" ? " /nonexistent" : "")}) {
      const Outcome seen = world.run(tools::words(words));
      EXPECT_EQ(seen.code, ExitCode::bad_input) << words << ": " << line << '\n' << seen.err;
      EXPECT_TRUE(seen.err.starts_with("error: " + path + ":2: ")) << words << '\n' << seen.err;
      EXPECT_TRUE(contains(seen.err, "  expected: ")) << line;
    }
  }
}

TEST(ConfigShow, NamesTheLineOfTheOptionThatIsWrongAmongTheSameOfOthers) {
  const ConfigWorld world;
  const auto path =
      world.project("[replay]\nmodel = \"Qwen2.5-0.5B\"\n[plan]\nmodel = \"nonsense\"\n");
  const Outcome seen = world.run({"config", "show"});
  EXPECT_TRUE(seen.err.starts_with("error: " + path + ":4: ")) << seen.err;
}

}  // namespace
}  // namespace kvarena::tools
