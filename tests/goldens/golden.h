// A golden: a tiny random checkpoint and what its reference implementation computed from it
// (README.md).

#ifndef VOLVELLE_TESTS_GOLDENS_GOLDEN_H_
#define VOLVELLE_TESTS_GOLDENS_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "platforms/thread_pool.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace volvelle {

struct Golden {
  std::string name;              // of its folder, and of the record in it
  std::filesystem::path source;  // what the converter reads
  std::vector<int32_t> tokens;
  std::vector<int32_t> greedy;  // how the reference goes on
  std::vector<float> logits;    // [tokens, vocabulary]
  size_t vocabulary = 0;
  size_t first_position = 0;
  uint64_t context = 0;  // to convert for; 0: the checkpoint's own

  // Largest minus smallest logit: what differences are measured against.
  float range() const;
};

// All that follow throw where something fails, which ends the test with the reason.

// The numbers of a .npy file of two dimensions.
std::vector<float> read_floats(const std::filesystem::path& path);

// Every golden of a decoder alone under tests/goldens, by name.
std::vector<Golden> read_goldens();

// The golden of tests/goldens/`folder`, of several the one in expected.json.
Golden read_golden(const std::string& folder);

// Converts `source` with `--weights NAME` into a temporary file, maps it and removes the name.
// `context` 0: the checkpoint's own; `scaling`, where there is one, as `--scaling` takes it.
std::shared_ptr<const Model> convert_to_model(const std::filesystem::path& source,
                                              const std::string& weights, uint64_t context = 0,
                                              const std::string& scaling = "");

// The bytes of the file that the conversion gives.
std::vector<std::byte> convert_to_bytes(const std::filesystem::path& source,
                                        const std::string& weights, uint64_t context = 0);

// A copy of a golden's checkpoint, with something changed that its configuration says.
class AlteredCheckpoint {
 public:
  // Of tests/goldens/`folder`, its config.json as `change` leaves it.
  AlteredCheckpoint(const std::string& folder,
                    const std::function<void(nlohmann::json& config)>& change);

  // Of tests/goldens/`folder`/model.gguf, with another number for `key`: as uint32_t or float.
  AlteredCheckpoint(const std::string& folder, const std::string& key, uint32_t value);
  AlteredCheckpoint(const std::string& folder, const std::string& key, float value);

  ~AlteredCheckpoint();
  AlteredCheckpoint(const AlteredCheckpoint&) = delete;
  AlteredCheckpoint& operator=(const AlteredCheckpoint&) = delete;

  const std::filesystem::path& source() const { return source_; }

 private:
  void copy(const std::string& folder);
  void put(const std::string& key, const void* number);

  std::filesystem::path folder_;
  std::filesystem::path source_;
};

// How far a logit may be from the golden's, in ranges: ten times the reference's own worst distance
// from float64.
inline constexpr float kTolerance = 5e-5f;

// A session for `tokens` tokens of the golden; some scalings go by that number.
std::unique_ptr<Session> open_session(std::shared_ptr<const Model> model, ThreadPool& pool,
                                      const Golden& golden, size_t tokens, size_t chunk = 512,
                                      CacheType cache = CacheType::kF32);

// The logits after each token: [tokens, vocabulary].
std::vector<float> logits_of(Session& session, std::span<const int32_t> tokens);

// Between numbers of two lists of one length; not a number counts as a difference.
float largest_difference(std::span<const float> a, std::span<const float> b);

}  // namespace volvelle

#endif  // VOLVELLE_TESTS_GOLDENS_GOLDEN_H_
