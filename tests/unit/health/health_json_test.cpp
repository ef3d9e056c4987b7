#include "health/render/health_json.hpp"

#include "sample_report.hpp"

#include <gtest/gtest.h>

namespace kvarena {
namespace {

using test::kSecond;

TEST(HealthJson, HealthyProcessInFewFields) {
  const Json json = health_json(test::sample_report());
  EXPECT_EQ(to_text(json),
            "{\"status\":\"healthy\",\"resident\":true,\"policy\":\"vram_only\","
            "\"allocations_checked\":7,\"vram_bytes_used\":600,\"last_check_secs\":5.0,"
            "\"usage\":{\"ModelWeights\":300,\"KVCache\":200,\"IntermediateBuffers\":100,"
            "\"Unknown\":0},\"pressure\":\"elevated\",\"reasons\":[]}\n");
}

TEST(HealthJson, ReasonsSayWhatAndSinceWhen) {
  HealthReport report = test::sample_report();
  report.healthy = false;
  report.resident = false;
  report.reasons = {
      {HealthReasonCode::residency_violated, "VRAM residency violated: 0x1", 88 * kSecond},
      {HealthReasonCode::ticket_late, "ticket 77", 99 * kSecond}};
  const Json json = health_json(report);
  EXPECT_EQ(json["status"], "unhealthy");
  EXPECT_EQ(json["resident"], false);
  ASSERT_EQ(json["reasons"].size(), 2u);
  EXPECT_EQ(json["reasons"][0]["code"], "residency_violated");
  EXPECT_EQ(json["reasons"][0]["text"], "VRAM residency violated: 0x1");
  EXPECT_EQ(json["reasons"][0]["since_secs"], 12.0);
  EXPECT_EQ(json["reasons"][1]["code"], "ticket_late");
}

TEST(HealthJson, BeforeACheckAndWithoutDevices) {
  const Json json = health_json(HealthReport{});
  EXPECT_EQ(json["status"], "unhealthy");
  EXPECT_TRUE(json["last_check_secs"].is_null());
  EXPECT_TRUE(json["policy"].is_null());
  EXPECT_EQ(json["vram_bytes_used"], 0);
  EXPECT_EQ(json["pressure"], "normal");
}

TEST(HealthJson, OneDeviceThatAllowsHostMemoryNamesThePolicy) {
  HealthReport report = test::sample_report();
  report.devices.push_back(test::sample_device());
  report.devices[1].policy = ResidencyPolicy::allow_host;
  const Json json = health_json(report);
  EXPECT_EQ(json["policy"], "allow_host");
  EXPECT_EQ(json["allocations_checked"], 14);
  EXPECT_EQ(json["vram_bytes_used"], 1200);
  EXPECT_EQ(json["usage"]["KVCache"], 400);
}

TEST(HealthJson, TimeThatRunsBackIsZero) {
  HealthReport report = test::sample_report();
  report.now_ns = 90 * kSecond;
  EXPECT_EQ(health_json(report)["last_check_secs"], 0.0);
}

TEST(HealthJson, BytesThatAreNoTextDoNotThrow) {
  HealthReport report = test::sample_report();
  report.reasons = {{HealthReasonCode::device_lost, "\xff\xfe broken", 0}};
  EXPECT_NE(to_text(health_json(report)).find("broken"), std::string::npos);
}

}  // namespace
}  // namespace kvarena
