#include "converter/group_order.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace volvelle {
namespace {

using recipe::Order;

// The same rows in another order within each stretch of `inner`; nothing where they cannot be.
std::optional<std::vector<recipe::Part>> in_order(const recipe::Tensor& tensor, uint64_t inner,
                                                  const Order& order) {
  std::vector<recipe::Part> parts;
  for (recipe::Part part : tensor.parts) {
    const uint64_t rows = part.rows;
    if (rows % inner != 0 || part.head_rows != 0 || part.transposed || part.reversed) return {};
    part.rows = inner;
    part.row_order = order;
    for (uint64_t first = 0; first < rows; first += inner, part.first_row += inner) {
      parts.push_back(part);
    }
  }
  return parts;
}

void gather(const TensorSource& source, const recipe::Expert& expert,
            std::vector<recipe::Tensor>& tensors) {
  recipe::Tensor& down = tensors[expert.down.weight];
  if (down.parts.size() != 1 || down.parts[0].source == nullptr) return;
  recipe::Part& part = down.parts[0];
  // Blocks may share a feed-forward.
  if (part.transposed || part.column_order != nullptr) return;
  std::vector<uint32_t> columns = source.column_order(*part.source);
  if (columns.empty()) return;
  const auto order = std::make_shared<const std::vector<uint32_t>>(std::move(columns));
  recipe::Tensor& weight = tensors[expert.gate_up.weight];
  auto rows = in_order(weight, down.columns, order);
  if (!rows) return;
  if (expert.gate_up.bias >= 0) {
    recipe::Tensor& bias = tensors[expert.gate_up.bias];
    auto elements = in_order(bias, down.columns, order);
    if (!elements) return;
    bias.parts = *std::move(elements);
  }
  weight.parts = *std::move(rows);
  part.column_order = order;
}

}  // namespace

void gather_groups(const TensorSource& source, recipe::Model& model) {
  const auto gather_all = [&](const recipe::Stack& stack) {
    for (const recipe::Block& block : stack.blocks) {
      for (const recipe::Expert& expert : block.feed_forward.experts) {
        gather(source, expert, model.tensors);
      }
    }
  };
  gather_all(model);
  if (model.encoder) gather_all(*model.encoder);
}

}  // namespace volvelle
