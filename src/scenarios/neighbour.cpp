#include "scenarios/neighbour.hpp"

#include "verify/device_memory.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvarena::scenarios {
namespace {

constexpr time_t kSilenceSeconds = 120;  // of a process that writes to all the memory there is
constexpr std::size_t kMostLine = 256;

Failure neighbour_failure(std::string happened) {
  return {RunEnd::environment,
          {.found = std::move(happened),
           .expected = "a neighbour that takes and frees memory",
           .advice = "run the scenario neighbours again, with nothing else on the machine"}};
}

Failure system_failure(const char* call, int error) {
  return neighbour_failure(fmt::format("{}: {}", call, std::generic_category().message(error)));
}

/// Both ends of a connection; what remains is closed.
struct SocketPair {
  std::array<int, 2> ends{-1, -1};
  SocketPair() = default;
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;
  ~SocketPair() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
};

/// Standard input and output of the child are `socket`. Returns errno's number.
int spawn(const std::vector<std::string>& command, int socket, pid_t* pid) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  if (const int error = ::posix_spawn_file_actions_init(&actions); error != 0) return error;
  int error = ::posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  if (error == 0) error = ::posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  if (error == 0) {
    error = ::posix_spawn(pid, argv.front(), &actions, nullptr, argv.data(), environ);
  }
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

constexpr std::string_view kTake = "take ";
constexpr std::uint8_t kWritten = 0xa5;

class NeighbourServer {
 public:
  explicit NeighbourServer(Device& device) : device_(device) {}

  std::string take(std::int64_t bytes) {
    auto memory = verify::DeviceMemory::create(device_, bytes, "neighbour");
    Status status = memory ? write(*memory) : memory.status();
    if (!status) return fmt::format("refused {} {}", status.required, status.available);
    held_.push_back(std::move(memory).value());
    total_ += bytes;
    return fmt::format("took {}", total_);
  }
  std::string free() {
    held_.clear();
    return fmt::format("freed {}", std::exchange(total_, 0));
  }

 private:
  Status write(const verify::DeviceMemory& memory) {
    const Result<StreamId> stream = device_.create_stream();
    if (!stream) return stream.status();
    Status status =
        device_.fill(memory.data(), kWritten, static_cast<std::uint64_t>(memory.bytes()), *stream);
    if (status) status = device_.synchronize(*stream);
    const Status destroyed = device_.destroy_stream(*stream);
    return status ? destroyed : status;
  }

  Device& device_;
  std::vector<verify::DeviceMemory> held_;
  std::int64_t total_ = 0;
};

/// BYTES of "take BYTES", or 0.
std::int64_t bytes_to_take(std::string_view line) {
  if (!line.starts_with(kTake)) return 0;
  const std::string_view number = line.substr(kTake.size());
  std::int64_t bytes = 0;
  const char* const last = number.data() + number.size();
  const auto [end, error] = std::from_chars(number.data(), last, bytes);
  return error == std::errc{} && end == last && bytes > 0 ? bytes : 0;
}

}  // namespace

MaybeFailure Neighbour::start(const std::vector<std::string>& command,
                              std::unique_ptr<Neighbour>* neighbour) {
  // A socket and not pipes: writing to a process that is gone must not end ours.
  SocketPair pair;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.ends.data()) != 0) {
    return system_failure("socketpair", errno);
  }
  const timeval silence{.tv_sec = kSilenceSeconds, .tv_usec = 0};
  if (::setsockopt(pair.ends[0], SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) != 0) {
    return system_failure("setsockopt", errno);
  }
  pid_t pid = 0;
  if (const int error = spawn(command, pair.ends[1], &pid); error != 0) {
    return system_failure(command.front().c_str(), error);
  }
  std::unique_ptr<Neighbour> made(new Neighbour(std::exchange(pair.ends[0], -1), pid));
  // Ours must not keep the connection open when the child ends.
  ::close(std::exchange(pair.ends[1], -1));
  std::string line;
  if (auto failure = made->receive(&line)) return failure;
  if (line != "ready") return made->gone(fmt::format("said '{}' and not 'ready'", line));
  *neighbour = std::move(made);
  return std::nullopt;
}

Neighbour::~Neighbour() {
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    static_cast<void>(wait());
  }
  ::close(socket_);
}

int Neighbour::wait() noexcept {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return status;
}

/// What it did instead of what it should, and how it ended: now at the latest.
Failure Neighbour::gone(std::string_view what) {
  if (pid_ == 0) return neighbour_failure(fmt::format("the neighbour {}", what));
  ::kill(pid_, SIGKILL);
  const int status = wait();
  const std::string end = WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                            : fmt::format("signal {}", WTERMSIG(status));
  return neighbour_failure(fmt::format("the neighbour {}; it ended with {}", what, end));
}

MaybeFailure Neighbour::send(std::string_view line) {
  while (!line.empty()) {
    const ssize_t sent = ::send(socket_, line.data(), line.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return gone("does not listen");
    line.remove_prefix(static_cast<std::size_t>(sent));
  }
  return std::nullopt;
}

MaybeFailure Neighbour::receive(std::string* line) {
  line->clear();
  while (line->size() < kMostLine) {
    char c = 0;
    const ssize_t got = ::recv(socket_, &c, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return gone("closed the connection");
    if (got < 0) return gone(fmt::format("was silent for {} s", kSilenceSeconds));
    if (c == '\n') return std::nullopt;
    line->push_back(c);
  }
  return gone("talks too much");
}

MaybeFailure Neighbour::ask(const std::string& line, const std::string& expected) {
  if (auto failure = send(line + "\n")) return failure;
  std::string answer;
  if (auto failure = receive(&answer)) return failure;
  if (answer == expected) return std::nullopt;
  return gone(fmt::format("answered '{}' to '{}'", answer, line));
}

MaybeFailure Neighbour::take(std::int64_t bytes) {
  if (auto failure =
          ask(fmt::format("take {}", bytes), fmt::format("took {}", held_bytes_ + bytes))) {
    return failure;
  }
  held_bytes_ += bytes;
  return std::nullopt;
}

MaybeFailure Neighbour::free() {
  return ask("free", fmt::format("freed {}", std::exchange(held_bytes_, 0)));
}

MaybeFailure Neighbour::quit() {
  if (auto failure = send("quit\n")) return failure;
  char c = 0;
  ssize_t got = 0;
  while ((got = ::recv(socket_, &c, 1, 0)) < 0 && errno == EINTR) {
  }
  if (got != 0) return gone("does not quit");
  const int status = wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  return neighbour_failure(fmt::format("the neighbour ended with status {}", status));
}

bool serve_neighbour(Device& device, std::istream& in, std::ostream& out) {
  NeighbourServer server(device);
  out << "ready" << std::endl;
  for (std::string line; std::getline(in, line);) {
    if (line == "quit") return true;
    if (line == "free") {
      out << server.free() << std::endl;
    } else if (const std::int64_t bytes = bytes_to_take(line); bytes > 0) {
      out << server.take(bytes) << std::endl;
    } else {
      out << "unknown" << std::endl;
      return false;
    }
  }
  return true;
}

}  // namespace kvarena::scenarios
