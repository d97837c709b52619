#include "converter/sources/tensor_source.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace volvelle {

uint64_t SourceTensor::rows() const {
  if (std::ranges::contains(shape, 0)) return 0;
  const auto last = shape.empty() ? shape.end() : shape.end() - 1;
  return std::accumulate(shape.begin(), last, uint64_t{1}, std::multiplies<>());
}

uint64_t SourceTensor::columns() const {
  if (std::ranges::contains(shape, 0)) return 0;
  return shape.empty() ? 1 : shape.back();
}

Result<void> TensorSource::read_words(const SourceTensor& tensor, uint64_t, uint64_t,
                                      std::span<uint32_t>) const {
  return fail("tensor {} is of type {}, where 32-bit integers are wanted", tensor.name,
              tensor.type);
}

std::vector<uint32_t> TensorSource::column_order(const SourceTensor&) const { return {}; }

const SourceTensor* TensorSource::find(std::string_view name) const {
  const std::vector<SourceTensor>& all = tensors();
  std::call_once(sorted_, [&] {
    by_name_.resize(all.size());
    std::iota(by_name_.begin(), by_name_.end(), size_t{0});
    std::ranges::sort(by_name_, {}, [&](size_t i) -> std::string_view { return all[i].name; });
  });
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [&](size_t i) -> std::string_view { return all[i].name; });
  return found != by_name_.end() && all[*found].name == name ? &all[*found] : nullptr;
}

}  // namespace volvelle
