#include "health/http/connections.hpp"

#include <microhttpd.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace kvarena::http {

namespace {

using Clock = std::chrono::steady_clock;

/// Connections that may be in excess.
constexpr std::size_t kAtOnce = 64;

/// Sent to clients whose request has not come yet.
std::string_view refusal_of(int status) noexcept {
  if (status == 408) {
    return "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain\r\n"
           "Content-Length: 26\r\n\r\nthe request took too long\n";
  }
  return "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\n"
         "Content-Type: text/plain\r\nContent-Length: 32\r\n\r\ntoo many connections; try again\n";
}

/// Hands `answer` to libmicrohttpd, which frees the body.
MHD_Result send(MHD_Connection* connection, Answer answer) {
  auto body = std::make_unique<std::string>(std::move(answer.body));
  const auto free_body = [](void* text) { delete static_cast<std::string*>(text); };
  MHD_Response* response = MHD_create_response_from_buffer_with_free_callback_cls(
      body->size(), body->data(), free_body, body.get());
  if (response == nullptr) return MHD_NO;
  static_cast<void>(body.release());
  const auto add = [response](const char* name, const char* value) {
    static_cast<void>(MHD_add_response_header(response, name, value));
  };
  add("Connection", "close");
  add("Cache-Control", "no-store");
  add("X-Content-Type-Options", "nosniff");
  add("Content-Type", answer.content_type);
  if (answer.status == 401) add("WWW-Authenticate", "Bearer realm=\"kvarena\"");
  if (answer.status == 405) add("Allow", "GET, HEAD");
  const auto queued =
      MHD_queue_response(connection, static_cast<unsigned int>(answer.status), response);
  MHD_destroy_response(response);
  return queued;
}

std::string_view without_spaces_around(std::string_view text) noexcept {
  const std::size_t first = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// Collects the headers that an answer depends on.
MHD_Result take_header(void* request, MHD_ValueKind, const char* name, const char* value) {
  auto& target = *static_cast<Request*>(request);
  const std::string_view text = without_spaces_around(value == nullptr ? "" : value);
  if (*name == '\0' || std::strpbrk(name, " \t") != nullptr) {
    target.is_malformed = true;  // another reader could take it for the name without the space
  } else if (::strcasecmp(name, "Host") == 0) {
    target.host = text;
    ++target.num_hosts;
  } else if (::strcasecmp(name, "Authorization") == 0) {
    target.authorization = text;
    ++target.num_authorizations;
  } else if (::strcasecmp(name, "Transfer-Encoding") == 0) {
    target.has_body = true;
  } else if (::strcasecmp(name, "Content-Length") == 0 && text != "0") {
    const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    (is_number ? target.has_body : target.is_malformed) = true;
  }
  return MHD_YES;
}

std::size_t head_bytes(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
}

}  // namespace

/// One connection.
struct Connections::Client {
  int socket;
  Time deadline;
  bool is_started = false;   ///< libmicrohttpd has announced its connection
  bool is_answered = false;  ///< an answer has been made for it
  bool is_cut = false;       ///< shut down; libmicrohttpd has yet to close it

  /// Tells it why, unless an answer is under way, and ends both directions.
  void cut_off(int status) {
    if (!is_answered) {
      const std::string_view text = refusal_of(status);
      static_cast<void>(::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    } else {
      // What it has not taken by now goes with the connection.
      const linger none{1, 0};
      ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    ::shutdown(socket, SHUT_RDWR);
    is_cut = true;
  }
};

/// What libmicrohttpd calls, from turn and adopt. Nothing is thrown through it.
struct Connections::Callbacks {
  /// Announces a connection in adopt or, where libmicrohttpd queues new ones, in the next turn.
  static void notify(void* self, MHD_Connection* connection, void** context,
                     MHD_ConnectionNotificationCode code) {
    auto& clients = static_cast<Connections*>(self)->clients_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      const int socket =
          MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
      const auto client = std::ranges::find(clients, socket, &Client::socket);
      client->is_started = true;
      *context = &*client;
    } else {
      clients.remove_if([&](const Client& each) { return &each == *context; });
    }
  }
  /// Called when the request line is complete. Returns the end of the URI.
  static void* take_uri(void*, const char* uri, MHD_Connection* connection) {
    // libmicrohttpd before 1.0 repeats the head of its answer to an error in one of these headers.
    // It reads the first of a name, so those of the client are for take_header alone.
    MHD_set_connection_value(connection, MHD_HEADER_KIND, "Content-Length", "0");
    MHD_set_connection_value(connection, MHD_HEADER_KIND, "Cookie", "-");
    return const_cast<char*>(uri) + std::strlen(uri);
  }
  /// Called first when a request's head is complete; the answer comes at once, before any body.
  static MHD_Result answer(void* self, MHD_Connection* connection, const char* path,
                           const char* method, const char* version, const char*, std::size_t*,
                           void** uri_end) {
    const auto& owner = *static_cast<Connections*>(self);
    const auto* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    static_cast<Client*>(info->socket_context)->is_answered = true;
    try {
      if (head_bytes(connection) > owner.limits_.max_request_bytes) {
        return send(connection, {431, "text/plain", "the request is too long\n"});
      }
      Request request{.method = method, .path = path};
      request.needs_host = std::string_view(version) != "HTTP/1.0";
      // One space ends a URI, not a NUL byte.
      request.is_malformed = version != static_cast<const char*>(*uri_end) + 1;
      MHD_get_connection_values(connection, MHD_HEADER_KIND, take_header, &request);
      return send(connection, owner.endpoints_.answer(request));
    } catch (...) {
      return fail(connection);
    }
  }
  /// What was thrown is nobody's business. Without memory for this either, the connection is
  /// closed.
  static MHD_Result fail(MHD_Connection* connection) noexcept try {
    return send(connection, {500, "text/plain", "the answer could not be made\n"});
  } catch (const std::exception&) {
    return MHD_NO;
  }
  /// A path is compared as it was sent.
  static std::size_t keep(void*, MHD_Connection*, char* text) { return std::strlen(text); }
};

Connections::Connections(Endpoints endpoints, const Limits& limits)
    : endpoints_(std::move(endpoints)), limits_(limits) {}

Connections::~Connections() {
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
}

Result<std::unique_ptr<Connections>> Connections::create(Endpoints endpoints,
                                                         const Limits& limits) {
  std::unique_ptr<Connections> made(new Connections(std::move(endpoints), limits));
  unsigned int flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET;
#if MHD_VERSION >= 0x00097707
  flags |= MHD_USE_NO_THREAD_SAFETY;  // no queue of new connections
#endif
  errno = 0;
  made->daemon_ = MHD_start_daemon(
      flags, 0, nullptr, nullptr, &Callbacks::answer, made.get(),
      // Those that are cut off or new are in excess for a turn.
      MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned int>(2 * limits.max_connections + kAtOnce),
      // The parsed head lies beside the bytes of the request.
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, 2 * limits.max_request_bytes + (std::size_t{4} << 10),
      MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::notify, made.get(), MHD_OPTION_UNESCAPE_CALLBACK,
      &Callbacks::keep, nullptr, MHD_OPTION_URI_LOG_CALLBACK, &Callbacks::take_uri, nullptr,
      MHD_OPTION_END);
  if (made->daemon_ == nullptr) {
    return Status{
        StatusCode::io_error, Resource::event, Option::none, errno != 0 ? errno : ENOMEM, 0, 0, 0};
  }
  made->descriptor_ = MHD_get_daemon_info(made->daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  return made;
}

void Connections::adopt(int socket) {
  try {
    clients_.push_back({socket, Clock::now() + limits_.request});
  } catch (const std::exception&) {
    ::close(socket);
    throw;
  }
  sockaddr_in unknown{};
  unknown.sin_family = AF_INET;
  const std::size_t before = clients_.size();
  if (MHD_add_connection(daemon_, socket, reinterpret_cast<const sockaddr*>(&unknown),
                         sizeof unknown) != MHD_YES &&
      clients_.size() == before) {
    clients_.pop_back();
  }
}

void Connections::turn() {
  MHD_run(daemon_);
  // Closed before they were announced. Their descriptors may be others' by now.
  clients_.remove_if([](const Client& each) { return !each.is_started; });
  const bool was_late = cut_off_late_ones();
  const bool made_room = make_room();
  if (was_late || made_room) MHD_run(daemon_);
}

bool Connections::cut_off_late_ones() {
  const Time now = Clock::now();
  bool any = false;
  for (Client& client : clients_) {
    if (client.is_cut || client.deadline > now) continue;
    client.cut_off(408);
    any = true;
  }
  return any;
}

bool Connections::make_room() {
  auto open = static_cast<std::size_t>(std::ranges::count(clients_, false, &Client::is_cut));
  const bool is_full = open > limits_.max_connections;
  for (Client& client : clients_) {
    if (open <= limits_.max_connections) break;
    if (client.is_cut) continue;
    client.cut_off(429);
    --open;
  }
  return is_full;
}

int Connections::timeout_ms() const {
  MHD_UNSIGNED_LONG_LONG theirs = 0;
  if (MHD_get_timeout(daemon_, &theirs) == MHD_YES && theirs == 0) return 0;
  const auto next = std::ranges::find(clients_, false, &Client::is_cut);  // in order of accept
  if (next == clients_.end()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next->deadline - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

}  // namespace kvarena::http
