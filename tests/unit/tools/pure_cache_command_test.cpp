// `kvarena replay --pure-cache`: what it prints, and what it refuses.

#include "unit/tools/command_run.hpp"

#include "support/test_files.hpp"

#include <utility>

namespace kvarena::tools {
namespace {

constexpr const char* kExcerpt = KVARENA_TRACES "/mooncake_conversation_excerpt.jsonl";

/// `kvarena replay` of the excerpt with `options`.
Outcome replay_excerpt(const std::string& options) {
  return run_line(std::string("replay ") + kExcerpt + " " + options);
}

TEST(PureCacheCommand, JsonHasTheFiguresOfTheRun) {
  const auto outcome = replay_excerpt("--pure-cache 100 --policy head-first --json -");
  const auto json = parsed(outcome);
  EXPECT_EQ(json.at("trace"), kExcerpt);
  EXPECT_EQ(json.at("format"), "mooncake");
  EXPECT_EQ(json.at("ok"), true);
  EXPECT_EQ(json.at("policy"), "head-first");
  EXPECT_EQ(json.at("capacity"), 100);
  EXPECT_EQ(json.at("block_tokens"), 512);
  EXPECT_EQ(json.at("requests"), 32);
  EXPECT_EQ(json.at("input_tokens"), 441'842);
  EXPECT_EQ(json.at("cached_blocks"), 100);
  const std::int64_t refs = json.at("block_refs");
  const std::int64_t hits = json.at("hit_blocks");
  EXPECT_GT(hits, 0);
  EXPECT_EQ(json.at("requests_with_hit"), hits) << "only the first block is shared";
  EXPECT_EQ(json.at("evictions").get<std::int64_t>(), refs - hits - 100);
  EXPECT_DOUBLE_EQ(json.at("block_hit_rate"),
                   static_cast<double>(hits) / static_cast<double>(refs));
  EXPECT_DOUBLE_EQ(json.at("token_hit_rate"), json.at("hit_tokens").get<double>() / 441'842.0);
  EXPECT_TRUE(contains(outcome.err, "asked for")) << "the table goes to standard error";
}

TEST(PureCacheCommand, WithoutJsonItPrintsATable) {
  const auto outcome = replay_excerpt("--pure-cache 1000");
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_TRUE(contains_all(outcome.out, {"prefix cache of 1,000 blocks of 512 tokens, tail-first",
                                         "asked for", "441,842", "evicted"}));
  EXPECT_EQ(replay_excerpt("--pure-cache 1000 --policy tail-first").out, outcome.out)
      << "tail-first is the default";
  EXPECT_EQ(replay_excerpt("--pure-cache 1000 --quiet").out, "");
  EXPECT_EQ(parsed(replay_excerpt("--pure-cache 1000 --requests 7 --json -")).at("requests"), 7);
}

TEST(PureCacheCommand, SaltsPartTheCache) {
  const std::string line =
      R"({"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2])";
  const test::TempFile file(line + R"(,"tenant":"a"})" + "\n" + line + R"(,"tenant":"b"})" + "\n" +
                            line + R"(,"tenant":"a"})" + "\n");
  const std::string command = "replay " + file.path() + " --pure-cache 8 --json -";
  EXPECT_EQ(parsed(run_line(command)).at("hit_blocks"), 4);
  EXPECT_FALSE(parsed(run_line(command)).contains("salts"));
  const auto apart = parsed(run_line(command + " --salt-column tenant"));
  EXPECT_EQ(apart.at("hit_blocks"), 2);
  EXPECT_EQ(apart.at("salts"), 2);
  EXPECT_EQ(apart.at("cached_blocks"), 4);
  const auto engine = parsed(run_line(
      "replay " + file.path() + " --prefix-cache --blocks 16 --block-size 512 --max-running 1 " +
      "--max-batched-tokens 0 --policy fifo --salt-column tenant --json -"));
  EXPECT_EQ(engine.at("options").at("policy"), "fifo");
  EXPECT_EQ(engine.at("options").at("salt_column"), "tenant");
  EXPECT_EQ(engine.at("prefix_cache").at("salts"), 2);
  EXPECT_EQ(engine.at("prefix_cache").at("hit_blocks"), 1) << "one token is left to compute";
  EXPECT_EQ(engine.at("prefix_cache").at("stops").at("other_salt"), 1);
  EXPECT_EQ(run_line(command + " --salt-column team").code, ExitCode::bad_input);
}

TEST(PureCacheCommand, WrongOptionsAreRefusedWithOneError) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"--pure-cache 0", "--pure-cache: Value 0 not in range 1 to 536870911"},
      {"--pure-cache 536870912", "--pure-cache: Value 536870912 not in range"},
      {"--pure-cache 99999999999999999999", "not in range 1 to 536870911"},
      {"--pure-cache many", "--pure-cache: Value many not in range"},
      {"--pure-cache -5", "--pure-cache"},
      {"--policy lfu", "--policy without a prefix cache"},
      {"--salt-column tenant", "--salt-column without a prefix cache"},
      {"--pure-cache 10 --prefix-cache", "excludes"},
      {"--pure-cache 10 --policy mru", "--policy: \"mru\" is no eviction policy"},
      {"--pure-cache 10 --blocks 10", "excludes"},
      {"--pure-cache 10 --clock linear", "excludes"},
      {"--pure-cache 10 --attention sample", "excludes"},
      {"--pure-cache 10 --block-size 16", "excludes"},
      {"--pure-cache 10 --http 127.0.0.1:0", "excludes"},
      {"--pure-cache 10 --timeline -", "excludes"},
  };
  for (const auto& [options, happened] : wrong) {
    const auto outcome = replay_excerpt(options);
    EXPECT_EQ(outcome.code, ExitCode::usage) << options;
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
    EXPECT_EQ(outcome.err.find("error: ", 1), std::string::npos) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, happened));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(PureCacheCommand, AMisspelledPolicyComesWithTheOneThatIsMeant) {
  const std::vector<std::pair<const char*, const char*>> meant = {
      {"lru", "did you mean tail-first?"},
      {"tail_first", "did you mean tail-first?"},
      {"headfirst", "did you mean head-first?"},
      {"fifi", "did you mean fifo?"},
      {"LFU", "one of tail-first, head-first, fifo, lfu"}};
  for (const auto& [policy, suggestion] : meant) {
    EXPECT_TRUE(ended(replay_excerpt(std::string("--pure-cache 10 --policy ") + policy),
                      ExitCode::usage, {suggestion}));
  }
}

TEST(PureCacheCommand, TracesThatCannotServeAreBadInput) {
  const test::TempFile azure(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n");
  const auto outcome = run({"replay", azure.path(), "--pure-cache", "10", "--json", "-"});
  EXPECT_TRUE(ended(outcome, ExitCode::bad_input, {azure.path(), "no hash ids"}));
  const auto refusal = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(refusal.at("ok"), false);
  EXPECT_EQ(refusal.at("exit_code"), 4);
  EXPECT_EQ(run_line("replay /nonexistent --pure-cache 10").code, ExitCode::bad_input);
  const test::TempFile empty("");
  EXPECT_TRUE(ended(run({"replay", empty.path(), "--pure-cache", "10"}), ExitCode::bad_input,
                    {"no request"}));
  EXPECT_TRUE(ended(run({"replay", kExcerpt, "--format", "azure", "--pure-cache", "10"}),
                    ExitCode::bad_input, {"TIMESTAMP"}));
}

TEST(PureCacheCommand, OutputsAreTestedBeforeTheWork) {
  EXPECT_EQ(replay_excerpt("--pure-cache 10 --json /nonexistent/x.json").code,
            ExitCode::environment);
  const test::TempFile file("old");
  const test::TempFile trace(
      R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]})");
  EXPECT_TRUE(ended(run({"replay", trace.path(), "--pure-cache", "1", "--json", trace.path()}),
                    ExitCode::usage, {"--json"}));
  EXPECT_EQ(run({"replay", trace.path(), "--pure-cache", "1", "--json", file.path()}).code,
            ExitCode::ok);
  EXPECT_EQ(nlohmann::json::parse(file.content()).at("block_refs"), 1);
}

TEST(PureCacheCommand, TheStrongerSourceDecidesBetweenItAndAnEngine) {
  const ConfigWorld world;
  world.project("[replay]\nblocks = 4096\nclock = \"linear\"\nblock-size = 32\n");
  EXPECT_EQ(world.run({"replay", kExcerpt, "--pure-cache", "10"}).code, ExitCode::ok);
  world.project("[replay]\npure-cache = 10\npolicy = \"fifo\"\n");
  EXPECT_TRUE(contains(world.run({"replay", kExcerpt}).out, "prefix cache of 10 blocks"));
  EXPECT_TRUE(contains(world.run({"replay", kExcerpt, "--blocks", "20000"}).out, "virtual time"));
}

TEST(PureCacheCommand, TheHelpNamesItOnceAndNotWithEveryOption) {
  const std::string help = run_line("replay --help").out;
  EXPECT_TRUE(contains_all(help, {"--pure-cache BLOCKS", "--policy"}));
  EXPECT_EQ(help.find("not with --pure-cache"), std::string::npos);
  EXPECT_TRUE(contains(help, "(not with --pool-bytes)")) << "other pairs are still named";
}

}  // namespace
}  // namespace kvarena::tools
