// Watches temperature, clock and throttling while something else computes: speeds measured on a
// machine that slowed down meanwhile must say so.

#ifndef VOLVELLE_PLATFORMS_HEAT_MONITOR_H_
#define VOLVELLE_PLATFORMS_HEAT_MONITOR_H_

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace volvelle {

// What one watch saw; each is null where the machine does not tell.
struct Heat {
  std::optional<double> temperature_start, temperature_end, temperature_most;  // degrees Celsius
  std::optional<double> clock_start, clock_end, clock_least;                   // hertz
  std::optional<std::string> throttled;  // why, if it ever was
};

class HeatMonitor {
 public:
  // Looks at `cpus` now and every half second from a thread of its own. `root`: see system_file.h.
  explicit HeatMonitor(std::vector<int> cpus, std::string root = "");
  ~HeatMonitor();
  HeatMonitor(const HeatMonitor&) = delete;
  HeatMonitor& operator=(const HeatMonitor&) = delete;

  // What was seen up to now, which it looks at once more.
  Heat heat();

 private:
  void look();

  std::vector<int> cpus_;
  std::string root_;
  uint64_t count_;  // see throttle_count
  std::mutex mutex_;
  std::condition_variable done_;
  bool ends_ = false;
  Heat heat_;
  std::thread thread_;
};

}  // namespace volvelle

#endif  // VOLVELLE_PLATFORMS_HEAT_MONITOR_H_
