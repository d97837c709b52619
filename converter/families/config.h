// A checkpoint's configuration as a family reads it. Whatever a family reads counts as understood;
// what it leaves unread and is not known to be harmless is refused by name, so that nothing which
// may change the mathematics is ever passed over. The first fault is kept and later reads give
// zeros: families read straight through and ask for status() before they use what they read.

#ifndef VOLVELLE_CONVERTER_FAMILIES_CONFIG_H_
#define VOLVELLE_CONVERTER_FAMILIES_CONFIG_H_

#include <cstdint>
#include <format>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "platforms/error.h"

namespace volvelle {

class Config {
 public:
  // `values` is an object; members of nested objects are read as "outer.inner". Members named in
  // `ignored`, by their whole name, by an outer one or by the last component, are as good as
  // absent.
  //
  //   file    names the configuration in errors: "model/config.json"
  //   prefix  stands before every key in the file and in `values`, not in keys asked for: "llama."
  Config(std::string file, std::string prefix, const nlohmann::json& values,
         std::span<const std::string> ignored);

  // null counts as present here and as absent everywhere else.
  bool mentions(const std::string& key);
  bool has(const std::string& key);
  bool has_section(const std::string& key) const;  // members "key.…", without reading them

  // Whole numbers in [1, 2^31); a list of equal numbers counts as the number.
  uint64_t count(const std::string& key);
  uint64_t count(const std::string& key, uint64_t fallback);
  std::optional<uint64_t> optional_count(const std::string& key);

  double number(const std::string& key);  // finite
  double number(const std::string& key, double fallback);
  bool flag(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  const nlohmann::json* value(const std::string& key);  // of any type; null when absent

  // Reads a key that may be absent or say what it would mean if absent, and nothing else.
  void expect(const std::string& key, const nlohmann::json& only);

  // Refuses the checkpoint because of `key`; the first fault counts.
  template <typename... Args>
  void refuse(const std::string& key, std::format_string<Args...> format, Args&&... args) {
    fault(key, std::format(format, std::forward<Args>(args)...));
  }

  Result<void> status() const;

  // The first fault, or else a sentence about the keys that nobody has read and that are not
  // harmless.
  Result<void> finish(std::string_view family) const;

  const std::string& file() const { return file_; }

 private:
  void flatten(const std::string& path, const nlohmann::json& value,
               std::span<const std::string> ignored, int depth);
  void fault(const std::string& key, const std::string& what);

  std::string file_;
  std::string prefix_;
  std::map<std::string, nlohmann::json> values_;
  std::set<std::string> read_;
  std::optional<Error> fault_;
};

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_FAMILIES_CONFIG_H_
