#include "converter/sources/json_file.h"

#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "converter/sources/source_file.h"

namespace volvelle {
namespace {

using nlohmann::json;

// Builds a document from the parser's events, so that depth and duplicates are seen before anything
// is built on them.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(std::string_view path, RepeatedNames repeated) : path_(path), repeated_(repeated) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto [member, added] = open_.back()->get_ptr<json::object_t*>()->emplace(name, nullptr);
    if (!added && repeated_ == RepeatedNames::refuse) {
      error_ = std::format("{}: \"{}\" stands twice in one object", path_, name);
      return false;
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    error_ = std::format("{}: is not valid JSON at byte {}: it is damaged; fetch it again", path_,
                         position);
    return false;
  }

  Result<json> finish(bool parsed) {
    if (parsed) return std::move(root_);
    return std::unexpected(Error{std::move(error_)});
  }

 private:
  json* place(json&& value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_array()) {
      json::array_t& array = *open_.back()->get_ptr<json::array_t*>();
      return &array.emplace_back(std::move(value));
    }
    return &(*member_ = std::move(value));
  }
  bool add(json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(json&& value) {
    if (open_.size() >= kJsonDepthLimit) {
      error_ = std::format("{}: its JSON is nested deeper than {}", path_, kJsonDepthLimit);
      return false;
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view path_;
  RepeatedNames repeated_;
  std::string error_;
  json root_;
  std::vector<json*>
      open_;  // containers being filled; a container does not move while one inside it is open
  json* member_ = nullptr;
};

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view path, RepeatedNames repeated) {
  Builder builder(path, repeated);
  return builder.finish(json::sax_parse(text.begin(), text.end(), &builder));
}

Result<json> read_json(const std::string& path) {
  VOLVELLE_ASSIGN_OR_RETURN(const SourceFile file, SourceFile::open(path));
  if (file.size() > kJsonBytesLimit) {
    return fail("{}: has {} bytes; at most {} are read of a JSON file", path, file.size(),
                kJsonBytesLimit);
  }
  std::string text(file.size(), '\0');
  VOLVELLE_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(text))));
  return parse_json(text, path);
}

Result<json> read_json_if_present(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return json();
  return read_json(path);
}

}  // namespace volvelle
