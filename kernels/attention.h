// Attention of a chunk of query tokens over the cache, with an online softmax in tiles: no table of
// tokens x tokens exists anywhere. Query heads of one group share each tile of keys and values.
// Online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867; grouped heads: Ainslie et al.
// 2023, arXiv:2305.13245.

#ifndef VOLVELLE_KERNELS_ATTENTION_H_
#define VOLVELLE_KERNELS_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/hadamard.h"

namespace volvelle {

enum class CacheType : uint8_t { kF32, kF16, kQ8 };

// Rows of the cache are padded with zeros to a multiple of this many elements, so that no kernel
// has a tail.
inline constexpr size_t kCacheRowElements = 16;
constexpr size_t cache_row_elements(size_t head_dim) {
  return (head_dim + kCacheRowElements - 1) / kCacheRowElements * kCacheRowElements;
}
constexpr size_t cache_element_bytes(CacheType type) {
  return type == CacheType::kF32 ? 4 : type == CacheType::kF16 ? 2 : 1;
}

// Elements that a head has at most.
inline constexpr size_t kMaxHeadDim = 1 << 13;

// Slots whose keys and values are taken together: in int8 and 128 dimensions both stay in 16 KiB.
inline constexpr size_t kCacheTile = 64;

// Keys of so many slots lie together, and so many elements of a value.
inline constexpr size_t kKeyLanes = 16, kValueLanes = 16;

// Slots that memory is taken for: an int8 cache has whole tiles, others whole groups of key lanes.
constexpr size_t cache_slots(CacheType type, size_t slots) {
  const size_t whole = type == CacheType::kQ8 ? kCacheTile : kKeyLanes;
  return (slots + whole - 1) / whole * whole;
}

// Where a cache of floats or halves keeps element e of the key in slot s of one head, whose rows
// have `elements` elements: lanes are slots, so that no product needs a sum across lanes. Values
// lie row by row.
constexpr size_t key_index(size_t s, size_t e, size_t elements) {
  return s / kKeyLanes * kKeyLanes * elements + e * kKeyLanes + s % kKeyLanes;
}

// Where an int8 cache keeps element e of slot s of one head, whose rows have `elements` elements:
// such that 64 bytes are what one vector of dot products takes, four bytes to a lane. Of keys, they
// are 4 elements of 16 slots, so that a lane's sum over all elements is a slot's logit; of values,
// 4 slots of 16 elements, so that a lane's sum over all slots is an element of the output.
constexpr size_t q8_key_index(size_t s, size_t e, size_t elements) {
  return s / kKeyLanes * kKeyLanes * elements + e / 4 * 4 * kKeyLanes + s % kKeyLanes * 4 + e % 4;
}
constexpr size_t q8_value_index(size_t s, size_t e, size_t elements) {
  return s / kCacheTile * kCacheTile * elements + e / kValueLanes * kValueLanes * kCacheTile +
         s % kCacheTile / 4 * 4 * kValueLanes + e % kValueLanes * 4 + s % 4;
}

// Codes of int8 keys are stored with this added, as unsigned bytes: x86 multiplies unsigned by
// signed bytes, and what the offset adds to a product depends on the query alone.
inline constexpr int kKeyOffset = 128;

// Before they become codes, keys and values go through a Walsh-Hadamard transform in blocks of this
// many elements, as queries do and outputs do back.
constexpr size_t q8_block(size_t elements) { return largest_hadamard_block(elements); }

// Codes of weights are 0 ... 255.
inline constexpr int kLargestWeight = 255;

// Cached keys and values of one layer, head by head: head h begins at element h * cache_slots(type,
// slots) * cache_row_elements(head_dim) and has the layout above. The token at position p lies in
// slot (p - first_position) % slots, so rows past a ring's end wrap.
struct CacheView {
  CacheType type = CacheType::kF32;
  void* keys = nullptr;
  void* values = nullptr;
  float* key_scales = nullptr;    // [kv_heads, cache_slots(kQ8, slots)], only for kQ8
  float* value_scales = nullptr;  // [kv_heads, cache_slots(kQ8, slots)], only for kQ8
  size_t slots = 0;
  size_t first_position = 0;  // of the session; older keys do not exist
};

// Adds slope[head] * (key position - query position) to each logit: ALiBi, Press et al. 2022,
// arXiv:2108.12409. Exact at any distance below 2^24. Symmetric: subtracts slope[head] * distance
// on either side.
struct LinearBias {
  const float* slopes = nullptr;  // [query_heads]; null: none
  bool symmetric = false;
};

// Adds table[head, clamp(key position - query position, -reach, reach) + reach] to each logit: what
// T5's buckets come to, one value per distance (Raffel et al. 2020, arXiv:1910.10683, section 2.1).
struct DistanceBias {
  const float* table = nullptr;  // [query_heads, 2 * reach + 1]; null: none
  size_t reach = 0;
};

// Rows e of a distance r = clamp(key position - query position, -clip, clip) + clip: Shaw et al.
// 2018, arXiv:1803.02155, eq. 3 and 4. Logits become scale * (q . k + q . key[r] + k . query[r]);
// outputs gain the sum of p * value[r]. Each table may be null. With `row_of`, distances share
// rows: row_of[r] stands for r. With `head_stride`, each head has rows of its own: He et al. 2021,
// arXiv:2006.03654.
struct RelativeRows {
  const float* key = nullptr;    // [2 * clip + 1, head_dim]
  const float* query = nullptr;  // [2 * clip + 1, head_dim]
  const float* value = nullptr;  // [2 * clip + 1, head_dim]
  size_t clip = 0;
  const uint16_t* row_of = nullptr;  // [2 * clip + 1]; null: each distance has its own
  size_t head_stride = 0;            // floats between two heads' rows; 0: heads share them
};

struct AttentionShape {
  // A multiple of kv_heads; query head h reads kv head h / (query_heads / kv_heads).
  size_t query_heads = 0;
  size_t kv_heads = 0;
  size_t head_dim = 0;
  float scale = 1;             // multiplies q . k
  float soft_cap = 0;          // c: logits become c * tanh(logits / c), before any bias; 0: none
  size_t window = 0;           // a query at p sees positions p - window + 1 ... p; 0: all
  bool bidirectional = false;  // and those after p: all, or up to p + window - 1
  size_t stretch = 0;          // and none before p / stretch * stretch; 0: all
  LinearBias linear_bias;
  DistanceBias distance_bias;
  RelativeRows relative;
};

// Whether an int8 cache's keys, or values, are transformed: not where relative rows join them.
constexpr bool q8_transforms_keys(const AttentionShape& shape) { return !shape.relative.query; }
constexpr bool q8_transforms_values(const AttentionShape& shape) { return !shape.relative.value; }

// One chunk's queries and where its outputs go: token t is at position `position + t`, head h of it
// at t * stride + h * head_dim.
struct AttentionChunk {
  const float* queries = nullptr;
  size_t query_stride = 0;
  float* outputs = nullptr;
  size_t output_stride = 0;
  size_t position = 0;
  size_t tokens = 0;
  size_t keys = 0;  // bidirectional: positions that are stored, from the session's first on
};

// Stores `count` tokens' rows of head `kv_head` (keys already rotated), token t's [head_dim] at
// rows + t * stride, into slots [slot, slot + count), of which there are so many.
void store_keys(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                size_t count, const float* rows, size_t stride);
void store_values(const CacheView& cache, const AttentionShape& shape, size_t kv_head, size_t slot,
                  size_t count, const float* rows, size_t stride);

// Query tokens that one call of `attend` takes at most.
inline constexpr size_t kAttentionTokens = 16;

// Floats of scratch that one call of `attend` or `attend_part` needs, 64-byte aligned, owned by one
// thread at a time.
size_t attention_scratch_floats(const AttentionShape& shape);

// Outputs of query tokens [first, first + count) of the chunk for the query heads of `kv_head`,
// over every cached position that each token may see. The chunk's own keys and values are stored
// already. count <= kAttentionTokens. Outputs are the same to the bit however the tokens are
// divided into chunks and calls, and so are those of the same parts merged in order.
void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count, float* scratch);

// The same in parts of the cache, which threads can take at the same time: a part is what lies in
// slots [k * kAttentionPart, (k + 1) * kAttentionPart), a ring's first and last twice if need be.
inline constexpr size_t kAttentionPart = 512;

// Parts that tokens [first, first + count) see.
size_t attention_parts(const AttentionShape& shape, const CacheView& cache,
                       const AttentionChunk& chunk, size_t first, size_t count);

// Floats of what `count` tokens of one kv head got from one part: a multiple of 16.
size_t attention_partial_floats(const AttentionShape& shape, size_t count);

// What the tokens get from their part number `part`, 64-byte aligned.
void attend_part(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
                 size_t kv_head, size_t first, size_t count, size_t part, float* scratch,
                 float* partial);

// Joins what `parts` consecutive parts gave, [parts, attention_partial_floats], to what came before
// them; the first parts of all join to nothing, which is `merged` after clear_partial.
void clear_partial(const AttentionShape& shape, size_t count, float* merged);
void merge_parts(const AttentionShape& shape, size_t count, const float* partials, size_t parts,
                 float* merged);

// The outputs, once all parts of a cache of `type` are merged. `merged` is spent.
void write_merged(const AttentionShape& shape, CacheType type, const AttentionChunk& chunk,
                  size_t kv_head, size_t first, size_t count, float* merged);

namespace scalar {
// The same in the plainest form: all logits of a token, their softmax, the weighted sum, in double.
// Of an int8 cache it makes the same roundings: of each transformed query to int8, and in each tile
// of each token's weights, times the values' scales, to 0 ... kLargestWeight.
void attend(const AttentionShape& shape, const CacheView& cache, const AttentionChunk& chunk,
            size_t kv_head, size_t first, size_t count);
}  // namespace scalar

}  // namespace volvelle

#endif  // VOLVELLE_KERNELS_ATTENTION_H_
