#include "platforms/heat_monitor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "platforms/thermal.h"

namespace volvelle {

HeatMonitor::HeatMonitor(std::vector<int> cpus, std::string root)
    : cpus_(std::move(cpus)), root_(std::move(root)), count_(throttle_count(root_)) {
  look();
  heat_.temperature_start = heat_.temperature_end;
  heat_.clock_start = heat_.clock_end;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::milliseconds(500), [this] { return ends_; })) look();
  });
}

HeatMonitor::~HeatMonitor() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  done_.notify_one();
  thread_.join();
}

void HeatMonitor::look() {
  heat_.temperature_end = processor_temperature(root_);
  heat_.clock_end = processor_clock(cpus_, root_);
  heat_.temperature_most = std::max(heat_.temperature_most, heat_.temperature_end);
  if (heat_.clock_end) {
    heat_.clock_least = std::min(heat_.clock_least.value_or(*heat_.clock_end), *heat_.clock_end);
  }
  if (heat_.throttled) return;
  heat_.throttled = throttle_reason(root_);
  if (!heat_.throttled && throttle_count(root_) > count_) heat_.throttled = "too hot";
}

Heat HeatMonitor::heat() {
  const std::lock_guard lock(mutex_);
  look();
  return heat_;
}

}  // namespace volvelle
