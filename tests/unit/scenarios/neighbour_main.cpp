// A neighbour for tests: takes memory of a host device when told to. --untouched: only says so;
// --die: ends after the first line; --orphan: starts another one, prints its process, and ends
// without a word to it.

#include "scenarios/neighbour.hpp"

#include "kvarena/device/host_device.hpp"

#include <unistd.h>

#include <iostream>
#include <string>
#include <string_view>

namespace {

int say_so() {
  std::cout << "ready" << std::endl;
  long long total = 0;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line == "free") {
      std::cout << "freed " << total << std::endl;
      total = 0;
    } else {
      total += std::stoll(line.substr(5));
      std::cout << "took " << total << std::endl;
    }
  }
  return 0;
}

int die() {
  std::string line;
  std::cout << "ready" << std::endl;
  std::getline(std::cin, line);
  return 7;
}

int start_another(const char* program) {
  std::unique_ptr<kvarena::scenarios::Neighbour> neighbour;
  if (kvarena::scenarios::Neighbour::start({program}, &neighbour)) return 1;
  std::cout << neighbour->pid() << std::endl;
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "--untouched") return say_so();
  if (mode == "--die") return die();
  if (mode == "--orphan") return start_another(argv[0]);
  auto device = kvarena::HostDevice::create();
  if (!device) return 1;
  return kvarena::scenarios::serve_neighbour(**device, std::cin, std::cout) ? 0 : 1;
}
