#include "runtime/model.h"

#include <bit>
#include <cstring>
#include <filesystem>

#include "kernels/hadamard.h"
#include "kernels/quantize.h"
#include "runtime/file_format.h"
#include "runtime/finite.h"
#include "runtime/model_verifier.h"

namespace volvelle {

Result<std::shared_ptr<const Model>> Model::load(const std::string& path, PackedIn packed_in) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {  // a checkpoint's, most likely
    return fail("{}: is a folder; make a model of the checkpoint in it with `volvelle convert`",
                path);
  }
  VOLVELLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  std::shared_ptr<Model> model(new Model);
  model->path_ = path;
  model->bytes_ = file.bytes();
  // Rows of an embedding are wide apart, and of packed weights not a byte is wanted here.
  file.expect_random();
  model->file_ = std::move(file);
  model->packed_in_ = packed_in;
  VOLVELLE_RETURN_IF_ERROR(ModelVerifier::verify(*model));
  return model;
}

Result<std::shared_ptr<const Model>> Model::from_bytes(std::span<const std::byte> bytes,
                                                       std::string name) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kSegmentAlignment != 0) {
    return fail("{}: a model in memory must be aligned to {} bytes", name, kSegmentAlignment);
  }
  std::shared_ptr<Model> model(new Model);
  model->path_ = std::move(name);
  model->bytes_ = bytes;
  VOLVELLE_RETURN_IF_ERROR(ModelVerifier::verify(*model));
  return model;
}

void Model::read_ahead(const SegmentView& segment) const {
  if (file_) (void)file_->advise_willneed(segment.offset, segment.bytes.size());
}

Result<void> Model::verify_segments(const Tensor& tensor,
                                    std::initializer_list<const SegmentView*> segments) const {
  for (const SegmentView* segment : segments) {
    if (segment->bytes.empty()) continue;
    read_ahead(*segment);
    if (checksum(segment->bytes) != segment->checksum) {
      return fail(
          "{}: tensor {}: the checksum of its bytes does not hold; copy or convert the file again",
          path_, tensor.name);
    }
  }
  return {};
}

Result<void> Model::verify_unpacked(const Tensor& tensor) const {
  VOLVELLE_RETURN_IF_ERROR(verify_segments(
      tensor, {&tensor.minima, &tensor.minimum_scales, &tensor.side, &tensor.side_scales}));
  const auto finite = [](const ThinWeights& weights) {
    return all_finite({weights.scales, weights.outputs});
  };
  const bool whole = finite(tensor.block_minima()) && finite(tensor.side_weights());
  return whole ? Result<void>() : no_number(tensor);
}

Result<void> Model::verify_contents(const Tensor& tensor) const {
  VOLVELLE_RETURN_IF_ERROR(verify_segments(tensor, {&tensor.data, &tensor.scales}));
  const auto finite = [&] {
    switch (tensor.type) {
      case TensorType::kF32:
        return all_finite({tensor.f32(), tensor.rows * tensor.columns});
      case TensorType::kQ8:
        return all_finite({tensor.row_scales(), tensor.rows});
      case TensorType::kQ4:
        return all_finite_bf16({tensor.block_scales(), tensor.rows * tensor.blocks()});
    }
    return false;
  };
  return finite() ? verify_unpacked(tensor) : no_number(tensor);
}

std::unexpected<Error> Model::no_number(const Tensor& tensor) const {
  return fail("{}: tensor {}: holds what is no number; convert the checkpoint again", path_,
              tensor.name);
}

void Model::drop_pages(const Tensor& tensor) const {
  if (!file_) return;
  for (const SegmentView& segment : {tensor.data, tensor.scales}) {
    if (!segment.bytes.empty()) (void)file_->drop(segment.offset, segment.bytes.size());
  }
}

void visit_linears(const Stack& stack, const VisitLinear& function) {
  if (stack.embedding_projection) function(*stack.embedding_projection, 1);
  for (const Block& block : stack.blocks) {
    function(block.attention.qkv, 1);
    function(block.attention.output, 1);
    if (block.cross) {
      function(block.cross->query, 1);
      function(block.cross->key_value, 0);  // once for a source
      function(block.cross->output, 1);
    }
    if (block.convolution) function(block.convolution->linear, 1);
    const FeedForward& feed_forward = block.feed_forward;
    if (feed_forward.router.weight != nullptr) function(feed_forward.router, 1);
    const double share =
        static_cast<double>(feed_forward.used) / static_cast<double>(feed_forward.experts.size());
    for (const Expert& expert : feed_forward.experts) {
      function(expert.gate_up, share);
      function(expert.down, share);
    }
  }
  if (stack.head_projection) function(*stack.head_projection, 1);
}

std::vector<const Linear*> Model::linears_of(const Stack& stack) {
  std::vector<const Linear*> linears;
  visit_linears(stack, [&](const Linear& linear, double) { linears.push_back(&linear); });
  if (stack.head.weight != nullptr) linears.push_back(&stack.head);
  return linears;
}

void Model::for_each_linear(const VisitLinear& function) const {
  if (!generates_) return visit_linears(*encoder_, function);
  visit_linears(decoder_, function);
  function(decoder_.head, 1);
}

size_t Model::weight_bytes_per_token() const {
  double bytes = 0;
  for_each_linear([&](const Linear& linear, double share) {
    bytes += share * static_cast<double>(linear.weight->bytes());
  });
  return static_cast<size_t>(bytes);
}

Result<void> Model::check_tokens(const Stack& stack, std::span<const int32_t> tokens) const {
  const size_t vocabulary = stack.embedding->rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<size_t>(tokens[i]) >= vocabulary) {
      return fail(
          "token {} (number {} of the input) is not in the vocabulary of {}: ids run from 0 to {}",
          tokens[i], i + 1, vocabulary, vocabulary - 1);
    }
  }
  return {};
}

ThinWeights Tensor::block_minima() const {
  if (minima.bytes.empty()) return {};
  return {reinterpret_cast<const int8_t*>(minima.bytes.data()),
          reinterpret_cast<const float*>(minimum_scales.bytes.data()), blocks(), rows};
}

ThinWeights Tensor::side_weights() const {
  if (side_columns.empty()) return {};
  return {reinterpret_cast<const int8_t*>(side.bytes.data()),
          reinterpret_cast<const float*>(side_scales.bytes.data()), side_columns.size(), rows};
}

void read_row(const Tensor& tensor, size_t row, float* y) {
  switch (tensor.type) {
    case TensorType::kF32:
      std::memcpy(y, tensor.f32() + row * tensor.columns, tensor.columns * sizeof(float));
      break;
    case TensorType::kQ8:
      dequantize_q8(tensor.q8() + row * tensor.columns, tensor.row_scales()[row], tensor.columns,
                    y);
      break;
    case TensorType::kQ4: {
      const size_t padded = tensor.padded_columns();
      const uint8_t* codes = tensor.q4() + row * (padded / 2);
      const uint16_t* scales = tensor.block_scales() + row * (padded / kQ4Block);
      const ThinWeights minima = tensor.block_minima();
      for (size_t i = 0; i < tensor.columns; ++i) {
        const float scale = std::bit_cast<float>(uint32_t{scales[i / kQ4Block]} << 16);
        y[i] = static_cast<float>((codes[i / 2] >> (i % 2 * 4) & 15) - 8) * scale;
        if (minima.codes != nullptr) {
          y[i] += minima.codes[i / kQ4Block * tensor.rows + row] * minima.scales[row];
        }
      }
      break;
    }
  }
  hadamard(tensor.rotation, tensor.columns, y);
  const ThinWeights side = tensor.side_weights();
  for (size_t i = 0; i < side.inputs; ++i) {
    y[tensor.side_columns[i]] = side.codes[i * side.outputs + row] * side.scales[row];
  }
}

}  // namespace volvelle
