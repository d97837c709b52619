#include "tests/goldens/golden.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <format>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "converter/convert.h"
#include "platforms/thread_pool.h"

namespace volvelle {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A NumPy file of version 1.0 that holds little-endian float32 in C order: magic, the header's
// length, a header that names the shape, then the values.
std::vector<float> read_npy(const fs::path& path, size_t& columns) {
  const std::string file = read_file(path);
  uint16_t header_bytes;
  std::memcpy(&header_bytes, file.data() + 8, sizeof header_bytes);
  const std::string header = file.substr(10, header_bytes);
  if (header.find("'<f4'") == std::string::npos || header.find("False") == std::string::npos) {
    throw std::runtime_error(path.string() + " does not hold little-endian float32 in C order");
  }
  const size_t comma = header.find(',', header.find("'shape'") + 9);
  columns = std::stoul(header.substr(comma + 1));
  std::vector<float> values((file.size() - 10 - header_bytes) / sizeof(float));
  std::memcpy(values.data(), file.data() + 10 + header_bytes, values.size() * sizeof(float));
  return values;
}

fs::path temporary_name(const char* ending) {
  static int count = 0;
  return fs::temp_directory_path() /
         std::format("volvelle-golden-{}-{}{}", ::getpid(), count++, ending);
}

// A file that is gone when this is.
struct TemporaryFile {
  fs::path path = temporary_name(".vvl");
  ~TemporaryFile() { fs::remove(path); }
};

void convert_to_file(const fs::path& source, const std::string& weights, uint64_t context,
                     const fs::path& output, const std::string& scaling = "") {
  ConvertOptions options{.source = source.string(), .output = output.string()};
  options.weights = weights == "f32"  ? WeightType::kF32
                    : weights == "q8" ? WeightType::kQ8
                                      : WeightType::kQ4;
  if (context > 0) options.context = context;
  if (!scaling.empty()) options.scaling = parse_scaling_spec(scaling).value();
  ThreadPool pool = *ThreadPool::make(1);
  const auto report = convert(options, pool);
  if (!report) throw std::runtime_error(report.error().message);
}

Golden read_record(const fs::path& record) {
  const auto json = nlohmann::json::parse(read_file(record));
  Golden golden;
  golden.name = fs::relative(record, "tests/goldens").string();
  const std::string source = json.at("source");
  golden.source = source == "folder" ? record.parent_path() : record.parent_path() / source;
  golden.tokens = json.at("tokens").get<std::vector<int32_t>>();
  golden.greedy = json.at("greedy").get<std::vector<int32_t>>();
  golden.first_position = json.at("first_position");
  golden.context = json.value("context", uint64_t{0});
  // Some ask for positions past the checkpoint's context; the file then reaches them.
  if (golden.first_position > 0) {
    golden.context = golden.first_position + golden.tokens.size() + golden.greedy.size();
  }
  golden.logits =
      read_npy(record.parent_path() / json.at("logits").get<std::string>(), golden.vocabulary);
  return golden;
}

}  // namespace

float Golden::range() const {
  const auto [least, largest] = std::ranges::minmax(logits);
  return largest - least;
}

std::vector<float> read_floats(const fs::path& path) {
  size_t columns = 0;
  return read_npy(path, columns);
}

std::vector<Golden> read_goldens() {
  std::vector<fs::path> records;
  for (const auto& entry : fs::recursive_directory_iterator("tests/goldens")) {
    if (entry.path().string().contains("/pending/")) continue;  // no converter for these yet
    const std::string name = entry.path().filename().string();
    if (name.starts_with("expected") && fs::exists(entry.path().parent_path() / "logits.npy")) {
      records.push_back(entry.path());
    }
  }
  std::ranges::sort(records);

  std::vector<Golden> goldens;
  for (const fs::path& record : records) goldens.push_back(read_record(record));
  return goldens;
}

Golden read_golden(const std::string& folder) {
  return read_record(fs::path("tests/goldens") / folder / "expected.json");
}

std::shared_ptr<const Model> convert_to_model(const fs::path& source, const std::string& weights,
                                              uint64_t context, const std::string& scaling) {
  const TemporaryFile file;
  convert_to_file(source, weights, context, file.path, scaling);
  auto model = Model::load(file.path.string());
  if (!model) throw std::runtime_error(model.error().message);
  return *std::move(model);  // the mapping outlives the name
}

std::vector<std::byte> convert_to_bytes(const fs::path& source, const std::string& weights,
                                        uint64_t context) {
  const TemporaryFile file;
  convert_to_file(source, weights, context, file.path);
  const std::string bytes = read_file(file.path);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

void AlteredCheckpoint::copy(const std::string& folder) {
  folder_ = temporary_name("");
  source_ = folder_ / "model";  // the model's name is alike for all
  fs::create_directories(folder_);
  fs::copy("tests/goldens/" + folder, source_, fs::copy_options::recursive);
}

AlteredCheckpoint::AlteredCheckpoint(const std::string& folder,
                                     const std::function<void(nlohmann::json& config)>& change) {
  copy(folder);
  nlohmann::json config = nlohmann::json::parse(read_file(source_ / "config.json"));
  change(config);
  std::ofstream(source_ / "config.json") << config;
}

AlteredCheckpoint::AlteredCheckpoint(const std::string& folder, const std::string& key,
                                     uint32_t value) {
  copy(folder);
  put(key, &value);
}

AlteredCheckpoint::AlteredCheckpoint(const std::string& folder, const std::string& key,
                                     float value) {
  copy(folder);
  put(key, &value);
}

// In the file the key is followed by four bytes for its value's type.
void AlteredCheckpoint::put(const std::string& key, const void* number) {
  source_ /= "model.gguf";
  std::string file = read_file(source_);
  const size_t found = file.find(key);
  if (found == std::string::npos) throw std::runtime_error(source_.string() + " has no " + key);
  std::memcpy(file.data() + found + key.size() + 4, number, 4);
  std::ofstream(source_, std::ios::binary) << file;
}

AlteredCheckpoint::~AlteredCheckpoint() { fs::remove_all(folder_); }

std::unique_ptr<Session> open_session(std::shared_ptr<const Model> model, ThreadPool& pool,
                                      const Golden& golden, size_t tokens, size_t chunk,
                                      CacheType cache) {
  auto session = Session::open(
      std::move(model), pool,
      {.cache = cache, .context = tokens, .chunk = chunk, .first_position = golden.first_position});
  if (!session) throw std::runtime_error(session.error().message);
  return *std::move(session);
}

std::vector<float> logits_of(Session& session, std::span<const int32_t> tokens) {
  std::vector<float> all;
  const auto fed =
      session.feed_all(tokens, [&](size_t, size_t, std::span<const float> logits) -> Result<void> {
        all.insert(all.end(), logits.begin(), logits.end());
        return {};
      });
  if (!fed) throw std::runtime_error(fed.error().message);
  return all;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) {
    throw std::runtime_error(std::format("{} numbers against {}", a.size(), b.size()));
  }
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

}  // namespace volvelle
