#include "health_client.hpp"

#include <fmt/format.h>
#include <httplib.h>

namespace kvarena::tools {

namespace {

HealthAnswer failure(std::string happened, std::string advice) {
  return {nullptr, std::move(happened), std::move(advice)};
}

HealthAnswer answer_of(const httplib::Response& response) {
  switch (response.status) {
    case 200: break;
    case 401:
      return failure("401: a token is needed, or this one is wrong", "give --http-token-file FILE");
    case 403:
      return failure("403: the server does not take this host name",
                     "give its numeric address, as in http://127.0.0.1:9400");
    case 503: return failure("503: the server has too many connections", "try again");
    default: return failure(fmt::format("status {}", response.status), "is it a kvarena server?");
  }
  auto document = nlohmann::ordered_json::parse(response.body, nullptr, false);
  if (!document.is_object() || !document["health"].is_object() || !document["pools"].is_array() ||
      !document["devices"].is_array()) {
    return failure("the answer is not the JSON of /stats", "is it a kvarena server?");
  }
  return {std::move(document), {}, {}};
}

}  // namespace

HealthAnswer HealthClient::stats() const {
  constexpr int kSeconds = 5;
  httplib::Client client(address_.host, address_.port);
  client.set_connection_timeout(kSeconds);
  client.set_read_timeout(kSeconds);
  httplib::Headers headers;
  if (!token_.empty()) headers.emplace("Authorization", "Bearer " + token_);
  const httplib::Result result = client.Get("/stats", headers);
  if (result) return answer_of(*result);
  if (result.error() == httplib::Error::Connection ||
      result.error() == httplib::Error::ConnectionTimeout) {
    return failure("no connection: nobody listens there, or it cannot be reached",
                   "start 'kvarena replay --http', or an engine with a HealthServer");
  }
  return failure(fmt::format("no answer: {}", httplib::to_string(result.error())),
                 "is it a kvarena server?");
}

}  // namespace kvarena::tools
