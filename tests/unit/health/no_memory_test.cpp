// Want of host memory, at every allocation of an answer in turn.

#include "support/heap_counter.hpp"
#include "support/raw_client.hpp"
#include "unit/health/http_exchange.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <string>

namespace kvarena::http {
namespace {

/// A connection, then a turn of which the allocation behind `allocations` others fails.
std::string answer_without_memory(Connections& connections, std::int64_t allocations,
                                  bool& has_failed) {
  const test::FailingHeap heap(allocations);
  std::string answer;
  try {
    answer = test::exchange(connections, test::get_request("/health"));
  } catch (const std::bad_alloc&) {
  }
  has_failed = heap.has_failed();
  return answer;
}

TEST(HttpWithoutMemory, IsAServersErrorOrACutAndNeverTheRequestsFault) {
  Endpoints endpoints;
  endpoints.routes["/health"] = [] { return Answer{.body = std::string(3000, 'x')}; };
  const auto connections = Connections::create(std::move(endpoints), {}).value();
  bool has_failed = true;
  int num_errors = 0;
  for (std::int64_t n = 0; has_failed; ++n) {
    const std::string answer = answer_without_memory(*connections, n, has_failed);
    const int status = test::status_of(answer);
    num_errors += status == 500 ? 1 : 0;
    EXPECT_TRUE(status == 200 || (has_failed && (status == 0 || status == 500))) << n << answer;
    EXPECT_EQ(connections->size(), 0U) << "none is kept";
  }
  EXPECT_GT(num_errors, 0);
  EXPECT_EQ(test::status_of(test::exchange(*connections, test::get_request("/health"))), 200);
}

}  // namespace
}  // namespace kvarena::http
