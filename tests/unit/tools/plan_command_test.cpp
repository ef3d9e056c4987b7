// `kvarena plan`: what it says, its exit codes, its messages.

#include "base/grouped.hpp"
#include "kvarena/capacity/gpu_spec.hpp"
#include "support/safetensors_writer.hpp"
#include "support/test_files.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>
#include <utility>

namespace kvarena::tools {
namespace {

using nlohmann::json;

/// `kvarena plan` with `words`, separated by blanks.
Outcome plan(const std::string& words) { return run_line("plan " + words); }

json planned(const std::string& words) { return json::parse(plan(words + " -q --json -").out); }

TEST(PlanCommand, WritesEveryFigure) {
  const json p = planned("--model Llama-3.1-8B --gpu RTX-4090 --context 4096");
  EXPECT_EQ(p.at("parameters"), 8'030'261'248);
  EXPECT_EQ(p.at("weights_bytes"), 16'060'522'496);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 131'072);
  EXPECT_EQ(p.at("kv_fixed_bytes_per_sequence"), 0);
  EXPECT_EQ(p.at("block_bytes"), 2'097'152);
  EXPECT_EQ(p.at("max_batch"), p.at("num_blocks").get<std::int64_t>() / 256);
  EXPECT_EQ(p.at("limited_by"), "kv_cache");
  EXPECT_EQ(p.at("total_bytes"), p.at("weights_bytes").get<std::int64_t>() +
                                     p.at("kv_cache_bytes").get<std::int64_t>() +
                                     p.at("activation_bytes").get<std::int64_t>() +
                                     p.at("overhead_bytes").get<std::int64_t>());
  EXPECT_GE(p.at("max_context"), 4096);
  EXPECT_EQ(p.at("fits"), true);
  EXPECT_FALSE(p.contains("explain"));
}

TEST(PlanCommand, ShowsBothRetentions) {
  const std::string words = "--model Phi-3-mini-4k-instruct --gpu 24GiB";
  const json p = planned(words);
  EXPECT_EQ(p.at("full_bytes_at_context"), 1'610'612'736);
  EXPECT_EQ(p.at("model_bytes_at_context"), 805'306'368);
  EXPECT_TRUE(contains(plan(words).out,
                       "all tokens kept 1,610,612,736 B, those in the windows "
                       "805,306,368 B"));
  EXPECT_EQ(p.at("retention"), "model");
  EXPECT_EQ(planned(words + " --retention model"), p) << "it is the default";
  EXPECT_GT(p.at("max_batch"), planned(words + " --retention full").at("max_batch"));
}

TEST(PlanCommand, TheCacheOfWindowsIsWhatItsLinesSay) {
  for (const std::int64_t batch : {1, 4}) {
    const std::string words = "--model Gemma-3-27B --gpu H200-SXM --retention model --batch " +
                              std::to_string(batch) + " --context 32768";
    const json p = planned(words);
    const auto each = p.at("bytes_per_sequence").get<std::int64_t>();
    const auto step = p.at("step_bytes").get<std::int64_t>();
    EXPECT_GT(step, 0);
    const std::string line = "at 32,768 tokens " + grouped(each) + " B at most" +
                             (batch > 1 ? " x 4" : "") + " + " + grouped(step) +
                             " B for a step's tokens";
    EXPECT_TRUE(contains_all(plan(words).out, {line, grouped(batch * each + step)}));
  }
}

TEST(PlanCommand, SaysWhatACacheCannotHoldYet) {
  const std::string sparse = "--model DeepSeek-V3.2 --gpu H200-SXM --tp 8 --context 8192";
  const json p = planned(sparse);
  EXPECT_EQ(p.at("fits"), true);
  EXPECT_TRUE(p.at("settings_refused").is_null());
  EXPECT_EQ(p.at("settings").at("num_pages"), p.at("num_blocks")) << "a page is one block";
  const std::string int8 =
      "--model Llama-3.1-8B --gpu H200-SXM --context 8192 --kv-dtype int8 --kv-scales "
      "per_token_head";
  EXPECT_TRUE(contains(planned(int8).at("settings_refused"), "no scales of int8"));
  const std::string recurrent = "--model Qwen3.5-27B --gpu H200-SXM --context 8192";
  const json states = planned(recurrent);
  EXPECT_TRUE(states.at("settings_refused").is_null());
  EXPECT_EQ(states.at("settings").at("num_pages"), states.at("num_pages"));
  EXPECT_EQ(states.at("step_bytes"), 153'944'064) << "the second state of a step";
  EXPECT_TRUE(contains(plan(recurrent).out, "153,944,064 B + 0 x tokens"));
  const json windows = planned("--model Gemma-3-27B --gpu H200-SXM --retention model");
  EXPECT_TRUE(windows.at("settings_refused").is_null());
  EXPECT_EQ(windows.at("settings").at("num_pages"), windows.at("num_pages"));
  EXPECT_EQ(windows.at("settings").at("page_sequence_tokens"), 131'072);
  const json amd = planned("--model Llama-3.1-8B --gpu MI300X --context 8192");
  EXPECT_EQ(amd.at("settings_refused"), "kvarena runs on NVIDIA GPUs and on the CPU");
  EXPECT_EQ(amd.at("notes"), json::array()) << "nothing of nvidia-smi";
}

TEST(PlanCommand, SettingsAreThoseThatWerePlannedFor) {
  const std::string words =
      "--model Phi-3-mini-4k-instruct --gpu RTX-4090 --max-batched-tokens 4096 --retention full";
  const json p = planned(words);
  const json expected = {{"num_blocks", p.at("num_blocks")},
                         {"block_size_tokens", 16},
                         {"max_sequences", 256},
                         {"max_batch_rows", 256},
                         {"max_sequence_tokens", 4096},
                         {"max_step_tokens", 4096}};
  EXPECT_EQ(p.at("settings"), expected);
  EXPECT_TRUE(contains(plan(words).out,
                       "max_sequences 256, max_batch_rows 256,\n    max_sequence_tokens 4096, "
                       "max_step_tokens 4096\n"));
  // More at a time than tables and logits are planned for: said, and planned for when asked.
  const std::string many = "--model Qwen2.5-0.5B --gpu H200-SXM --context 1024";
  const json few = planned(many);
  const auto most = std::to_string(few.at("max_batch").get<int>());
  EXPECT_EQ(few.at("settings").at("max_sequences"), 256);
  EXPECT_TRUE(contains(plan(many).out, "are for 256 at a time; for more: --batch " + most));
  EXPECT_EQ(planned(many + " --batch " + most).at("settings").at("max_sequences"),
            few.at("max_batch"));
}

TEST(PlanCommand, PrintsNoSettingsForWhatDoesNotFit) {
  const std::string words = "--model Phi-3-mini-4k-instruct --gpu RTX-4090 --context 8192";
  const Outcome text = plan(words);
  EXPECT_EQ(text.code, ExitCode::does_not_fit);
  EXPECT_FALSE(contains(text.out, "num_blocks"));
  const json p = planned(words);
  EXPECT_TRUE(p.at("settings").is_null());
  EXPECT_EQ(p.at("settings_refused"), "what was asked for does not fit");
}

TEST(PlanCommand, TellsTheBudgetFromWhatIsLeftUnused) {
  const std::string words = "--model Llama-3.1-8B --gpu 24GiB --context 4096 --batch ";
  const json p = planned(words + "1");
  EXPECT_EQ(p.at("budget_free_bytes"),
            p.at("budget_bytes").get<std::int64_t>() - p.at("total_bytes").get<std::int64_t>());
  const Outcome fits = plan(words + "1");
  EXPECT_TRUE(contains_all(
      fits.out, {"  free of budget ", "  left unused         2,576,980,378       2457.6"}));
  EXPECT_FALSE(contains(fits.out, "short of"));
  const json short_of = planned(words + "99");
  const auto missing = short_of.at("asked_total_bytes").get<std::int64_t>() -
                       short_of.at("budget_bytes").get<std::int64_t>();
  EXPECT_TRUE(contains(plan(words + "99").out,
                       "DOES NOT FIT: 99 x 4,096 tokens, short of " + grouped(missing) + " B\n"));
}

TEST(PlanCommand, DoesNotFitAndSaysWhatWould) {
  const Outcome seen = plan("--model Llama-3.1-8B --gpu L4 --batch 1000 --context 4096 --json -");
  EXPECT_EQ(seen.code, ExitCode::does_not_fit);
  const json p = json::parse(seen.out);
  EXPECT_EQ(p.at("fits"), false);
  ASSERT_GE(p.at("changes_that_fit").size(), 1U);
  EXPECT_TRUE(contains(seen.err, "DOES NOT FIT"));
  for (const json& change : p.at("changes_that_fit")) {
    std::string again = "--model Llama-3.1-8B --gpu L4 ";
    const auto words = change.get<std::string>();
    if (!words.starts_with("--batch")) again += "--batch 1000 ";
    if (!words.starts_with("--context")) again += "--context 4096 ";
    EXPECT_EQ(plan(again + words).code, ExitCode::ok) << words;
  }
}

TEST(PlanCommand, ExplainsWithTheNumbersIn) {
  const Outcome seen = plan("--model Qwen2.5-0.5B --gpu L4 --context 2048 --explain");
  EXPECT_EQ(seen.code, ExitCode::ok);
  EXPECT_TRUE(
      contains_all(seen.out, {"494,032,768 parameters x 2 B (bf16) = 988,065,536 B",
                              "16 tokens x 24 layers x 2 heads x (64 + 64) elements x 2 B = "
                              "196,608 B",
                              capacity::find_gpu("L4")->memory_source}));
}

TEST(PlanCommand, ComparesModelsAndGpus) {
  const Outcome seen = plan("--model Llama-3.1-8B,Gemma-3-27B --gpu L4,H200-SXM --context 8192");
  EXPECT_EQ(seen.code, ExitCode::ok) << "some fit";
  EXPECT_EQ(std::ranges::count(seen.out, '\n'), 5);
  EXPECT_TRUE(contains(seen.out, "DOES NOT FIT"));
  const json p = planned("--model Llama-3.1-8B,Gemma-3-27B --gpu L4 --context 8192");
  EXPECT_EQ(p.at("plans").size(), 2U);
  EXPECT_EQ(plan("--model Gemma-3-27B,Llama-3.1-70B --gpu L4").code, ExitCode::does_not_fit);
}

TEST(PlanCommand, ComparesWithoutWhatCannotBePlanned) {
  const std::string words =
      "--model Qwen2.5-0.5B,GLM-5,Llama-3.1-8B,GLM-4.5-Air --gpu H200-SXM --tp 8";
  const Outcome seen = plan(words);
  EXPECT_EQ(seen.code, ExitCode::ok);
  EXPECT_TRUE(contains_all(seen.out, {"cannot be split over 8 ranks", "weights unknown"}));
  EXPECT_TRUE(contains(seen.out, " ~")) << "weights from a rounded count\n";
  const json plans = planned(words).at("plans");
  EXPECT_TRUE(contains(plans[0].at("refused"), "14 query heads over 2 KV heads"));
  EXPECT_EQ(plans[0].at("fits"), false);
  EXPECT_EQ(plans[1].at("fits"), nullptr);
  EXPECT_EQ(plans[2].at("refused"), nullptr);
  EXPECT_EQ(plans[2].at("fits"), true);
  EXPECT_EQ(plan("--model Qwen2.5-0.5B --tp 8 --gpu H200-SXM,B200").code, ExitCode::usage)
      << "none is planned";
}

TEST(PlanCommand, TakesParametersThatNoFileTells) {
  const std::string words = "--gpu H200-SXM --tp 8 --context 8192 --model GLM-5 ";
  const json p = planned(words + "--parameters 744000000000 --weights-dtype fp8_e4m3");
  EXPECT_EQ(p.at("parameters_about"), 744'000'000'000);
  EXPECT_EQ(p.at("parameters_source"), "--parameters");
  EXPECT_NEAR(p.at("weights_bytes").get<double>(), 93e9, 1e6);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 78 * (512 + 64) * 2);
  const json known = planned("--gpu L4 --context 8192 --model Llama-3.1-8B --parameters 1");
  EXPECT_EQ(known.at("parameters"), 8'030'261'248);
  EXPECT_TRUE(contains(known.at("notes")[0], "--parameters is not used"));
  const json stated = planned(words + "--weights-bytes 756GB");
  EXPECT_EQ(stated.at("weights_bytes"), 756'000'000'000 / 8);
  EXPECT_EQ(stated.at("weights_exact"), true);
  EXPECT_EQ(planned("--gpu L4 --model Llama-3.1-8B --weights-bytes 9GB").at("weights_bytes"),
            9'000'000'000)
      << "whatever else tells them";
}

TEST(PlanCommand, PlansKAndVWhereWeightsAreUnknown) {
  const std::string words = "--gpu H200-SXM --tp 8 --context 8192 --model GLM-5";
  const Outcome text = plan(words);
  EXPECT_EQ(text.code, ExitCode::ok) << text.err;
  EXPECT_TRUE(contains_all(
      text.out, {"  weights                       unknown\n", "78 layers  0 + 100,152 B x tokens",
                 "give --weights-bytes, --parameters, or a folder"}));
  EXPECT_FALSE(contains(text.out, "num_blocks"));
  EXPECT_FALSE(contains(text.out, "fits:"));
  const json p = planned(words);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 78 * (512 + 64) * 2);
  for (const char* figure : {"weights_bytes", "total_bytes", "num_blocks", "max_batch", "fits",
                             "limited_by", "settings"}) {
    EXPECT_EQ(p.at(figure), nullptr) << figure;
  }
  EXPECT_TRUE(contains(p.at("weights_unknown"), "no formula for the architecture"));
  const Outcome none = plan("--gpu 1GiB --context 202752 --model GLM-5");
  EXPECT_EQ(none.code, ExitCode::does_not_fit);
  EXPECT_TRUE(contains(none.out, "DOES NOT FIT, even without weights"));
}

TEST(PlanCommand, PlansConfigurationsOfFamiliesWithoutAFormula) {
  const std::string rest =
      R"(, "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
      "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
      "max_position_embeddings": 2048, "torch_dtype": "bfloat16"})";
  for (const char* family : {"granite", "glm4", "internlm2", "opt", "gpt2"}) {
    const test::TempFile config(R"({"head_dim": 32, "model_type": ")" + std::string(family) + '"' +
                                rest);
    const json p = planned("--gpu L4 --model " + config.path());
    EXPECT_EQ(p.at("kv_bytes_per_token"), 4 * 2 * (32 + 32) * 2) << family;
    EXPECT_EQ(p.at("weights_bytes"), nullptr) << family;
  }
}

TEST(PlanCommand, SaysWhyAPathCannotBeRead) {
  const ConfigWorld folder;
  std::filesystem::create_symlink("b", folder.path("work/a"));
  std::filesystem::create_symlink("a", folder.path("work/b"));
  std::filesystem::create_symlink("nowhere", folder.path("work/dangling"));
  for (const auto& [name, reason] :
       {std::pair{"work/a", "symbolic links"}, std::pair{"work/a/config.json", "symbolic links"},
        std::pair{"work/dangling", "No such file"}}) {
    const Outcome seen = plan("--gpu L4 --json - --model " + folder.path(name));
    EXPECT_TRUE(ended(seen, ExitCode::bad_input, {reason})) << name;
    EXPECT_TRUE(contains(json::parse(seen.out).at("failure"), reason)) << seen.out;
  }
}

TEST(PlanCommand, PlansFilesOfLayersThatNoFormulaCounts) {
  const test::TempFile config(R"({"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048,
      "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8, "vocab_size": 32128,
      "torch_dtype": "bfloat16"})");
  const std::string words = "--gpu L4 --context 512 --model " + config.path();
  const json p = planned(words + " --parameters 60500000");
  EXPECT_EQ(p.at("groups")[1].at("kind"), "cross attention");
  EXPECT_EQ(p.at("kv_fixed_bytes_per_sequence"), 512 * 6 * 8 * (64 + 64) * 2);
}

TEST(PlanCommand, TakesAModelByNumbers) {
  const std::string shape = "--layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --gpu 8GiB ";
  const json p = planned(shape + "--parameters 494032768 --context 2048");
  EXPECT_EQ(p.at("weights_bytes"), 988'065'536);
  EXPECT_EQ(p.at("kv_bytes_per_token"), 12'288);
  EXPECT_EQ(planned(shape + "--ffn 4864 --vocab 151936 --context 2048").at("parameters_source"),
            "from shapes");
  // Of a shape alone no bias is known: Qwen2.5-0.5B without 24 x (896 + 2 x 128).
  EXPECT_EQ(planned(shape + "--ffn 4864 --vocab 151936 --context 2048 --tied").at("parameters"),
            494'032'768 - 27'648);
}

TEST(PlanCommand, NamesEveryTypeOfTheWeights) {
  const ConfigWorld folder;
  folder.write("work/config.json",
               R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
               "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
               "vocab_size": 100, "max_position_embeddings": 256, "torch_dtype": "bfloat16"})");
  folder.write(
      "work/model.safetensors",
      test::safetensors_bytes(R"({"a":{"dtype":"BF16","shape":[100],"data_offsets":[0,200]},
        "b":{"dtype":"F8_E4M3","shape":[300],"data_offsets":[200,500]},
        "c":{"dtype":"F32","shape":[10],"data_offsets":[500,540]}})",
                              540));
  const std::string words = "--gpu 8GiB --model " + folder.path("work");
  const json p = planned(words + " --explain");
  const json types = {
      {{"type", "F8_E4M3"}, {"tensors", 1}, {"elements", 300}, {"bytes", 300}},
      {{"type", "BF16"}, {"tensors", 1}, {"elements", 100}, {"bytes", 200}},
      {{"type", "F32"}, {"tensors", 1}, {"elements", 10}, {"bytes", 40}},
  };
  EXPECT_EQ(p.at("weights_by_dtype"), types);
  EXPECT_EQ(p.at("weights_dtype"), "fp8_e4m3 + bf16 + f32");
  EXPECT_EQ(p.at("explain")[1].at("name"), "weights in BF16");
  EXPECT_EQ(p.at("explain")[1].at("value"), 200);
  EXPECT_TRUE(contains_all(plan(words + " --explain").out,
                           {": weights fp8_e4m3 + bf16 + f32, K and V bf16",
                            "1 tensors of 300 elements in the headers = 300 B"}));
  const json preset = planned("--gpu L4 --model Qwen2.5-0.5B --context 64");
  EXPECT_EQ(preset.at("weights_by_dtype"), json::array());
  EXPECT_EQ(preset.at("weights_dtype"), "bf16");
}

TEST(PlanCommand, SaysWhatActivationsLeaveOut) {
  const std::string shape =
      "--layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --parameters 494032768 --gpu 8GiB "
      "--context 2048 ";
  const auto notes = [&](const std::string& more) { return planned(shape + more).at("notes"); };
  EXPECT_EQ(notes("")[0],
            "activations leave out logits and the MLP: --ffn and --vocab are not given");
  EXPECT_EQ(notes("--vocab 151936")[0], "activations leave out the MLP: --ffn is not given");
  EXPECT_EQ(notes("--ffn 4864")[0], "activations leave out logits: --vocab is not given");
  EXPECT_EQ(notes("--ffn 4864 --vocab 151936"), json::array());
  EXPECT_EQ(planned(shape + "--ffn 4864 --vocab 151936").at("activation_bytes"), 268'435'456);
  EXPECT_TRUE(contains(plan(shape).out, "\nnotes\n  activations leave out logits and the MLP"));
}

TEST(PlanCommand, ItsExamplesArePlanned) {
  EXPECT_EQ(plan("--layers 24 --kv-heads 2 --q-heads 14 --head-dim 64 --ffn 4864 --vocab 151936 "
                 "--tied --context 2048 --gpu L4")
                .code,
            ExitCode::ok);
  EXPECT_EQ(plan("--model GLM-5 --parameters 744000000000 --gpu H200-SXM --tp 16").code,
            ExitCode::ok);
}

TEST(PlanCommand, RoundsTheSharedMemoryDown) {
  const auto budget = [](const std::string& share) {
    return planned("--model Qwen2.5-0.5B --gpu 1000GB --utilization " + share).at("budget_bytes");
  };
  EXPECT_EQ(budget("0.9"), 900'000'000'000);
  EXPECT_EQ(budget("0.57"), 570'000'000'000) << "0.57 x 1000 is less than 570 in double";
  EXPECT_EQ(budget("0.9999"), 999'000'000'000);
  EXPECT_EQ(budget("0.8999"), 899'000'000'000);
  EXPECT_EQ(budget("1"), 1'000'000'000'000);
  EXPECT_EQ(budget("0.001"), 1'000'000'000);
}

TEST(PlanCommand, AFailedWriteWinsOverWhatDoesNotFit) {
  const Outcome seen = plan("--model Llama-3.1-70B --gpu L4 --json /nonexistent/x");
  EXPECT_EQ(seen.code, ExitCode::environment);
  EXPECT_TRUE(contains(seen.out, "DOES NOT FIT"));
}

TEST(PlanCommand, RefusesRanksThatTheHeadsCannotBeSplitOver) {
  const auto tp = [](const std::string& ranks) {
    return plan("--model Llama-3.1-8B --gpu RTX-4090 --context 4096 --tp " + ranks);
  };
  EXPECT_EQ(tp("4").code, ExitCode::ok);
  for (const char* ranks : {"3", "64"}) {
    const Outcome seen = tp(ranks);
    EXPECT_EQ(seen.code, ExitCode::usage);
    EXPECT_EQ(seen.out, "");
    EXPECT_TRUE(contains_all(seen.err, {"32 query heads over 8 KV heads cannot be split",
                                        "expected: --tp with 1, 2, 4, 8, 16 or 32"}));
  }
}

TEST(PlanCommand, RefusesNonsenseInWordsAndAsOneObject) {
  const auto refused = [](const std::string& words, std::string_view says,
                          ExitCode code = ExitCode::usage) {
    const Outcome plain = plan(words);
    EXPECT_TRUE(ended(plain, code, {says})) << words;
    EXPECT_EQ(plain.out, "") << words;
    const Outcome seen = plan(words + " --json -");
    EXPECT_TRUE(ended(seen, code, {says})) << words;
    const json object = json::parse(seen.out);
    EXPECT_EQ(object.at("exit_code"), static_cast<int>(code)) << words;
    const std::string told = std::string(object.at("failure")) +
                             std::string(object.at("expected")) + std::string(object.at("advice"));
    EXPECT_TRUE(contains(told, says)) << words;
  };
  refused("--gpu L4", "no model to plan for");
  refused("--model Llama-3.1-8b --layers 3 --gpu L4", "excludes --");
  refused("--parameters 1 --gpu L4", "no model to plan for");
  refused("--model Lama --gpu L4", "no built-in model");
  refused("--model Llama-3.9 --gpu L4", "did you mean Llama-3.1-405B");
  refused("--model , --gpu L4", "an empty name");
  refused("--model Qwen3-8B --gpu L4,,A10", "an empty name");
  const test::TempFile config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 5, "vocab_size": 128,
      "num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 2048})");
  refused("--model " + config.path() + " --gpu L4", "24 query heads over 5 KV heads");
  refused("--model Llama-3.1-8B --gpu L5", "H200-SXM");
  refused("--model Llama-3.1-8B --gpu 0B", "one of A10");
  refused("--model Llama-3.1-8B --gpu L4 --kv-dtype f17", "q8_0");
  refused("--model Llama-3.1-8B --gpu L4 --utilization 1.5", "--utilization");
  refused("--model Llama-3.1-8B --gpu L4 --context 0", "--context");
  refused("--model Llama-3.1-8B --gpu h100", "one of H100-SXM, H100-PCIe");
  refused("--model Llama-3.1-8B --gpu 80", "80 is 80 B, less than 1 MiB");
  refused("--model Llama-3.1-8B --gpu L4 --pp 33", "--pp 33: the model has 32 layers");
  refused("--model Llama-3.1-8B --gpu L4 --kv-scales per_token_head", "per_token_head for bf16");
  refused("--layers 2 --q-heads 14 --kv-heads 3 --head-dim 64 --parameters 9 --gpu L4",
          "14 query heads over 3 KV heads");
  refused("--model Llama-3.1-8B --gpu L4 --kv-dtype q4_K",
          "K and V as q4_K: blocks of 256 elements do not divide heads of 128");
  refused("--layers 2 --kv-heads 3 --head-dim 64 --parameters 9 --gpu L4", "no --context");
  refused("--layers 3 --gpu L4", "--kv-heads, --head-dim missing");
  refused("--model Llama-3.1-8B --gpu L4 --tp 3", "cannot be split over 3 ranks");
  refused("--model Llama-3.1-8B --gpu L4 --trace /no/such/file", "/no/such", ExitCode::bad_input);
}

TEST(PlanCommand, SaysWhereNumbersEnd) {
  const Outcome seen = plan(
      "--layers 4096 --kv-heads 4096 --head-dim 4096 --parameters 9 --gpu 80GiB "
      "--context 2147483647 --batch 16777216");
  EXPECT_EQ(seen.code, ExitCode::does_not_fit);
  EXPECT_TRUE(contains(seen.out, "short of more than 2^63 - 1 B"));
  EXPECT_FALSE(contains(seen.out, "9,223,3"));
}

TEST(PlanCommand, NamesWhatItKnows) {
  EXPECT_TRUE(contains_all(plan("--list").out, {"Phi-3-mini-4k-instruct", "H200-SXM"}));
  const json list = parsed(plan("--list --json -"));
  EXPECT_EQ(list.at("models").size(), 36U);
  EXPECT_EQ(list.at("gpus").size(), capacity::gpu_presets().size());
  EXPECT_EQ(list.at("gpus")[0].at("name"), "A10");
}

TEST(PlanCommand, StatedWeightsHoldWhateverTheirType) {
  for (const std::string& model :
       texts("--layers 32 --kv-heads 8 --head-dim 128", "--model Llama-3.1-8B")) {
    const std::string words = model + " --gpu L4 --weights-bytes 100GiB --context 10";
    const Outcome wide = plan(words);
    EXPECT_EQ(wide.code, ExitCode::does_not_fit) << wide.err;
    EXPECT_FALSE(contains(wide.out, "--weights-dtype"));
    const json narrow = planned(words + " --weights-dtype q8_0");
    EXPECT_EQ(narrow.at("weights_bytes"), std::int64_t{100} << 30) << model;
    EXPECT_EQ(narrow.at("fits"), false);
    EXPECT_TRUE(contains(narrow.at("notes").dump(), "--weights-dtype is not used"));
  }
}

TEST(PlanCommand, SumsPastSixtyThreeBitsAreNeverLessThanTheirParts) {
  const Outcome seen = plan("--model Llama-3.1-8B --gpu L4 --weights-bytes 9223372036854775807");
  std::istringstream lines(seen.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool is_rest = line.starts_with("  free of budget");
    if (!is_rest && !line.starts_with("  subtotal") && !line.starts_with("  total")) continue;
    ++rows;
    const std::string figure = is_rest ? "none" : "more than 2^63 - 1";
    EXPECT_NE(line.find(figure), line.rfind(figure)) << line;  // in both columns
  }
  EXPECT_EQ(rows, 3) << seen.out;
}

}  // namespace
}  // namespace kvarena::tools
