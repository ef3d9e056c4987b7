// The figures as JSON: every member, once, and text that is not plain.

#include "kvarena/allocator/json.hpp"
#include "base/json_writer.hpp"
#include "kvarena/allocator/block_manager.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace kvarena {
namespace {

TEST(Json, CountsOfAPool) {
  const BlockStats stats{.num_blocks = 20,
                         .free = 1,
                         .referenced = 2,
                         .fenced = 3,
                         .evictable = 4,
                         .offline = 10,
                         .reserved = 5,
                         .watermark = 6,
                         .holders = 7,
                         .references = 8,
                         .fence_entries = 9,
                         .peak_allocated = 19,
                         .holders_ever = 11,
                         .allocations = 12,
                         .releases = 13,
                         .evictions = 14,
                         .exhaustions = std::numeric_limits<std::uint64_t>::max()};
  EXPECT_EQ(to_json(stats),
            R"({"total":20,"free":1,"referenced":2,"fenced":3,"evictable":4,"offline":10,)"
            R"("available":5,"reserved":5,"watermark":6,"peak_allocated":19,"holders":7,)"
            R"("holders_ever":11,"references":8,"fence_entries":9,"allocations":12,"releases":13,)"
            R"("evictions":14,"exhaustions":18446744073709551615})");
}

TEST(Json, AnExplanationNamesHoldersAndWhatComesBack) {
  BlockManager manager = BlockManager::create({.num_blocks = 4}).value();
  const HolderId a =
      manager.register_holder({.number = 12, .owner = 7, .purpose = "a \"b\""}).value();
  std::array<BlockId, 3> ids;
  std::array<Generation, 3> generations;
  ASSERT_TRUE(manager.allocate(a, ids, generations));
  const Ticket ticket = manager.open_ticket().value();
  Explanation e = manager.explain(2, Urgency::admission);
  const std::string unknown = to_json(e);
  EXPECT_NE(unknown.find(R"({"requested":2,"for_new_work":true,"promised":0,"fits":false,)"
                         R"("usable":1,"missing":1,"fenced_returning":0,"oldest_open_ticket":)" +
                         std::to_string(ticket.value) + R"(,"blocks":)" + to_json(e.stats)),
            std::string::npos)
      << unknown;
  EXPECT_NE(unknown.find(R"("largest":[)" + to_json(e.largest[0]) + R"(],"returning":[null])"),
            std::string::npos)
      << unknown;
  EXPECT_NE(to_json(e.largest[0]).find(R"("number":12,"owner":7,"purpose":"a \"b\"",)"),
            std::string::npos);
  EXPECT_NE(
      unknown.find(R"("text":"out of blocks: 2 requested for new work, 1 usable, 1 missing\n)"),
      std::string::npos)
      << unknown;
  EXPECT_EQ(unknown.back(), '}');
  EXPECT_EQ(unknown.find('\n'), std::string::npos) << "one line";
  e.returning[0] = 3;
  EXPECT_NE(to_json(e).find(R"("returning":[3])"), std::string::npos);
  ASSERT_TRUE(manager.retire(ticket));
  EXPECT_NE(to_json(manager.explain(1)).find(R"("oldest_open_ticket":null)"), std::string::npos);
}

TEST(Json, PagesAndGroupsOfAPool) {
  const PageStats pages{.num_pages = 40,
                        .free = 16,
                        .of_groups = 23,
                        .offline = 1,
                        .evictable = 7,
                        .reserved = 5,
                        .watermark = 4,
                        .peak_used = 31,
                        .turned = 88};
  EXPECT_EQ(to_json(pages),
            R"({"total":40,"free":16,"of_groups":23,"offline":1,"evictable":7,"reserved":5,)"
            R"("watermark":4,"peak_used":31,"turned":88,"page_bytes":null})");
  const std::array<GroupStats, 1> groups{GroupStats{.pages = 11,
                                                    .blocks_per_page = 3,
                                                    .block_bytes = 2048,
                                                    .free = 9,
                                                    .referenced = 12,
                                                    .fenced = 4,
                                                    .evictable = 6,
                                                    .offline = 2,
                                                    .stranded = 8}};
  const std::array<PagedKind, 1> kinds{PagedKind::state};
  EXPECT_EQ(to_json(groups, kinds),
            R"([{"group":0,"kind":"state","pages":11,"blocks_per_page":3,"block_bytes":2048,)"
            R"("free":9,"referenced":12,"fenced":4,"evictable":6,"offline":2,"stranded":8}])");
  EXPECT_EQ(to_json(std::span<const GroupStats>(), {}), "[]");
}

TEST(Json, BytesOfAHolderAreNullWhereThePoolCountsNone) {
  HolderReport holder;
  EXPECT_NE(to_json(holder).find(R"("bytes":0)"), std::string::npos) << "it holds nothing";
  holder.references = 2;
  EXPECT_NE(to_json(holder).find(R"("bytes":null)"), std::string::npos) << to_json(holder);
  holder.bytes = 512;
  EXPECT_NE(to_json(holder).find(R"("bytes":512)"), std::string::npos);
}

TEST(JsonWriter, NumbersWithFractionsStayNumbers) {
  const auto text_of = [](double number) { return JsonWriter().value(number).take(); };
  EXPECT_EQ(text_of(0.25), "0.25");
  EXPECT_EQ(text_of(4.0), "4.0") << "not a whole number";
  EXPECT_EQ(text_of(0.000001), "1e-06");
  EXPECT_EQ(text_of(0.0), "0.0");
}

TEST(JsonWriter, WritesValuesOfEveryKind) {
  JsonWriter out;
  out.open_object()
      .member("flag", true)
      .member("least", std::numeric_limits<std::int64_t>::min())
      .name("list")
      .open_list()
      .value(1)
      .null()
      .open_object()
      .close_object()
      .close_list()
      .member("text", "x")
      .close_object();
  EXPECT_EQ(out.take(),
            R"({"flag":true,"least":-9223372036854775808,"list":[1,null,{}],"text":"x"})");
  EXPECT_EQ(out.take(), "") << "empty again";
}

TEST(JsonWriter, TextIsUtf8WithoutControlCharacters) {
  const auto text_of = [](std::string_view text) { return JsonWriter().value(text).take(); };
  EXPECT_EQ(text_of("a\"b\\c\nd"), R"("a\"b\\c\nd")");
  EXPECT_EQ(text_of(std::string_view("\0\x1f\x7f", 3)), R"("\u0000\u001f\u007f")");
  EXPECT_EQ(text_of("\xc3\xa4\xe2\x82\xac"), "\"\xc3\xa4\xe2\x82\xac\"");
  EXPECT_EQ(text_of("\xff\xc3"), "\"\xef\xbf\xbd\xef\xbf\xbd\"") << "bytes that are no UTF-8";
}

}  // namespace
}  // namespace kvarena
