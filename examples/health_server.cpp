// An engine with a health monitor and its HTTP server. A load balancer asks /health, Prometheus
// scrapes /metrics, people read /stats; here the program asks itself once and ends. Its argument is
// the port (15858; 0: any free one).

#include "kvarena/health/health_server.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "kvarena/device/host_device.hpp"
#include "kvarena/health/health_monitor.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

// What `curl http://127.0.0.1:PORT/health` prints.
std::string ask(std::uint16_t port, const std::string& path) {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_port = htons(port);
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::string answer;
  if (::connect(client, reinterpret_cast<const sockaddr*>(&server), sizeof server) == 0 &&
      ::send(client, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char chunk[4096];
    for (ssize_t n = 0; (n = ::recv(client, chunk, sizeof chunk, 0)) > 0;) {
      answer.append(chunk, static_cast<std::size_t>(n));
    }
  }
  ::close(client);
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvarena;
  const auto port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 15858);
  const auto device = HostDevice::create().value();
  KvCacheOptions options{.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 64}};
  options.size.num_blocks = 128;  // of 16 tokens
  options.num_q_heads = 1;
  auto cache = KvCache::create(*device, options).value();

  // The three lines of an engine, and what its people want to know.
  auto monitor = HealthMonitor::create().value();
  if (!monitor.watch(cache)) return 1;
  const auto server = HealthServer::start(monitor, {.port = port});
  if (!server) std::printf("no health server: %s\n", describe(server.status()).c_str());

  if (!server) return 1;
  std::printf("%s\n%s\n", server->url().c_str(), ask(server->port(), "/health").c_str());
  return 0;
}
