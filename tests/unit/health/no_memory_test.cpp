// Want of host memory, at every allocation of an answer in turn.

#include "health/http/endpoints.hpp"

#include "support/heap_counter.hpp"
#include "support/raw_client.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <string>

namespace kvarena::http {
namespace {

EndpointsOptions options() {
  EndpointsOptions made;
  made.routes["/health"] = [] { return Answer{200, "application/json", std::string(3000, 'x')}; };
  return made;
}

/// The status of the answer to `request` when memory is out after `allocations`; 0: it was thrown.
/// `has_failed`: whether so many were made.
int status_without_memory(Endpoints& endpoints, const std::string& request,
                          std::int64_t allocations, bool& has_failed) {
  std::string response;
  {
    const test::FailingHeap heap(allocations);
    try {
      response = endpoints.answer(request);
    } catch (const std::bad_alloc&) {
    }
    has_failed = heap.has_failed();
  }
  return response.empty() ? 0 : test::status_of(response);
}

TEST(HttpWithoutMemory, IsThrownOrAServersErrorAndNeverTheRequestsFault) {
  Endpoints endpoints(options());
  const std::string request = test::get_request("/health");
  bool has_failed = true;
  int num_thrown = 0;
  for (std::int64_t n = 0; has_failed; ++n) {
    const int status = status_without_memory(endpoints, request, n, has_failed);
    num_thrown += status == 0 ? 1 : 0;
    if (has_failed) {
      EXPECT_TRUE(status == 0 || status == 500) << status << " after " << n << " allocations";
    } else {
      EXPECT_EQ(status, 200);
    }
  }
  EXPECT_GT(num_thrown, 0);
}

TEST(HttpWithoutMemory, ARefusalIsThrownToo) {
  Endpoints endpoints(options());
  bool has_failed = true;
  for (std::int64_t n = 0; has_failed; ++n) {
    const int status = status_without_memory(endpoints, "no request\r\n\r\n", n, has_failed);
    EXPECT_TRUE(status == 400 || (has_failed && status == 0)) << status << " after " << n;
  }
}

}  // namespace
}  // namespace kvarena::http
