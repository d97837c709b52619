// Tokenizers in a model file: a spec becomes a table and segments, and back. Nothing is copied on
// the way back but the few small lists; all that is long stays a view into the segments.

#ifndef VOLVELLE_RUNTIME_TOKENIZER_STORED_H_
#define VOLVELLE_RUNTIME_TOKENIZER_STORED_H_

#include <cstddef>
#include <functional>
#include <span>

#include "platforms/error.h"
#include "runtime/tokenizer/spec.h"

namespace volvelle {

// Appends bytes to the file as a segment and says where they lie.
using SegmentWriter = std::function<Result<file::Segment>(std::span<const std::byte> bytes)>;

// The bytes of a segment, or why it cannot be read.
using SegmentReader =
    std::function<Result<std::span<const std::byte>>(const file::Segment& segment)>;

Result<flatbuffers::Offset<file::Tokenizer>> store_tokenizer(
    const TokenizerSpec& spec, flatbuffers::FlatBufferBuilder& builder, const SegmentWriter& write);

// `table` has passed the FlatBuffers verifier; that its contents make sense is checked here (lists
// and enumerations) and in `Tokenizer::make` (all else). The segments' bytes must outlive the spec.
Result<TokenizerSpec> view_tokenizer(const file::Tokenizer& table, const SegmentReader& read);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_TOKENIZER_STORED_H_
