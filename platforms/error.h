// How every layer says that something went wrong: an `Error` is one sentence for a person that
// names what failed, where, and what to do about it. Nothing in Volvelle throws across its border,
// aborts, or asserts on what a file or a user can cause.

#ifndef VOLVELLE_PLATFORMS_ERROR_H_
#define VOLVELLE_PLATFORMS_ERROR_H_

#include <expected>
#include <format>
#include <string>
#include <utility>

namespace volvelle {

struct Error {
  std::string message;  // one sentence, no newline
};

template <typename T = void>
using Result = std::expected<T, Error>;

// Makes the error value of any `Result`: `return fail("{}: {} bytes are missing", path, count);`
template <typename... Args>
[[nodiscard]] std::unexpected<Error> fail(std::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error{std::format(format, std::forward<Args>(args)...)});
}

}  // namespace volvelle

// Evaluates `expression` (a Result); on success assigns its value to `declaration`, otherwise
// returns the error.
#define VOLVELLE_ASSIGN_OR_RETURN(declaration, expression) \
  VOLVELLE_ASSIGN_OR_RETURN_(VOLVELLE_JOIN_(volvelle_result_, __LINE__), declaration, expression)
#define VOLVELLE_ASSIGN_OR_RETURN_(result, declaration, expression)           \
  auto result = (expression);                                                 \
  if (!result.has_value()) return std::unexpected(std::move(result).error()); \
  declaration = *std::move(result)
#define VOLVELLE_JOIN_(a, b) VOLVELLE_JOIN_AGAIN_(a, b)
#define VOLVELLE_JOIN_AGAIN_(a, b) a##b

// Evaluates `expression` (a Result); on failure returns its error.
#define VOLVELLE_RETURN_IF_ERROR(expression)                             \
  if (auto volvelle_status = (expression); !volvelle_status.has_value()) \
  return std::unexpected(std::move(volvelle_status).error())

#endif  // VOLVELLE_PLATFORMS_ERROR_H_
