#include "health/http/server.hpp"

#include "health/http/connection_set.hpp"

#include <exception>
#include <system_error>
#include <utility>

namespace kvarena::http {

Server::Server(Listener listener, Wakeup wakeup, Endpoints& endpoints, const Limits& limits)
    : listener_(std::move(listener)),
      wakeup_(std::move(wakeup)),
      endpoints_(endpoints),
      limits_(limits) {}

Server::~Server() {
  wakeup_.wake();
  if (thread_.joinable()) thread_.join();
}

Status Server::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return exhausted(Resource::thread, 1, 0);
  }
  return {};
}

void Server::run() noexcept {
  bool running = true;
  while (running) {
    try {
      // What is thrown (no memory) costs the connections of that moment, not the server.
      ConnectionSet connections(listener_, wakeup_, endpoints_, limits_);
      while (running) running = connections.turn();
    } catch (const std::exception&) {
      running = !wakeup_.await(kRest);
    }
  }
}

}  // namespace kvarena::http
