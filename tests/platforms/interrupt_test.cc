#include "platforms/interrupt.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace volvelle {
namespace {

TEST_CASE("inside a scope Ctrl-C and SIGTERM raise a flag, which a new scope clears") {
  for (const int signal : {SIGINT, SIGTERM}) {
    {
      const InterruptScope scope;
      CHECK_FALSE(interrupted());
      CHECK(interrupt_status() == 0);
      std::raise(signal);
      CHECK(interrupted());
      CHECK(interrupt_status() == 128 + signal);
      clear_interrupt();
      std::raise(signal);  // the first again, not a second: the process goes on
      CHECK(interrupted());
    }
    const InterruptScope scope;
    CHECK_FALSE(interrupted());
  }
}

TEST_CASE("the former handlers return after a scope") {
  struct sigaction before, after;
  ::sigaction(SIGINT, nullptr, &before);
  {
    const InterruptScope scope;
  }
  ::sigaction(SIGINT, nullptr, &after);
  CHECK(before.sa_handler == after.sa_handler);
}

TEST_CASE("writing to a pipe that nobody reads ends the program with the usual status") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGPIPE, SIG_IGN);  // as some programs start their children
    end_quietly_on_broken_pipe();
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(1);
    ::close(ends[0]);
    ::_exit(::write(ends[1], "x", 1) == 1 ? 2 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGPIPE);
}

}  // namespace
}  // namespace volvelle
