#include "tools/monitor/monitor_sources.hpp"

#include "base/excerpt.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

namespace kvarena::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxHeaderBytes = std::size_t{64} << 10;

HealthAnswer failure(std::string happened, std::string advice) {
  return {{}, std::move(happened), std::move(advice)};
}

HealthAnswer answer_of(long status, std::string body) {
  switch (status) {
    case 200: return {std::move(body), {}, {}};
    case 401:
      return failure("401: a token is needed, or this one is wrong", "give --http-token-file FILE");
    case 403:
      return failure("403: the server does not take this host name",
                     "give its numeric address, as in http://127.0.0.1:15858; a proxy in front has "
                     "to set the Host header");
    case 408:
      return failure("408: the request came in too slowly",
                     "look at the network's load; try again");
    case 431:
      return failure("431: the request is too long", "give a shorter token in --http-token-file");
    case 500:
      return failure("500: the server could not make its answer",
                     "look at the process's memory and its log");
    case 429: return failure("429: the server is overloaded by too many connections", "try again");
    default:
      return failure(fmt::format("status {}", status),
                     "is it a kvarena server, or a proxy that does not reach one?");
  }
}

/// libcurl's callback: takes a part of the body while it is not too large.
std::size_t take(const char* bytes, std::size_t, std::size_t count, void* target) {
  auto& body = *static_cast<std::string*>(target);
  if (body.size() + count > kMaxBytes) return 0;
  body.append(bytes, count);
  return count;
}

/// libcurl's callback: counts a header line while all of them are not too large.
std::size_t take_header(const char*, std::size_t, std::size_t count, void* target) {
  auto& bytes = *static_cast<std::size_t*>(target);
  bytes += count;
  return bytes <= kMaxHeaderBytes ? count : 0;
}

HealthAnswer not_connected(long error) {
  const std::string start = "start 'kvarena replay --http', or an engine with a HealthServer";
  if (error == ECONNREFUSED) {
    return failure("connection refused: the machine is there, and nobody listens on that port",
                   start);
  }
  return failure(fmt::format("no connection: {}",
                             error == 0 ? "it cannot be reached"
                                        : std::generic_category().message(static_cast<int>(error))),
                 "is the machine up, and the network between?");
}

HealthAnswer too_late(CURL* curl, std::chrono::milliseconds limit) {
  const double seconds = std::chrono::duration<double>(limit).count();
  curl_off_t connected_us = 0;
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connected_us);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  if (connected_us == 0) {
    return failure(fmt::format("no connection within {:g} s", seconds),
                   "the machine cannot be reached, or the process hangs");
  }
  if (status == 0) {
    return failure(
        fmt::format("no answer within {:g} s: the process hangs or is overloaded", seconds),
        "look at the process: its threads' stacks, its log, the machine's load");
  }
  return failure(fmt::format("the answer is not complete after {:g} s", seconds),
                 "look at the process's and the network's load");
}

HealthAnswer no_answer(CURL* curl, CURLcode code, std::chrono::milliseconds limit) {
  long error = 0;
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return failure("the name of the machine is not known",
                     "check the name in --url, or give a numeric address");
    case CURLE_COULDNT_CONNECT:
      curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &error);
      return not_connected(error);
    case CURLE_OPERATION_TIMEDOUT: return too_late(curl, limit);
    case CURLE_WRITE_ERROR: return failure("the answer is too large", "is it a kvarena server?");
    case CURLE_OUT_OF_MEMORY:  // also of a header line without end
      return failure("the answer's headers are too large, or there is no host memory",
                     "is it a kvarena server?");
    case CURLE_PEER_FAILED_VERIFICATION:
      return failure(
          "the server's certificate is not trusted",
          "give --http-ca-file FILE with the authority that signed it, and the name that "
          "the certificate has");
    case CURLE_SSL_CACERT_BADFILE:
      return failure("--http-ca-file cannot be read", "a PEM file of certificates");
    case CURLE_SSL_CONNECT_ERROR:
      return failure("no TLS connection: the server speaks another protocol",
                     "is it http:// in place of https://?");
    default:
      return failure(fmt::format("no answer: {}", curl_easy_strerror(code)),
                     "is it a kvarena server, and is it http:// or https://?");
  }
}

}  // namespace

HealthAnswer fetch_stats(const HealthServerAddress& server) {
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(),
                                                                 &curl_easy_cleanup);
  if (!curl) return failure("no host memory", "");
  const std::string url = server.url + "/stats";
  std::string body;
  std::size_t header_bytes = 0;
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr,
                                                                      &curl_slist_free_all);
  if (!server.token.empty()) {
    headers.reset(curl_slist_append(nullptr, ("Authorization: Bearer " + server.token).c_str()));
  }
  const auto set = [&curl](CURLoption option, auto value) {
    static_cast<void>(curl_easy_setopt(curl.get(), option, value));
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(server.limit.count()));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(server.limit.count()));
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_WRITEFUNCTION, &take);
  set(CURLOPT_WRITEDATA, &body);
  set(CURLOPT_HEADERFUNCTION, &take_header);
  set(CURLOPT_HEADERDATA, &header_bytes);
  if (!server.ca_file.empty()) set(CURLOPT_CAINFO, server.ca_file.c_str());
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return no_answer(curl.get(), code, server.limit);
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  return answer_of(status, std::move(body));
}

MonitorFrame ServerSource::look() {
  HealthAnswer answer = fetch_stats(server_);
  const std::int64_t now_ns = clock_.now_ns();
  const std::string title = printable(server_.url);
  if (answer.is_ok()) {
    try {
      Json document = parse_stats(answer.body);
      StatsDocument stats = read_stats(document);
      MonitorFrame frame = frame_of_stats(
          title, stats,
          {before_ ? &*before_ : nullptr, static_cast<double>(now_ns - before_ns_) * 1e-9});
      frame.document = std::move(document);
      before_ = std::move(stats);
      before_ns_ = now_ns;
      return frame;
    } catch (const NotStats& why) {
      answer.happened = fmt::format("the answer is not the JSON of /stats: {}", why.what());
      answer.advice = "is it a kvarena server, and of this version?";
    }
  }
  MonitorFrame frame;
  frame.happened = fmt::format("{}: {}", title, answer.happened);
  frame.advice = answer.advice;
  return frame;
}

}  // namespace kvarena::tools
