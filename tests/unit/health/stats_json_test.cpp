#include "health/render/stats_json.hpp"

#include "sample_report.hpp"

#include <gtest/gtest.h>

namespace kvarena {
namespace {

TEST(StatsJson, Pool) {
  const Json json = stats_json(test::sample_report(), test::sample_details());
  ASSERT_EQ(json["pools"].size(), 1u);
  const Json& pool = json["pools"][0];
  EXPECT_EQ(pool["name"], "default");
  EXPECT_EQ(pool["step"], 41);
  EXPECT_EQ(pool["age_secs"], 3.0);
  EXPECT_EQ(pool["pending_work"], true);
  EXPECT_EQ(pool["waiting_requests"], 12);
  EXPECT_EQ(pool["preemptions"], 55);
  EXPECT_EQ(pool["pressure"].dump(),
            "{\"level\":\"elevated\",\"cause\":\"vram\",\"age_secs\":2.0,"
            "\"entered\":{\"normal\":2,\"elevated\":3,\"critical\":1,\"exhausted\":0}}");
  EXPECT_EQ(pool["blocks"].dump(),
            "{\"total\":100,\"free\":50,\"referenced\":30,\"fenced\":10,\"evictable\":8,"
            "\"offline\":2,\"available\":58,\"reserved\":5,\"watermark\":4,\"peak_allocated\":71,"
            "\"holders\":3,\"holders_ever\":999,\"references\":36,\"fence_entries\":14,"
            "\"allocations\":1001,\"releases\":1002,\"evictions\":1003,\"exhaustions\":1004}");
  EXPECT_EQ(pool["tables"].dump(),
            "{\"sequences\":9,\"sequences_ever\":88,\"tokens\":480,\"waste_tokens\":21,"
            "\"entries\":37,\"pages_used\":15,\"pages_total\":64,\"copies_on_write\":19}");
  EXPECT_EQ(pool["tickets"].dump(), "{\"open\":6,\"oldest\":77,\"oldest_age_secs\":10.0}");
  EXPECT_EQ(pool["audit"].dump(), "{\"blocks_checked\":640,\"passes\":16,\"failure\":null}");
}

TEST(StatsJson, ExplanationAndLeakReportByHolder) {
  const Json json = stats_json(test::sample_report(), test::sample_details());
  const Json& details = json["pools"][0]["details"];
  EXPECT_EQ(details["step"], 40);
  EXPECT_EQ(details["age_secs"], 4.0);
  const Json& explanation = details["explanation"];
  EXPECT_EQ(explanation["requested"], 1);
  EXPECT_EQ(explanation["usable"], 58);
  EXPECT_EQ(explanation["blocks"]["fenced"], 10);
  ASSERT_EQ(explanation["largest"].size(), 1u);
  EXPECT_EQ(explanation["text"], to_string(test::sample_details().pools[0].details.explanation));
  ASSERT_EQ(details["holders"].size(), 3u);
  EXPECT_EQ(details["holders"][0].dump(),
            "{\"holder\":4,\"owner\":17,\"purpose\":\"sequence\",\"references\":22,\"reserved\":3,"
            "\"since_ns\":7000066000000000,\"deadline_ns\":90000000000,\"age_secs\":30.0,"
            "\"overdue_secs\":6.0}");
  EXPECT_EQ(explanation["largest"][0], details["holders"][0]);
}

TEST(StatsJson, AgesAreThoseOfTheDetails) {
  const Json json = stats_json(test::sample_report(), test::sample_details());
  const Json& holders = json["pools"][0]["details"]["holders"];
  EXPECT_TRUE(holders[1]["age_secs"].is_null()) << "since when was not told";
  EXPECT_TRUE(holders[1]["overdue_secs"].is_null()) << "it has no deadline";
  EXPECT_EQ(holders[2]["age_secs"], 1.0);
  EXPECT_EQ(holders[2]["overdue_secs"], 0.0) << "its deadline was not over then";
}

TEST(StatsJson, DeviceChecksAndHealth) {
  const Json json = stats_json(test::sample_report(), test::sample_details());
  EXPECT_EQ(json["health"], health_json(test::sample_report()));
  EXPECT_EQ(json["checks"].dump(),
            "{\"completed\":5,\"failed\":1,\"last_duration_secs\":0.25,"
            "\"total_duration_secs\":2.0}");
  const Json& device = json["devices"][0];
  EXPECT_EQ(device["memory"]["free_bytes"], 400);
  EXPECT_EQ(device["usage"]["total"]["peak_bytes"], 650);
  EXPECT_EQ(device["usage"]["staging"]["bytes"], 11);
  EXPECT_EQ(device["usage"]["by_purpose"]["KVCache"]["allocations"], 2);
  EXPECT_EQ(device["usage"]["frees_ever"], 13);
  EXPECT_EQ(device["drift"].dump(),
            "{\"driver_used_bytes\":610,\"tracked_bytes\":600,\"drift_bytes\":10,"
            "\"overhead_bytes\":8,\"growth_bytes\":2,\"own_bytes\":577,\"context_bytes\":4,"
            "\"other_bytes\":33}");
  EXPECT_EQ(device["largest_allocations"].dump(),
            "[{\"pointer\":\"0x7f0000001000\",\"bytes\":200,\"purpose\":\"KVCache\","
            "\"kind\":\"device\",\"description\":\"arena\"}]");
}

TEST(StatsJson, WhatIsNotKnownIsNull) {
  HealthReport report = test::sample_report();
  report.devices[0].drift.reset();
  report.devices.push_back(test::sample_device());
  report.devices[1].drift->own_bytes.reset();
  report.devices[1].drift->context_bytes.reset();
  report.pools[0].pressure = PressureLevel::normal;
  report.pools[0].looked_ns.reset();
  report.pools[0].snapshot.oldest_ticket = kNoTicket;
  report.pools[0].snapshot.audit.failure = {
      StatusCode::invariant_violated, Resource::block, Option::none, 2, 9, 0, 0};
  HealthDetails details = test::sample_details();
  details.pools[0].name = "another";
  details.devices.clear();
  const Json json = stats_json(report, details);
  EXPECT_TRUE(json["devices"][0]["drift"].is_null());
  EXPECT_TRUE(json["devices"][0]["largest_allocations"].is_null());
  EXPECT_TRUE(json["devices"][1]["drift"]["own_bytes"].is_null());
  EXPECT_TRUE(json["devices"][1]["drift"]["context_bytes"].is_null());
  EXPECT_EQ(json["devices"][1]["drift"]["other_bytes"], 33);
  EXPECT_TRUE(json["pools"][0]["pressure"]["cause"].is_null());
  EXPECT_TRUE(json["pools"][0]["pressure"]["age_secs"].is_null());
  EXPECT_TRUE(json["pools"][0]["details"].is_null());
  EXPECT_TRUE(json["pools"][0]["tickets"]["oldest"].is_null());
  EXPECT_TRUE(json["pools"][0]["tickets"]["oldest_age_secs"].is_null());
  EXPECT_EQ(json["pools"][0]["audit"]["failure"], describe(report.pools[0].snapshot.audit.failure));
}

}  // namespace
}  // namespace kvarena
