// Linears of a Hugging Face folder whose weights are integers of a few bits packed into 32-bit
// words, as AWQ and GPTQ leave them: X.qweight, X.qzeros, X.scales and perhaps X.g_idx become one
// tensor X.weight [outputs, inputs], whose values are (code - zero point of its group) * scale of
// its group.
//
//   gptq    a word holds 32 / bits neighbours along the inputs, the first in its lowest bits; zero
//           points are stored less one unless the format is gptq_v2. Frantar et al. 2022,
//           arXiv:2210.17323, as AutoGPTQ and GPTQModel store it
//   awq     a word holds eight neighbours along the outputs, even ones in its lower half. Lin et
//   al.
//           2023, arXiv:2306.00978, in the order "gemm" of AutoAWQ

#ifndef VOLVELLE_CONVERTER_SOURCES_PACKED_LINEARS_H_
#define VOLVELLE_CONVERTER_SOURCES_PACKED_LINEARS_H_

#include <string_view>

#include "converter/sources/hf_folder.h"
#include "platforms/error.h"

namespace volvelle {

inline constexpr std::string_view kQuantizationKey = "quantization_config";  // of config.json

// Unpacks what the folder's quantization_config says, and takes that out of its configuration;
// nothing, where there is none. Fails on every other kind of quantisation, and where tensors do not
// fit each other. What the tensors hold is read when they are, and one of them is held at a time.
Result<void> unpack_linears(HfFolder& folder);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_SOURCES_PACKED_LINEARS_H_
