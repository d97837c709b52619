#include "converter/table.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "kernels/rotary.h"

namespace volvelle {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

Offset<file::Tensor> add(FlatBufferBuilder& builder, const recipe::Tensor& tensor,
                         const StoredTensor& stored) {
  const auto name = builder.CreateString(tensor.name);
  const Storage& storage = stored.storage;
  const auto side_columns = storage.side_columns.empty()
                                ? Offset<flatbuffers::Vector<uint32_t>>()
                                : builder.CreateVector(storage.side_columns);
  return file::CreateTensor(builder, name, storage.type, tensor.rows, tensor.columns, &stored.data,
                            &stored.scales, storage.rotation, &stored.minima,
                            &stored.minimum_scales, side_columns, &stored.side,
                            &stored.side_scales);
}

file::RotaryScalingKind stored_kind(RotaryScalingKind kind) {
  switch (kind) {
    case RotaryScalingKind::kNone:
      return file::RotaryScalingKind::none;
    case RotaryScalingKind::kLinear:
      return file::RotaryScalingKind::linear;
    case RotaryScalingKind::kNtk:
      return file::RotaryScalingKind::ntk;
    case RotaryScalingKind::kDynamicNtk:
      return file::RotaryScalingKind::dynamic_ntk;
    case RotaryScalingKind::kYarn:
      return file::RotaryScalingKind::yarn;
    case RotaryScalingKind::kLongRope:
      return file::RotaryScalingKind::longrope;
    case RotaryScalingKind::kLlama3:
      return file::RotaryScalingKind::llama3;
    case RotaryScalingKind::kProportional:
      return file::RotaryScalingKind::proportional;
  }
  return file::RotaryScalingKind::none;
}

// Fields that the kind does not read are left at zero.
Offset<file::RotaryScaling> add_scaling(FlatBufferBuilder& builder, const RotaryScaling& plan) {
  const bool divided = plan.kind == RotaryScalingKind::kLongRope;
  const auto long_factors =
      divided ? builder.CreateVector(plan.long_factors) : Offset<flatbuffers::Vector<float>>();
  const auto short_factors =
      divided ? builder.CreateVector(plan.short_factors) : Offset<flatbuffers::Vector<float>>();
  file::RotaryScalingBuilder scaling(builder);
  scaling.add_kind(stored_kind(plan.kind));
  scaling.add_factor(plan.factor);
  scaling.add_original_context(plan.original_context);
  scaling.add_attention_factor(attention_factor(plan));
  scaling.add_turning_planes(plan.turning_planes);
  if (plan.kind == RotaryScalingKind::kLlama3) {
    scaling.add_low_frequency_factor(plan.low_frequency_factor);
    scaling.add_high_frequency_factor(plan.high_frequency_factor);
  }
  if (plan.kind == RotaryScalingKind::kYarn) {
    scaling.add_beta_fast(plan.beta_fast);
    scaling.add_beta_slow(plan.beta_slow);
    scaling.add_truncate(plan.truncate);
    scaling.add_mscale(plan.mscale);
    scaling.add_mscale_all_dim(plan.mscale_all_dim);
  }
  if (divided) {
    scaling.add_long_factors(long_factors);
    scaling.add_short_factors(short_factors);
  }
  return scaling.Finish();
}

Offset<file::Position> add(FlatBufferBuilder& builder, const RotaryPlan& plan,
                           const StoredDials& dials) {
  const auto rotary = add_rotary(builder, plan, dials);
  return file::CreatePosition(builder, file::Scheme::Rotary, rotary.Union());
}

Offset<file::Position> add(FlatBufferBuilder& builder, const recipe::SlopesPlan& plan) {
  const auto bias = file::CreateLinearBiasDirect(builder, &plan.slopes, plan.symmetric);
  return file::CreatePosition(builder, file::Scheme::LinearBias, bias.Union());
}

Offset<file::Position> add(FlatBufferBuilder& builder, const recipe::AdditiveTable& plan) {
  const auto table =
      file::CreateAdditiveTable(builder, plan.table, plan.row_offset, plan.learned, plan.padding);
  return file::CreatePosition(builder, file::Scheme::AdditiveTable, table.Union());
}

Offset<file::Position> add(FlatBufferBuilder& builder, const recipe::BucketedBias& plan) {
  const auto bias =
      file::CreateBucketedBias(builder, plan.table, plan.bidirectional, plan.max_distance);
  return file::CreatePosition(builder, file::Scheme::BucketedBias, bias.Union());
}

Offset<file::Position> add(FlatBufferBuilder& builder, const recipe::ClippedRelative& plan) {
  const auto row_of = plan.row_of.empty() ? Offset<flatbuffers::Vector<uint16_t>>()
                                          : builder.CreateVector(plan.row_of);
  const auto tables =
      file::CreateClippedRelative(builder, plan.key, plan.query, plan.value, plan.clip_distance,
                                  plan.unclipped, plan.heads, row_of);
  return file::CreatePosition(builder, file::Scheme::ClippedRelative, tables.Union());
}

Offset<file::Norm> add(FlatBufferBuilder& builder, const std::optional<recipe::Norm>& norm) {
  if (!norm) return Offset<file::Norm>();
  return file::CreateNorm(builder, norm->kind, norm->epsilon, norm->weight, norm->bias);
}

Offset<file::Linear> add(FlatBufferBuilder& builder, const recipe::Linear& linear) {
  return file::CreateLinear(builder, linear.weight, linear.bias);
}

Offset<file::Linear> add(FlatBufferBuilder& builder, const std::optional<recipe::Linear>& linear) {
  return linear ? add(builder, *linear) : Offset<file::Linear>();
}

Offset<file::Attention> add(FlatBufferBuilder& builder, const recipe::Attention& attention) {
  const auto qkv = add(builder, attention.qkv);
  const auto output = add(builder, attention.output);
  const auto query_norm = add(builder, attention.query_norm);
  const auto key_norm = add(builder, attention.key_norm);
  Offset<file::QueryTemperature> temperature;
  if (const auto& stated = attention.temperature) {
    temperature =
        file::CreateQueryTemperature(builder, stated->strength, stated->period, stated->offset);
  }
  file::AttentionBuilder table(builder);
  table.add_query_heads(attention.query_heads);
  table.add_kv_heads(attention.kv_heads);
  table.add_head_dim(attention.head_dim);
  table.add_scale(attention.scale);
  table.add_mask(attention.bidirectional ? file::Mask::full
                 : attention.chunked     ? file::Mask::chunked
                                         : file::Mask::causal);
  table.add_window(attention.window);
  table.add_qkv(qkv);
  table.add_output(output);
  table.add_query_norm(query_norm);
  table.add_key_norm(key_norm);
  table.add_position(attention.position);
  table.add_norm_scope(attention.norm_scope);
  table.add_norm_after_rotation(attention.norm_after_rotation);
  table.add_temperature(temperature);
  table.add_soft_cap(attention.soft_cap);
  table.add_qkv_limit(attention.qkv_limit);
  return table.Finish();
}

Offset<file::FeedForward> add(FlatBufferBuilder& builder, const recipe::FeedForward& feed_forward) {
  if (!feed_forward.router) {
    const auto gate_up = add(builder, feed_forward.experts[0].gate_up);
    const auto down = add(builder, feed_forward.experts[0].down);
    return file::CreateFeedForward(builder, feed_forward.activation, gate_up, down,
                                   feed_forward.plain);
  }
  std::vector<Offset<file::Linear>> gate_ups, downs;
  for (const recipe::Expert& expert : feed_forward.experts) {
    gate_ups.push_back(add(builder, expert.gate_up));
    downs.push_back(add(builder, expert.down));
  }
  const auto router = add(builder, *feed_forward.router);
  const auto experts = file::CreateExpertsDirect(builder, feed_forward.used, router,
                                                 /*normalize=*/true, &gate_ups, &downs);
  return file::CreateFeedForward(builder, feed_forward.activation, 0, 0, feed_forward.plain,
                                 experts);
}

Offset<file::CrossAttention> add(FlatBufferBuilder& builder,
                                 const std::optional<recipe::CrossAttention>& cross) {
  if (!cross) return Offset<file::CrossAttention>();
  const auto query = add(builder, cross->query);
  const auto key_value = add(builder, cross->key_value);
  const auto output = add(builder, cross->output);
  return file::CreateCrossAttention(builder, cross->heads, cross->head_dim, cross->scale, query,
                                    key_value, output);
}

Offset<file::Convolution> add(FlatBufferBuilder& builder,
                              const std::optional<recipe::Convolution>& convolution) {
  if (!convolution) return Offset<file::Convolution>();
  const auto linear = add(builder, convolution->linear);
  const auto norm = add(builder, convolution->norm);
  file::ConvolutionBuilder table(builder);
  table.add_kernel(convolution->kernel);
  table.add_linear(linear);
  if (convolution->activation) table.add_activation(*convolution->activation);
  table.add_norm(norm);
  return table.Finish();
}

Offset<file::Task> add(FlatBufferBuilder& builder, const recipe::Task& task) {
  std::vector<Offset<file::Layer>> layers;
  for (const recipe::Layer& layer : task.layers) {
    const auto linear = add(builder, layer.linear);
    const auto norm = add(builder, layer.norm);
    file::LayerBuilder table(builder);
    table.add_linear(linear);
    if (layer.activation) table.add_activation(*layer.activation);
    table.add_norm(norm);
    layers.push_back(table.Finish());
  }
  const auto layer_list = builder.CreateVector(layers);
  const auto labels = builder.CreateVectorOfStrings(task.labels);
  const auto further = builder.CreateVector(task.further_poolings);
  std::vector<Offset<file::Prompt>> prompts;
  for (const auto& [name, text] : task.prompts) {
    prompts.push_back(file::CreatePromptDirect(builder, name.c_str(), text.c_str()));
  }
  const auto prompt_list = builder.CreateVector(prompts);
  return file::CreateTask(builder, task.kind, task.pooling, layer_list, task.normalize, labels,
                          task.multi_label, further, task.max_tokens, prompt_list,
                          task.default_prompt, task.regression);
}

Offset<file::Block> add(FlatBufferBuilder& builder, const recipe::Block& block) {
  const auto attention_norm = add(builder, block.attention_norm);
  const auto attention = add(builder, block.attention);
  const auto attention_output_norm = add(builder, block.attention_output_norm);
  const auto feed_forward_norm = add(builder, block.feed_forward_norm);
  const auto feed_forward = add(builder, block.feed_forward);
  const auto feed_forward_output_norm = add(builder, block.feed_forward_output_norm);
  const auto cross_norm = add(builder, block.cross_norm);
  const auto cross = add(builder, block.cross);
  const auto convolution = add(builder, block.convolution);
  return file::CreateBlock(builder, block.residual, attention_norm, attention, feed_forward_norm,
                           feed_forward, attention_output_norm, feed_forward_output_norm,
                           block.branch_scale, cross_norm, cross, convolution);
}

Offset<file::Stack> add_stack(FlatBufferBuilder& builder, const recipe::Stack& model,
                              file::StackKind kind, uint64_t context) {
  std::vector<Offset<file::Block>> blocks;
  for (const recipe::Block& block : model.blocks) blocks.push_back(add(builder, block));
  const auto block_list = builder.CreateVector(blocks);
  const auto embedding_norm = add(builder, model.embedding_norm);
  const auto embedding_projection = add(builder, model.embedding_projection);
  const auto final_norm = add(builder, model.final_norm);
  const auto head_projection = add(builder, model.head_projection);
  const auto head_norm = add(builder, model.head_norm);
  const bool encodes = kind == file::StackKind::encoder;
  const auto head = encodes ? Offset<file::Linear>() : add(builder, model.head);
  std::vector<Offset<file::Task>> tasks;
  for (const recipe::Task& task : model.tasks) tasks.push_back(add(builder, task));
  const auto task_list =
      encodes ? builder.CreateVector(tasks) : Offset<flatbuffers::Vector<Offset<file::Task>>>();
  file::StackBuilder stack(builder);
  stack.add_kind(kind);
  stack.add_width(model.width);
  stack.add_context(static_cast<uint32_t>(context));
  stack.add_trained_context(model.trained_context);
  stack.add_embedding(model.embedding);
  stack.add_blocks(block_list);
  stack.add_final_norm(final_norm);
  stack.add_head(head);
  stack.add_embedding_scale(model.embedding_scale);
  stack.add_position(model.position);
  stack.add_embedding_norm(embedding_norm);
  stack.add_embedding_projection(embedding_projection);
  stack.add_head_projection(head_projection);
  if (model.head_activation) stack.add_head_activation(*model.head_activation);
  stack.add_head_norm(head_norm);
  stack.add_token_types(model.token_types);
  stack.add_projects_last(model.projects_last);
  stack.add_mixes_positions(model.mixes_positions);
  stack.add_tasks(task_list);
  stack.add_logit_scale(model.logit_scale);
  stack.add_logit_soft_cap(model.logit_soft_cap);
  return stack.Finish();
}

}  // namespace

Offset<file::Rotary> add_rotary(FlatBufferBuilder& builder, const RotaryPlan& plan,
                                const StoredDials& dials,
                                const std::optional<Extension>& extension) {
  const RotaryTables& tables = dials.tables;
  const auto scaling = add_scaling(builder, plan.scaling);
  const auto original = builder.CreateVector(tables.original_frequencies);
  const auto frequencies = builder.CreateVector(tables.frequencies);
  const bool switches = tables.switch_length != 0;
  const auto long_frequencies = switches ? builder.CreateVector(tables.long_frequencies)
                                         : Offset<flatbuffers::Vector<float>>();
  Offset<file::RotaryScaling> own_scaling;
  Offset<flatbuffers::Vector<float>> own_frequencies;
  if (plan.origin) {
    own_scaling = add_scaling(builder, plan.origin->scaling);
    own_frequencies = builder.CreateVector(plan.origin->frequencies);
  }
  Offset<file::Extension> extended;
  if (extension) {
    extended = file::CreateExtension(builder, extension->file_bytes, extension->table_bytes,
                                     extension->context);
  }
  file::RotaryBuilder rotary(builder);
  rotary.add_pairing(plan.pairing == Pairing::kHalf ? file::Pairing::half
                                                    : file::Pairing::interleaved);
  rotary.add_width(plan.width);
  rotary.add_base(plan.base);
  rotary.add_original_frequencies(original);
  rotary.add_frequencies(frequencies);
  rotary.add_scaling(scaling);
  rotary.add_amplitude(tables.amplitude);
  rotary.add_coarse(&dials.coarse);
  rotary.add_coarse_rows(tables.coarse_rows);
  rotary.add_fine(&dials.fine);
  rotary.add_fine_rows(tables.fine_rows);
  if (switches) {
    rotary.add_switch_length(tables.switch_length);
    rotary.add_long_frequencies(long_frequencies);
    rotary.add_long_coarse(&dials.long_coarse);
    rotary.add_long_fine(&dials.long_fine);
  }
  if (plan.origin) {
    rotary.add_own_base(plan.origin->base);
    rotary.add_own_scaling(own_scaling);
    rotary.add_own_frequencies(own_frequencies);
  }
  rotary.add_extension(extended);
  return rotary.Finish();
}

void build_table(const About& about, const recipe::Model& model,
                 std::span<const StoredTensor> tensors, std::span<const StoredDials> dials,
                 uint64_t context, const recipe::Generation& generation,
                 Offset<file::Tokenizer> tokenizer, FlatBufferBuilder& builder) {
  std::vector<Offset<file::Tensor>> tensor_list;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_list.push_back(add(builder, model.tensors[i], tensors[i]));
  }
  std::vector<Offset<file::Position>> positions;
  size_t next_dials = 0;
  for (const recipe::PositionPlan& plan : model.positions) {
    const auto stored = [&]<typename Plan>(const Plan& scheme) -> Offset<file::Position> {
      if constexpr (std::is_same_v<Plan, RotaryPlan>) {
        return add(builder, scheme, dials[next_dials++]);
      } else if constexpr (std::is_same_v<Plan, SinusoidPlan>) {
        return file::CreatePosition(builder);  // by now a table
      } else {
        return add(builder, scheme);
      }
    };
    positions.push_back(std::visit(stored, plan));
  }
  std::vector<Offset<file::Stack>> stacks;
  if (model.encoder) {
    stacks.push_back(add_stack(builder, *model.encoder, file::StackKind::encoder,
                               std::min<uint64_t>(context, model.encoder->trained_context)));
  }
  const auto kind = model.encodes ? file::StackKind::encoder : file::StackKind::decoder;
  stacks.push_back(add_stack(builder, model, kind, context));
  std::vector<Offset<file::BadWord>> bad_words;
  for (const std::vector<uint32_t>& word : generation.bad_words) {
    bad_words.push_back(file::CreateBadWordDirect(builder, &word));
  }
  const auto generation_table = file::CreateGenerationDirect(
      builder, &generation.eos, generation.sample, generation.temperature, generation.top_k,
      generation.top_p, generation.min_p, generation.repetition_penalty, generation.decoder_start,
      generation.forced_bos, generation.forced_eos, generation.beams, generation.length_penalty,
      generation.early_stopping, generation.no_repeat_ngram, generation.min_length,
      generation.max_length, &bad_words);
  const auto table =
      file::CreateModelDirect(builder, about.name.c_str(), about.origin.c_str(),
                              about.family.c_str(), about.licence.c_str(), model.vocabulary,
                              &tensor_list, &positions, &stacks, tokenizer, generation_table);
  file::FinishModelBuffer(builder, table);
}

}  // namespace volvelle
