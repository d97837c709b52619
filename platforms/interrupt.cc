#include "platforms/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace volvelle {
namespace {

// Read and written inside signal handlers, hence lock-free atomics of constant size.
std::atomic<int> pending_signal = 0;
std::array<std::atomic<const char*>, 16> unfinished_files;
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

void end_by(int signal) {
  for (auto& file : unfinished_files) {
    if (const char* path = file.exchange(nullptr)) ::unlink(path);
  }
  std::signal(signal, SIG_DFL);
  // The signal is blocked while its handler runs; raised again, it is delivered when the handler
  // returns.
  std::raise(signal);
}

void on_interrupt(int signal) {
  const int saved_errno = errno;
  if (pending_signal.exchange(signal) != 0) end_by(signal);
  errno = saved_errno;
}

struct sigaction install(int signal, void (*handler)(int)) {
  struct sigaction action = {}, former;
  action.sa_handler = handler;
  // No SA_RESTART: a read from the terminal must return so that the flag is seen.
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, &former);
  return former;
}

}  // namespace

bool interrupted() { return pending_signal.load(std::memory_order_relaxed) != 0; }
void clear_interrupt() { pending_signal = 0; }
int interrupt_status() { return interrupted() ? 128 + pending_signal.load() : 0; }

InterruptScope::InterruptScope() {
  clear_interrupt();
  former_interrupt_ = install(SIGINT, on_interrupt);
  former_terminate_ = install(SIGTERM, on_interrupt);
}

InterruptScope::~InterruptScope() {
  ::sigaction(SIGINT, &former_interrupt_, nullptr);
  ::sigaction(SIGTERM, &former_terminate_, nullptr);
}

void end_quietly_on_broken_pipe() { install(SIGPIPE, end_by); }
void ignore_broken_pipes() { install(SIGPIPE, SIG_IGN); }
void ignore_file_size_limits() { install(SIGXFSZ, SIG_IGN); }

void remove_on_signal(const std::string& path) {
  for (auto& file : unfinished_files) {
    const char* empty = nullptr;
    if (file.compare_exchange_strong(empty, path.c_str())) return;
  }
}

void keep_on_signal(const std::string& path) {
  for (auto& file : unfinished_files) {
    const char* mine = path.c_str();
    if (file.compare_exchange_strong(mine, nullptr)) return;
  }
}

}  // namespace volvelle
