#include "converter/families/family.h"

#include <array>

namespace volvelle {

Result<recipe::Model> describe_baichuan(Checkpoint& checkpoint);
Result<recipe::Model> describe_bart(Checkpoint& checkpoint);
Result<recipe::Model> describe_bert(Checkpoint& checkpoint);
Result<recipe::Model> describe_bloom(Checkpoint& checkpoint);
Result<recipe::Model> describe_cohere(Checkpoint& checkpoint);
Result<recipe::Model> describe_cohere2(Checkpoint& checkpoint);
Result<recipe::Model> describe_ctrl(Checkpoint& checkpoint);
Result<recipe::Model> describe_deberta_v2(Checkpoint& checkpoint);
Result<recipe::Model> describe_distilbert(Checkpoint& checkpoint);
Result<recipe::Model> describe_electra(Checkpoint& checkpoint);
Result<recipe::Model> describe_falcon(Checkpoint& checkpoint);
Result<recipe::Model> describe_gemma(Checkpoint& checkpoint);
Result<recipe::Model> describe_gemma2(Checkpoint& checkpoint);
Result<recipe::Model> describe_gemma3(Checkpoint& checkpoint);
Result<recipe::Model> describe_glm(Checkpoint& checkpoint);
Result<recipe::Model> describe_glm4(Checkpoint& checkpoint);
Result<recipe::Model> describe_gpt2(Checkpoint& checkpoint);
Result<recipe::Model> describe_gpt_neox(Checkpoint& checkpoint);
Result<recipe::Model> describe_gptj(Checkpoint& checkpoint);
Result<recipe::Model> describe_granite(Checkpoint& checkpoint);
Result<recipe::Model> describe_jina_bert(Checkpoint& checkpoint);
Result<recipe::Model> describe_llama(Checkpoint& checkpoint);
Result<recipe::Model> describe_llama4(Checkpoint& checkpoint);
Result<recipe::Model> describe_m2m_100(Checkpoint& checkpoint);
Result<recipe::Model> describe_marian(Checkpoint& checkpoint);
Result<recipe::Model> describe_mbart(Checkpoint& checkpoint);
Result<recipe::Model> describe_ministral3(Checkpoint& checkpoint);
Result<recipe::Model> describe_mistral(Checkpoint& checkpoint);
Result<recipe::Model> describe_mixtral(Checkpoint& checkpoint);
Result<recipe::Model> describe_modernbert(Checkpoint& checkpoint);
Result<recipe::Model> describe_mpt(Checkpoint& checkpoint);
Result<recipe::Model> describe_mt5(Checkpoint& checkpoint);
Result<recipe::Model> describe_nomic_bert(Checkpoint& checkpoint);
Result<recipe::Model> describe_olmo(Checkpoint& checkpoint);
Result<recipe::Model> describe_olmo2(Checkpoint& checkpoint);
Result<recipe::Model> describe_opt(Checkpoint& checkpoint);
Result<recipe::Model> describe_pegasus(Checkpoint& checkpoint);
Result<recipe::Model> describe_persimmon(Checkpoint& checkpoint);
Result<recipe::Model> describe_phi(Checkpoint& checkpoint);
Result<recipe::Model> describe_phi3(Checkpoint& checkpoint);
Result<recipe::Model> describe_qwen2(Checkpoint& checkpoint);
Result<recipe::Model> describe_qwen3(Checkpoint& checkpoint);
Result<recipe::Model> describe_roberta(Checkpoint& checkpoint);
Result<recipe::Model> describe_smollm3(Checkpoint& checkpoint);
Result<recipe::Model> describe_stablelm(Checkpoint& checkpoint);
Result<recipe::Model> describe_starcoder2(Checkpoint& checkpoint);
Result<recipe::Model> describe_t5(Checkpoint& checkpoint);
Result<recipe::Model> describe_t5_encoder(Checkpoint& checkpoint);
Result<recipe::Model> describe_transformer(Checkpoint& checkpoint);
Result<recipe::Model> describe_umt5(Checkpoint& checkpoint);
Result<recipe::Model> describe_xglm(Checkpoint& checkpoint);
Result<recipe::Model> describe_xlm(Checkpoint& checkpoint);

std::span<const Family> families() {
  static constexpr auto kFamilies = std::to_array<Family>({
      {"baichuan", "baichuan", "baichuan", describe_baichuan},
      {"bart", "bart", "", describe_bart},
      {"bert", "bert", "bert", describe_bert},
      {"bloom", "bloom", "bloom", describe_bloom},
      {"camembert", "camembert", "", describe_roberta},
      {"cohere", "cohere", "command-r", describe_cohere},
      {"cohere2", "cohere2", "cohere2", describe_cohere2},
      {"ctrl", "ctrl", "", describe_ctrl},
      {"deberta-v2", "deberta-v2", "", describe_deberta_v2},
      {"distilbert", "distilbert", "", describe_distilbert},
      {"electra", "electra", "", describe_electra},
      {"falcon", "falcon", "falcon", describe_falcon},
      {"gemma", "gemma", "gemma", describe_gemma},
      {"gemma2", "gemma2", "gemma2", describe_gemma2},
      {"gemma3", "gemma3_text", "gemma3", describe_gemma3},
      {"glm", "glm", "chatglm", describe_glm},
      {"glm4", "glm4", "glm4", describe_glm4},
      {"gpt2", "gpt2", "gpt2", describe_gpt2},
      {"gpt_neox", "gpt_neox", "gptneox", describe_gpt_neox},
      {"gptj", "gptj", "", describe_gptj},
      {"granite", "granite", "granite", describe_granite},
      {"jina-bert-v2", "", "jina-bert-v2", describe_jina_bert},  // in config.json a kind of bert
      {"llama", "llama", "llama", describe_llama},  // in GGUF also Mistral's and Mixtral's
      {"llama4", "llama4_text", "", describe_llama4},
      {"m2m_100", "m2m_100", "", describe_m2m_100},
      {"marian", "marian", "", describe_marian},
      {"mbart", "mbart", "", describe_mbart},
      {"ministral3", "ministral3", "mistral3", describe_ministral3},
      {"mistral", "mistral", "", describe_mistral},
      {"mixtral", "mixtral", "", describe_mixtral},
      {"modernbert", "modernbert", "", describe_modernbert},
      {"mpt", "mpt", "mpt", describe_mpt},
      {"mt5", "mt5", "", describe_mt5},
      {"nomic_bert", "nomic_bert", "nomic-bert", describe_nomic_bert},
      {"olmo", "olmo", "olmo", describe_olmo},
      {"olmo2", "olmo2", "olmo2", describe_olmo2},
      {"opt", "opt", "", describe_opt},
      {"pegasus", "pegasus", "", describe_pegasus},
      {"persimmon", "persimmon", "", describe_persimmon},
      {"phi", "phi", "phi2", describe_phi},
      {"phi3", "phi3", "phi3", describe_phi3},
      {"qwen2", "qwen2", "qwen2", describe_qwen2},
      {"qwen3", "qwen3", "qwen3", describe_qwen3},
      {"roberta", "roberta", "", describe_roberta},
      {"smollm3", "smollm3", "smollm3", describe_smollm3},
      {"stablelm", "stablelm", "stablelm", describe_stablelm},
      {"starcoder2", "starcoder2", "starcoder2", describe_starcoder2},
      {"t5", "t5", "t5", describe_t5},
      {"t5encoder", "", "t5encoder", describe_t5_encoder},
      {"transformer", "transformer", "", describe_transformer},
      {"umt5", "umt5", "", describe_umt5},
      {"xglm", "xglm", "", describe_xglm},
      {"xlm", "xlm", "", describe_xlm},
      {"xlm-roberta", "xlm-roberta", "", describe_roberta},
  });
  return kFamilies;
}

Result<const Family*> find_family(const std::string& path, Naming naming,
                                  std::string_view declared) {
  std::string known;
  for (const Family& family : families()) {
    const std::string_view name =
        naming == Naming::kGguf ? family.gguf_architecture : family.model_type;
    if (name.empty()) continue;
    if (name == declared) return &family;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  const char* key = naming == Naming::kGguf ? "general.architecture" : "model_type";
  if (declared.empty()) return fail("{}: {} is missing; known are {}", path, key, known);
  return fail("{}: {} \"{}\" is not known; known are {}", path, key, declared, known);
}

Result<recipe::Model> describe(const Family& family, Checkpoint& checkpoint) {
  Result<recipe::Model> model = family.describe(checkpoint);
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.status());
  // A family that gave up has left keys unread which are none the worse for it.
  VOLVELLE_RETURN_IF_ERROR(model);
  VOLVELLE_RETURN_IF_ERROR(checkpoint.config.finish(family.name));
  VOLVELLE_RETURN_IF_ERROR(checkpoint.check_all_used());
  return model;
}

}  // namespace volvelle
