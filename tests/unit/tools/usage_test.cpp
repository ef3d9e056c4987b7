// Words that nobody expected, names as others write them, and the help as a terminal shows it.

#include "tools/usage.hpp"
#include "support/test_files.hpp"
#include "tools/nearest_name.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::tools {
namespace {

using nlohmann::json;

const std::vector<std::vector<std::string>> kCommands = {
    {},          {"replay"},  {"plan"},   {"pressure"}, {"bench"},         {"bench", "attention"},
    {"monitor"}, {"devices"}, {"shapes"}, {"config"},   {"config", "show"}};

TEST(Usage, AWordThatWasMeantIsNamed) {
  struct Case {
    const char* words;
    const char* happened;
    const char* advice;
  };
  for (const Case& wrong : {
           Case{"repaly", "'kvarena repaly' is no command", "did you mean replay?"},
           {"repaly trace.jsonl --blocks 3", "'kvarena repaly'", "did you mean replay?"},
           {"replay x --blocs 3", "--blocs is no option of 'kvarena replay'",
            "did you mean --blocks?"},
           {"replay --blocs=3 x", "--blocs is no option", "did you mean --blocks?"},
           {"replay --blocs=3", "--blocs is no option", "did you mean --blocks?"},
           {"plan --quite", "--quite is no option of 'kvarena plan'", "did you mean --quiet?"},
           {"bench atention", "'kvarena bench atention' is no command", "did you mean attention?"},
           {"bench attention --contxt 3", "--contxt", "did you mean --context?"},
           {"config sow", "'kvarena config sow' is no command", "did you mean show?"},
           {"devices cuda:0", "'kvarena devices' takes no further \"cuda:0\"",
            "'kvarena devices --help' lists the options"},
           {"bench", "'kvarena bench' needs a command",
            "'kvarena bench --help' lists the commands"},
           {"--json - replay t.jsonl", "--json stands before 'replay'",
            "'kvarena replay --help' lists the options"},
           {"replay x --zzz", "--zzz is no option", "  to do: 'kvarena replay --help'"},
       }) {
    EXPECT_TRUE(ended(run_line(wrong.words), ExitCode::usage, {wrong.happened, wrong.advice}))
        << wrong.words;
  }
  EXPECT_FALSE(contains(run({"pressure-neighbor"}).err, "did you mean pressure-neighbour"))
      << "hidden";
  EXPECT_FALSE(contains(run({"a\x1b[31m"}).err, "\x1b"));
}

TEST(Usage, NoByteOfANameReachesATerminalAsAControl) {
  const std::string name = "/nonexistent/a\x1b[31mred\nX\xff\xe2\x80\xae";
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"replay", name},
        {"plan", "--model", "Qwen3-8B", "--gpu", "L4", "--trace", name},
        {"bench", "attention", "--lengths", name},
        {"monitor", "--url", "http://127.0.0.1:1", "--http-token-file", name},
        {"shapes", name},
        {"--config", name, "shapes"},
        {"shapes", "--block-size", name}}) {
    const std::string seen = run(line).err;
    EXPECT_TRUE(contains(seen, "a?[31mred?X??")) << line.front();
    EXPECT_EQ(seen.find_first_of("\x1b\xff\xe2"), seen.npos) << line.front();
  }
}

TEST(Usage, ARefusalIsOneJsonObjectWhereOneWasAskedFor) {
  const std::vector<std::pair<const char*, int>> refusals = {
      {"bench attention --heads 7/2 --json -", 2},
      {"bench attention --preset none --json=-", 2},
      {"bench attention --device cuda:1023 --json -", 5},
      {"bench attention --device cpu --batch 65536 --context 16384k --json -", 3},
      {"devices --json - cuda:0", 2},
      {"devices --blocs --json", 2},
      {"config show relpay --json -", 2},
      {"--config /nonexistent config show --json -", 4},
      {"shapes GPT-9 --json -", 2},
      {"replay /nonexistent --json -", 4},
  };
  for (const auto& [arguments, code] : refusals) {
    const auto outcome = run_line(arguments);
    EXPECT_EQ(static_cast<int>(outcome.code), code) << outcome.err;
    const json object = json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(object.is_object()) << arguments << outcome.out;
    EXPECT_EQ(object.at("ok"), false);
    EXPECT_NE(object.at("failure"), "");
    EXPECT_TRUE(contains(outcome.err, "error: ")) << "people read standard error";
  }
  const json object = json::parse(run_line("config show relpay --json -").out);
  EXPECT_EQ(object.at("exit_code"), 2);
  EXPECT_TRUE(contains(object.at("advice"), "did you mean replay?"));
  EXPECT_EQ(run_line("shapes GPT-9 --json /dev/null").out, "");
}

TEST(Usage, ARefusalIsTheSameObjectInAFile) {
  for (const std::string& line :
       texts("plan --model Lama --gpu L4", "plan --model Llama-3.1-8B --gpu L4 --tp 3",
             "plan --model Llama-3.1-8B --gpu L4 --trace /no/such/file", "shapes GPT-9",
             "shapes Llama-3.1-8B --pool-bytes 1MiB", "replay /nonexistent",
             "replay /nonexistent --blocks many", "bench attention --preset none",
             "monitor --url localhost --once", "config show relpay")) {
    const test::TempFile file("of an earlier run");
    const auto seen = run_line(line + " --json " + file.path());
    EXPECT_EQ(seen.out, "") << line;
    const json object = json::parse(file.content(), nullptr, false);
    ASSERT_TRUE(object.is_object()) << line << ": " << file.content();
    EXPECT_EQ(object.at("exit_code"), static_cast<int>(seen.code)) << line;
    EXPECT_EQ(file.content(), run_line(line + " --json -").out) << line;
  }
}

TEST(Usage, ALineThatIsNotUnderstoodWritesIntoNoFile) {
  const test::TempFile trace("a trace, given without the file for --json");
  EXPECT_EQ(run_line("replay --json " + trace.path()).code, ExitCode::usage);
  const std::string twice = "replay " + trace.path() + " --json " + trace.path();
  EXPECT_EQ(run_line(twice + " --blocks many").code, ExitCode::usage);
  EXPECT_EQ(trace.content(), "a trace, given without the file for --json");
}

TEST(Usage, ARefusalThatCannotBeWrittenKeepsItsExitCode) {
  const auto seen = run_line("shapes GPT-9 --json /nonexistent/x");
  EXPECT_TRUE(
      ended(seen, ExitCode::usage,
            {"no built-in model is called \"GPT-9\"", "\n  also: --json /nonexistent/x: "}));
}

TEST(Names, ModelsWithAnOrganisation) {
  const auto names = capacity::model_preset_names();
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"},
      {"meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B"},
      {"Llama-3.1-8B-Instruct", "Llama-3.1-8B"},
      {"meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"},
      {"mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"},
      {"microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini-4k-instruct"},
      {"Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"},  // another context
      {"org/Unknown-1B", "unknown-1b"},
  };
  for (const auto& [given, meant] : cases) EXPECT_EQ(model_name_of(given, names), meant) << given;
  const auto shape = run_line("shapes meta-llama/Llama-3.1-8B-Instruct");
  EXPECT_TRUE(shape.out.starts_with("Llama-3.1-8B: ")) << shape.out << shape.err;
  const auto planned = run_line("plan --model meta-llama/Llama-3.1-8B-Instruct --gpu L40S");
  EXPECT_EQ(planned.code, ExitCode::ok) << planned.err;
  EXPECT_TRUE(ended(run_line("plan --model meta-llama/Lama-3.1-8B-Instruct --gpu L40S"),
                    ExitCode::usage, {"did you mean Llama-3.1-8B"}));
}

TEST(Names, GpusAsDriversCallThem) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"NVIDIA H100 80GB HBM3", "H100-SXM"},
      {"NVIDIA H100 PCIe", "H100-PCIe"},
      {"NVIDIA H200", "H200-SXM"},
      {"NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"},
      {"NVIDIA L40S", "L40S"},
      {"NVIDIA GeForce RTX 4090", "RTX-4090"},
      {"rtx 4090", "RTX-4090"},
      {"AMD Instinct MI300X", "MI300X"},
      {"NVIDIA H100 NVL", "NVIDIA H100 NVL"},
      {"H100", "H100"},
  };
  for (const auto& [given, meant] : cases) {
    EXPECT_EQ(gpu_name_of(given), meant) << given;
  }
  for (const auto& name : capacity::gpu_preset_names()) EXPECT_EQ(gpu_name_of(name), name);
  EXPECT_EQ(run({"plan", "--model", "Qwen2.5-0.5B", "--gpu", "NVIDIA H100 80GB HBM3"}).code,
            ExitCode::ok);
  const auto ambiguous = run_line("plan --model Qwen2.5-0.5B --gpu H100");
  EXPECT_EQ(ambiguous.code, ExitCode::usage);
  EXPECT_TRUE(contains_all(ambiguous.err,
                           {"--gpu: \"H100\" is not one GPU", "one of H100-SXM, H100-PCIe"}));
  EXPECT_TRUE(contains(run_line("plan --model Qwen2.5-0.5B --gpu H300").err,
                       "\"H300\" is no built-in GPU"));
}

/// The help of a command on a terminal of so many columns.
std::string help(std::vector<std::string> words, int columns) {
  words.emplace_back("--help");
  TestConsole test;
  test.console.terminal_size = [columns] { return TerminalSize{24, columns}; };
  EXPECT_EQ(run_on(test.console, words), ExitCode::ok);
  return test.out.str();
}

TEST(Help, FitsTheTerminal) {
  for (const auto& command : kCommands) {
    for (const int columns : {50, 80, 100}) {
      std::istringstream lines(help(command, columns));
      for (std::string line; std::getline(lines, line);) {
        const bool is_one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;
        EXPECT_LE(line.size(), static_cast<std::size_t>(columns) + (is_one_word ? 40 : 0)) << line;
      }
    }
  }
}

TEST(Help, SaysWhatAnOptionTakesInPlainWords) {
  for (const auto& command : kCommands) {
    const std::string text = help(command, 80);
    for (const char* artefact :
         {" in [", ":{", "FLOAT:", "Excludes:", "Needs:", "REQUIRED", "true|false"}) {
      EXPECT_FALSE(contains(text, artefact));
    }
  }
  const std::string replay = help({"replay"}, 100);
  EXPECT_TRUE(contains_all(replay, {"--efficiency-matrices SHARE=", "(0.01 - 1)"}));
  EXPECT_TRUE(contains(replay, "(not with --blocks)") ||
              contains(replay, "(not with --pool-bytes)"));
  EXPECT_TRUE(contains_all(replay, {"--http ADDRESS:PORT", "(needs --http)"}));
}

TEST(Help, LongExamplesAreContinuedAsAShellDoes) {
  const std::string text = help({"replay"}, 60);
  EXPECT_TRUE(contains(text, " \\\n      "));
}

}  // namespace
}  // namespace kvarena::tools
