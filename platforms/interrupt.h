// Ctrl-C and SIGTERM as a flag that long work looks at between steps, so that a command ends
// through its ordinary error path: buffers are flushed, unfinished files removed. A second Ctrl-C
// ends the process at once, still without leaving unfinished files.

#ifndef VOLVELLE_PLATFORMS_INTERRUPT_H_
#define VOLVELLE_PLATFORMS_INTERRUPT_H_

#include <csignal>
#include <string>

namespace volvelle {

// Whether Ctrl-C or SIGTERM came since the innermost InterruptScope began, or was cleared.
bool interrupted();
void clear_interrupt();

// The exit status a shell expects from a program that the signal ended: 128 + its number; 0 if none
// came.
int interrupt_status();

// While it lives, SIGINT and SIGTERM set the flag instead of ending the process; then the former
// handlers return. For a program's main thread; scopes may nest.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction former_interrupt_, former_terminate_;
};

// Writing to a pipe that nobody reads (`volvelle run ... | head -1`) ends the program at once,
// without a message, unfinished files removed, with the usual status (128 + SIGPIPE in a shell),
// also where it was started with SIGPIPE ignored. For main() of a command line program; a server
// calls ignore_broken_pipes instead.
void end_quietly_on_broken_pipe();
void ignore_broken_pipes();

// Writing past the limit on a file's size (RLIMIT_FSIZE) fails as on a full disk, where it would
// end the program.
void ignore_file_size_limits();

// A file to remove if a signal above ends the process. `path` must live until
// `keep_on_signal(path)`. At most 16 at a time; a further one is not noted.
void remove_on_signal(const std::string& path);
void keep_on_signal(const std::string& path);

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_INTERRUPT_H_
