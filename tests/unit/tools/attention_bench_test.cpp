// `kvarena bench attention`: what it accepts, what it prints, and that a wrong result fails it.

#include "support/gpu.hpp"
#include "support/test_files.hpp"
#include "tools/attention_bench/attention_bench_options.hpp"
#include "tools/attention_bench/attention_bench_run.hpp"
#include "tools/attention_meter/work_rows.hpp"
#include "unit/tools/command_run.hpp"

#include "kvarena/device/host_device.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using meter::AttentionFigures;
using meter::AttentionProblem;
using meter::ReadCeiling;
using nlohmann::json;
using test::TempFile;

/// The command with a tiny run's options after those of `line`.
Outcome bench(const std::string& line) {
  return run(words("bench attention " + line + " --rotate 64kB --replays 3"));
}

// ---- options -----------------------------------------------------------------------------------

TEST(BenchOptions, WrongUsageIsExitCodeTwoAndSaysWhatToDo) {
  for (const std::string& arguments : texts(
           "--heads 7/2", "--heads 0/1", "--heads 32/8/2", "--heads 32,16/8", "--head-dim 0",
           "--batch 0", "--batch 1;2", "--batch 1,0", "--batch 65537", "--batch 65k",
           "--batch 99999999999k", "--batch 1.5", "--batch 1K", "--context 1m",
           "--context 3 --q-len 4", "--dtype f64", "--dtype fp8 --device cpu", "--device gpu",
           "--device cuda", "--preset gpt-9", "--preset llama-3-8b --heads 32/8",
           "--preset llama-3-8b --head-dim 64", "--lengths x.json --batch 2", "--replays 0",
           "--window -1", "--rotate much", "--prefill --batch 2", "--columns --dtype f16",
           "--shared-prefix --q-len 4", "--row 1x8k", "--prefill --row 1x9k", "--soft-cap -1",
           "--context 4k --cached 2k", "--shared 1000", "--shared 1024 --context 1k",
           "--shared 512 --window 64", "--groups 0", "--q-len 0", "--batch-invariant --shared 512",
           "--batch-invariant --shared-prefix", "--batch-invariant --device cpu")) {
    const auto outcome = run_line("bench attention --json - " + arguments);
    EXPECT_EQ(outcome.code, ExitCode::usage) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "to do: "));
    EXPECT_EQ(json::parse(outcome.out).at("exit_code"), 2);
  }
  EXPECT_EQ(run({"bench"}).code, ExitCode::usage);
  EXPECT_TRUE(contains(bench("--batch x").err, "'kvarena bench attention --help'"));
  EXPECT_TRUE(contains(bench("--preset gpt-9").err, "70b-shard"));
  EXPECT_TRUE(contains(bench("--dtype fp8 --device cpu").err, "bf16 or f16, or a GPU"));
}

TEST(BenchOptions, LengthsComeFromAFile) {
  const auto with = [&](const std::string& path) {
    return bench("--device cpu --heads 2/1 --head-dim 16 --json - --quiet --lengths " + path);
  };
  for (const char* text : {"[1, 17, 300]", R"({"note": "x", "lengths": [1, 17, 300]})"}) {
    const TempFile file(text);
    const auto outcome = with(file.path());
    ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    const auto row = json::parse(outcome.out).at("rows").at(0);
    EXPECT_EQ(row.at("lengths"), (std::vector<int>{1, 17, 300}));
    EXPECT_TRUE(row.at("context").is_null());
    EXPECT_EQ(row.at("kv_bytes"), 318 * 2 * 16 * 2);
  }
  for (const char* text : {"", "[", "[]", "[0]", "[1.5]", "[\"1\"]", "[99999999]", "{}", "7"}) {
    const TempFile file(text);
    EXPECT_TRUE(ended(with(file.path()), ExitCode::bad_input, {"a JSON array"})) << text;
  }
  EXPECT_EQ(with("/nonexistent").code, ExitCode::bad_input);
}

TEST(BenchOptions, WhatDoesNotFitIsRefusedWithNumbers) {
  const auto outcome = bench("--device cpu --batch 65536 --context 16384k");
  EXPECT_TRUE(
      ended(outcome, ExitCode::does_not_fit, {"4,503,599,627,374,592 B of K and V", " B free ("}));
  EXPECT_EQ(outcome.out, "");
}

TEST(BenchOptions, AGpuThatIsNotThereIsAnErrorOfTheEnvironment) {
  const auto outcome = bench("--device cuda:1023");
  EXPECT_EQ(outcome.code, ExitCode::environment);
  EXPECT_EQ(outcome.out, "");
}

// ---- a run on the CPU --------------------------------------------------------------------------

TEST(BenchAttention, MeasuresAllCombinationsOnTheCpu) {
  const auto outcome = bench(
      "--device cpu --batch 1,3 --context 20,33 --heads 4/2 --head-dim 32 --dtype f16 "
      "--layers-per-schedule 8 --threads 2 --q-len 2 --window 24 --block-size 7 --json -");
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto object = json::parse(outcome.out);
  EXPECT_EQ(object.at("device"), "host");
  EXPECT_EQ(object.at("threads"), 2);
  EXPECT_EQ(object.at("replays"), 3);
  EXPECT_EQ(object.at("layers_per_schedule"), 8);
  EXPECT_EQ(object.at("rotated_bytes"), 64000);
  EXPECT_EQ(object.at("correct"), true);
  EXPECT_GT(object.at("read_ceiling_gb_per_s"), 0.0);
  const auto& rows = object.at("rows");
  ASSERT_EQ(rows.size(), 4U);
  std::vector<std::pair<int, int>> seen;
  for (const auto& row : rows) {
    seen.emplace_back(row.at("batch"), row.at("context"));
    for (const char* key : {"floor_us", "us", "gb_per_s", "ratio_to_floor", "schedule_us",
                            "fraction_of_read_ceiling", "tables", "calls", "parts"}) {
      EXPECT_GT(row.at(key).get<double>(), 0.0) << key;
    }
    const auto us = row.at("us").get<double>();
    EXPECT_NEAR(row.at("gb_per_s").get<double>(), row.at("kv_bytes").get<double>() / us / 1e3,
                1e-6);
    EXPECT_NEAR(row.at("ratio_to_floor").get<double>(), us / row.at("floor_us").get<double>(),
                1e-6);
    EXPECT_GE(us, row.at("schedule_us").get<double>() / 8);
    EXPECT_EQ(row.at("checked_heads"), row.at("batch").get<int>() * 2 * 4);
    EXPECT_GT(row.at("relative_error").get<double>(), 0.0);
    EXPECT_LE(row.at("relative_error"), row.at("relative_error_limit"));
    EXPECT_EQ(row.at("correct"), true);
    EXPECT_EQ(row.at("dtype"), "f16");
  }
  EXPECT_EQ(seen, (std::vector<std::pair<int, int>>{{1, 20}, {1, 33}, {3, 20}, {3, 33}}));
  EXPECT_TRUE(contains(outcome.err, "floor us")) << "the table moves to standard error";
}

TEST(BenchAttention, MeasuresPromptsBesideOthersOnTheCpu) {
  const auto outcome = bench(
      "--device cpu --batch 2 --q-len 40 --cached 0,100 --heads 4/1 --head-dim 32 --soft-cap 20 "
      "--threads 2 --json -");
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto rows = json::parse(outcome.out).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_TRUE(rows.at(0).at("speed_beside").is_null()) << "a prompt stands alone";
  EXPECT_EQ(rows.at(0).at("flops"), 2 * 4 * 32 * 4 * 820);  // 40 * 41 / 2 pairs a sequence
  EXPECT_EQ(rows.at(0).at("checked_heads"), 2 * 40 * 4);
  EXPECT_EQ(rows.at(1).at("flops"), 2 * 4 * 32 * 4 * 4820);
  EXPECT_EQ(rows.at(1).at("context"), 140);
  EXPECT_EQ(rows.at(1).at("q_len"), 40);
  EXPECT_GT(rows.at(1).at("speed_beside").get<double>(), 0.0);
  // The prompts of as much work beside it are checked too: 2 x 96 tokens.
  EXPECT_EQ(rows.at(1).at("checked_heads"), 2 * (40 + 96) * 4);
  EXPECT_TRUE(rows.at(1).at("fraction_of_matrix_peak").is_null());
}

TEST(BenchAttention, SharedBlocksAreReadOnTheCpuToo) {
  const auto row =
      parsed(bench("--device cpu --batch 5 --context 64 --shared 32 --groups 2 --heads 2/1 "
                   "--head-dim 16 --dtype f16 --json -"))
          .at("rows")
          .at(0);
  EXPECT_EQ(row.at("kv_bytes"), (2 * 32 + 5 * 32) * 2 * 16 * 2);
  EXPECT_EQ(row.at("correct"), true);
}

TEST(BenchAttention, KnownRowsThatACpuCannotMeasureAreLeftOut) {
  const auto outcome = run_line(
      "bench attention --device cpu --prefill --row fp8-1x1k,1x32k --rotate 1MB --replays 1");
  EXPECT_TRUE(ended(outcome, ExitCode::usage, {"2 rows are left out on the CPU", "choose a GPU"}));
}

TEST(BenchAttention, PrintsATableAndWritesTheSameIntoAFile) {
  const TempFile file("");
  const auto outcome =
      bench("--device cpu --batch 2 --context 2k --heads 2/2 --head-dim 16 --json " + file.path());
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("host: reads ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "2/2 D=16     2 x 2k"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
  EXPECT_EQ(json::parse(file.content()).at("rows").size(), 1U);
  EXPECT_EQ(outcome.err, "");
}

TEST(BenchAttention, WhyARunEndedDecidesTheExitCode) {
  auto host = HostDevice::create();
  ASSERT_TRUE(host.is_ok());
  TestConsole test;
  const meter::MeterOptions meter_options;
  const std::string json_target;
  const AttentionBenchRun bench_run{**host, meter_options, {}, json_target};
  EXPECT_EQ(bench_run.report(test.console, "row", unsupported(Resource::dtype, 3)),
            ExitCode::usage);
  EXPECT_EQ(bench_run.report(test.console, "row", insufficient_vram(2, 1)), ExitCode::does_not_fit);
  EXPECT_EQ(bench_run.report(test.console, "row",
                             {StatusCode::device_error, Resource::stream, Option::none, 700}),
            ExitCode::environment);
  EXPECT_TRUE(contains(test.err.str(), "error: row on host: "));
}

// ---- a wrong result ----------------------------------------------------------------------------

/// Gives the figures it was made with.
class FixedMeter final : public meter::AttentionMeter {
 public:
  explicit FixedMeter(const AttentionFigures& figures) : figures_(figures) {}
  Result<ReadCeiling> read_ceiling() override { return ReadCeiling{1'000'000'000, 1000.0}; }
  Result<AttentionFigures> measure(const AttentionProblem& /*problem*/) override {
    return figures_;
  }

 private:
  AttentionFigures figures_;
};

AttentionFigures llama_figures(double error) {
  AttentionFigures figures;
  figures.kv_bytes = 268435456;
  figures.floor_us = 300.0;
  figures.attention_us = 360.0;
  figures.schedule_us = 6.5;
  figures.error = error;
  figures.error_limit = 3.3e-3;
  return figures;
}

TEST(BenchAttention, AWrongResultFailsTheCommandAfterAllRows) {
  auto host = HostDevice::create();
  ASSERT_TRUE(host.is_ok());
  const meter::MeterOptions options;
  const std::string target = "-";
  const std::vector<AttentionProblem> problems(2, {{}, std::vector<std::int32_t>(64, 1024)});
  for (const double error : {1.7e-3, 0.5, std::nan("")}) {
    TestConsole test;
    FixedMeter fixed(llama_figures(error));
    const AttentionBenchRun bench_run{**host, options, problems, target};
    const ExitCode code = bench_run.run(test.console, fixed);
    const bool right = error < 3e-3;
    EXPECT_EQ(code, right ? ExitCode::ok : ExitCode::check_failed) << error;
    const auto object = json::parse(test.out.str());
    EXPECT_EQ(object.at("correct"), right);
    EXPECT_EQ(object.at("rows").size(), 2U);
    EXPECT_EQ(object.at("rows").at(1).at("correct"), right);
    EXPECT_EQ(contains(test.err.str(), "WRONG"), !right);
    EXPECT_EQ(
        contains(test.err.str(), "error: 32/8 D=128, 64 x 1k: the result has a relative error"),
        !right);
  }
}

/// Interrupts the run in its row of this number.
class InterruptedMeter final : public meter::AttentionMeter {
 public:
  InterruptedMeter(std::atomic<bool>& stop, int row) : stop_(stop), left_(row) {}
  Result<ReadCeiling> read_ceiling() override {
    if (left_ == 0) return interrupted();
    return ReadCeiling{1'000'000'000, 1000.0};
  }
  Result<AttentionFigures> measure(const AttentionProblem& /*problem*/) override {
    if (--left_ == 0) return interrupted();
    return llama_figures(1.7e-3);
  }

 private:
  Status interrupted() {
    stop_ = true;
    return failed_precondition(Resource::none);
  }

  std::atomic<bool>& stop_;
  int left_;
};

TEST(BenchAttention, AnInterruptLeavesTheRowsBeforeIt) {
  auto host = HostDevice::create();
  ASSERT_TRUE(host.is_ok());
  const std::string target = "-";
  const std::vector<AttentionProblem> problems(3, {{}, std::vector<std::int32_t>(64, 1024)});
  for (const int row : {0, 1, 3}) {
    std::atomic<bool> stop{false};
    meter::MeterOptions options;
    options.stop = &stop;
    InterruptedMeter meter(stop, row);
    TestConsole test;
    EXPECT_EQ(AttentionBenchRun({**host, options, problems, target}).run(test.console, meter),
              ExitCode::interrupted);
    const auto object = json::parse(test.out.str());
    EXPECT_EQ(object.at("interrupted"), true);
    EXPECT_TRUE(object.at("failure").is_null());
    EXPECT_EQ(object.at("rows").size(), static_cast<std::size_t>(std::max(row - 1, 0)));
    EXPECT_EQ(object.at("read_ceiling_bytes").is_null(), row == 0);
  }
}

// ---- rendering ---------------------------------------------------------------------------------

TEST(BenchOutput, ALineOfTheTable) {
  const AttentionProblem problem{{}, std::vector<std::int32_t>(64, 1024)};
  const Ceilings ceilings{{1'000'000'000, 1000.0}, 989e12};
  const std::string line = table_line(problem, llama_figures(1.7e-3), ceilings, false);
  EXPECT_EQ(line,
            "32/8 D=128   64 x 1k              268.4      300.0      360.0    745.7   1.200   "
            "74.6 %      6.50  1.7e-03\n");
  EXPECT_EQ(line.size(), table_header(false).size());
}

TEST(BenchOutput, TextsOfBatches) {
  const auto text = [](std::vector<std::int32_t> lengths, std::int32_t q_len = 1) {
    AttentionProblem problem{{}, std::move(lengths)};
    problem.shape.q_len = q_len;
    return batch_text(problem);
  };
  EXPECT_EQ(text({5}), "1 x 5");
  EXPECT_EQ(text({330, 65536, 500}), "3 x 330..65536");
  EXPECT_EQ(text(std::vector<std::int32_t>(8, 131072)), "8 x 128k");
  EXPECT_EQ(text({4096, 4096}, 4096), "2 x 4k") << "a prompt";
  EXPECT_EQ(text({8704}, 512), "1 x 512 + 8k");
  AttentionProblem shared{{}, {9216, 9216}};
  shared.shared_tokens = 8192;
  EXPECT_EQ(batch_text(shared), "2 x 9k (8k shared)");
}

TEST(BenchOutput, ALineWithWork) {
  AttentionProblem problem{{}, {8704}};
  problem.shape.q_len = 512;
  problem = meter::with_comparison(std::move(problem));
  ASSERT_EQ(problem.beside.size(), 1U);
  EXPECT_TRUE(shows_work(std::vector<AttentionProblem>{problem}));
  EXPECT_FALSE(shows_work(std::vector<AttentionProblem>{{{}, {8704}}}));
  AttentionFigures figures = llama_figures(1.7e-3);
  figures.kv_bytes = kv_bytes(problem);
  figures.attention_us = 143.34;                              // 70.87 GFLOP: 494.4 TFLOP/s
  figures.beside_us = flops(problem.beside.front()) / 520e6;  // 520 TFLOP/s
  const Ceilings ceilings{{1'000'000'000, 1000.0}, 989e12};
  const std::string line = table_line(problem, figures, ceilings, true);
  EXPECT_EQ(line,
            "32/8 D=128   1 x 512 + 8k           bf16          143.3    494.4   50.0 %   0.951    "
            "  35.7    248.7      300.0    0.478  1.7e-03\n");
  EXPECT_EQ(line.size(), table_header(true).size());
  const json row = json_of(problem, figures, ceilings);
  EXPECT_NEAR(row.at("tflop_per_s"), 494.4, 0.1);
  EXPECT_NEAR(row.at("fraction_of_matrix_peak"), 0.5, 0.001);
  EXPECT_NEAR(row.at("speed_beside"), 0.951, 0.001);
  EXPECT_TRUE(contains(table_line(problem, figures, {}, true), "       -")) << "no data sheet";
}

TEST(BenchOutput, ARowThatDoesNotDependOnTheBatchIsBesideItself) {
  AttentionProblem problem{{}, {8704, 100}};
  problem.name = "one";
  problem.shape.q_len = 16;
  problem = meter::batch_invariant(meter::with_comparison(std::move(problem)));
  EXPECT_TRUE(problem.batch_invariant);
  ASSERT_EQ(problem.beside.size(), 1U);
  const AttentionProblem& other = problem.beside.front();
  EXPECT_FALSE(other.batch_invariant);
  EXPECT_EQ(other.lengths, problem.lengths);
  EXPECT_EQ(other.shape.q_len, 16);
  EXPECT_EQ(other.name, "");
  EXPECT_EQ(json_of(problem, llama_figures(1.7e-3), {}).at("batch_invariant"), true);
}

TEST(BenchOutput, TheDataSheetOfACard) {
  const auto name = [](const char* device, std::int32_t num_sms) {
    const auto* gpu = data_sheet_of(device, num_sms);
    return gpu == nullptr ? "" : gpu->name;
  };
  EXPECT_EQ(name("NVIDIA H200", 132), "H200-SXM");
  EXPECT_EQ(name("NVIDIA H100 PCIe", 114), "H100-PCIe");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3", 132), "H100-SXM");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090", 128), "RTX-4090");
  EXPECT_EQ(name("NVIDIA H200", 66), "") << "a part of a card";
  EXPECT_EQ(name("", 132), "");
}

TEST(BenchOutput, PeersAreKnownRowsAndNothingIsMeasured) {
  const auto one = run_line("bench attention --peers");
  EXPECT_EQ(one.code, ExitCode::ok);
  EXPECT_TRUE(
      contains_all(one.out, {"NOTHING BELOW WAS MEASURED IN THIS RUN", "71.0   1.181  cuDNN\n"}));
  EXPECT_EQ(one.err, "") << "no device is opened";
  EXPECT_TRUE(
      contains(run_line("bench attention --peers --batch 3").out, "None of the chosen rows"));
  const auto peers = [](std::vector<std::string> more) {
    std::vector<std::string> all{"bench", "attention", "--peers", "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    return json::parse(run(all).out);
  };
  EXPECT_EQ(peers({"--preset", "all"}).at("rows").size(), 22U);
  EXPECT_EQ(peers({"--preset", "all", "--dtype", "fp8"}).at("rows").size(), 2U);
  EXPECT_EQ(peers({"--preset", "phi-3-mini"}).at("rows").size(), 4U);
  EXPECT_EQ(peers({"--preset", "Llama-3.1-8B"}).at("rows").size(), 1U) << "64 x 1k";
  EXPECT_EQ(peers({"--preset", "qwen2.5-0.5b", "--batch", "32", "--context", "4k"})
                .at("rows")
                .at(0)
                .at("best_public_kernel"),
            "cuDNN, XQA");
  EXPECT_EQ(peers({}).at("measured_in_this_run"), false);
}

// ---- on a GPU ----------------------------------------------------------------------------------

TEST(BenchAttentionGpu, EveryShapeOfTheReportsIsRightAndAutoTakesTheGpu) {
  KVARENA_NEEDS_GPU();
  for (const char* dtype : {"bf16", "f16"}) {
    const auto outcome =
        run({"bench", "attention", "--preset", "all", "--batch", "1,5", "--context", "1,500,3k",
             "--dtype", dtype, "--rotate", "64MB", "--replays", "3", "--json", "-"});
    ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "warning"));
    const auto object = json::parse(outcome.out);
    EXPECT_TRUE(object.at("device").get<std::string>().starts_with("cuda:0")) << object.dump(2);
    ASSERT_EQ(object.at("rows").size(), 24U);
    for (const auto& row : object.at("rows")) {
      // Over one token the output is V itself.
      if (row.at("context") != 1) {
        EXPECT_GT(row.at("relative_error").get<double>(), 0.0) << row.dump(2);
      }
      EXPECT_EQ(row.at("checked_heads"), row.at("batch").get<int>() * row.at("q_heads").get<int>());
      EXPECT_GT(row.at("us").get<double>(), 0.5) << row.dump(2);
    }
  }
}

TEST(BenchAttentionGpu, WindowsQueryTokensAndRaggedLengths) {
  KVARENA_NEEDS_GPU();
  const TempFile file("[4, 17, 700, 12000, 64]");
  const auto row = parsed(run({"bench", "attention", "--device", "cuda:0", "--lengths", file.path(),
                               "--window", "256", "--q-len", "4", "--block-size", "32", "--rotate",
                               "64MB", "--replays", "3", "--json", "-"}))
                       .at("rows")
                       .at(0);
  EXPECT_EQ(row.at("correct"), true) << row.dump(2);
  EXPECT_EQ(row.at("checked_heads"), 5 * 4 * 32);
}

TEST(BenchAttentionGpu, PromptsOfEveryKindAreRight) {
  KVARENA_NEEDS_GPU();
  for (const std::string& line :
       texts("--head-dim 80 --q-len 200 --context 200,500", "--heads 16/1 --cached 300 --q-len 16",
             "--head-dim 256 --dtype fp8 --q-len 100 --cached 0,77", "--heads 4/4 --head-dim 24",
             "--q-len 300 --cached 0 --window 128 --soft-cap 30 --dtype f16",
             "--batch 6 --shared 128 --groups 2 --context 300", "--block-size 5 --q-len 64")) {
    const auto object = parsed(
        run_line("bench attention --device cuda:0 --rotate 1MB --replays 3 " + line + " --json -"));
    for (const auto& row : object.at("rows")) {
      EXPECT_EQ(row.at("correct"), true) << row.dump(2);
      EXPECT_GT(row.at("relative_error").get<double>(), 0.0);
    }
  }
}

TEST(BenchAttentionGpu, RowsThatDoNotDependOnTheBatchAreRight) {
  KVARENA_NEEDS_GPU();
  for (const std::string& line : texts("--batch 3,40 --context 3000", "--columns --row 32x2k-q4")) {
    const auto object = parsed(run_line("bench attention --device cuda:0 --batch-invariant " +
                                        line + " --rotate 1MB --replays 3 --json -"));
    for (const auto& row : object.at("rows")) {
      EXPECT_EQ(row.at("correct"), true) << row.dump(2);
      EXPECT_EQ(row.at("batch_invariant"), true);
      EXPECT_GT(row.at("speed_beside"), 0.0);
    }
  }
}

TEST(BenchAttentionGpu, KnownRowsAreComparedAndRight) {
  KVARENA_NEEDS_GPU();
  const auto object = parsed(
      run({"bench", "attention", "--device", "cuda:0", "--prefill", "--columns", "--shared-prefix",
           "--row", "64x256,fp8-1x1k,1x512+8k,mixed-among,512x512,32x3k+1k-in-8", "--replays", "3",
           "--json", "-"}));
  ASSERT_EQ(object.at("rows").size(), 6U);
  for (const auto& row : object.at("rows")) {
    EXPECT_EQ(row.at("correct"), true) << row.dump(2);
    const bool is_alone = row.at("name") == "64x256" || row.at("name") == "512x512";
    EXPECT_EQ(row.at("speed_beside").is_null(), is_alone) << row.dump(2);
  }
}

}  // namespace
}  // namespace kvarena::tools
