// What the files for each instruction set offer to native.cc.
#pragma once

#include <cstdint>

namespace jaxserve::attention {

constexpr int64_t kBlock = 64;      // keys that are looked at together; blocks begin at its multiples
constexpr int64_t kMostLanes = 16;  // of any instruction set's vectors

enum class Float8 : uint8_t {};  // E4M3, of which 0x7f and 0xff, NaN, are not stored: a scale is NaN instead

constexpr float kLowest = -3.402823466e+38f;  // unlike -inf it can be subtracted from itself

// Some tokens of one row, one after the other, in the `group` heads that read one KV head; and the keys of that head. Token t in
// head g of the group is row t * group + g of everything computed.
struct Queries {
  const void* q;              // of the first token and head; a token's heads follow each other
  int64_t token_stride;       // elements from token to token
  int64_t tokens, group;
  int64_t position;           // of the first token in the row: a token sees the keys up to its own position
  int64_t window;             // that many keys at most, up to its own
  int64_t ahead, end;         // a token sees keys before its position plus `ahead`, 1 where it sees none behind it, and before `end`
  int64_t dim, value_dim;
  const char* keys;           // of page 0 of the cache, in this layer and KV head
  int64_t key_stride;         // elements from key to key of a page
  const int32_t* pages;       // the row's page table
  int64_t page_size, page_bytes;
  int64_t value_bytes;        // from a key to its value
  int64_t next_bytes;         // from a key to that of the KV head whose turn is next; 0 for none
  float scale, soft_cap;      // soft_cap 0: none
  const char* scales;         // of a quantized cache: of the keys of page 0, in this layer and KV head
  int64_t scale_bytes;        // of one: 2 for bfloat16, 4 for float32
  int64_t page_scales, value_scales;  // bytes from a page's to the next one's, and from a key's to its value's
};

// The state of an online softmax: a row's largest score, sum of weights and weighted sum of values.
struct Softmax {
  float* largest;
  float* total;
  float* values;  // [rows, Padded(value_dim)]
};

namespace {  // every file its own: it is compiled for its CPUs

inline int64_t Padded(int64_t numbers) { return (numbers + kMostLanes - 1) / kMostLanes * kMostLanes; }
inline int64_t Rows(const Queries& queries) { return queries.tokens * queries.group; }

// The keys that a token sees.
inline int64_t End(const Queries& queries, int64_t token) {
  const int64_t end = queries.position + token + queries.ahead;
  return end < queries.end ? end : queries.end;
}
inline int64_t Start(const Queries& queries, int64_t token) {
  const int64_t own = queries.position + token + 1;
  return own > queries.window ? own - queries.window : 0;
}

inline int64_t ScratchFloats(const Queries& queries) {
  const int64_t dim = Padded(queries.dim);
  return Rows(queries) * (dim + kMostLanes + kBlock + 1) + (dim + Padded(queries.value_dim)) * kBlock;
}

}  // namespace

// Attends to keys `first` to `last` and nothing else; `first` is a multiple of kBlock. What `state` points to is written, and
// `scratch` of ScratchFloats used. A row's result does not depend on the other rows. Keys that no row sees may be anything.
using Attend = void (*)(const Queries& queries, int64_t first, int64_t last, const Softmax& state, float* scratch);

// A table in a file for an instruction set is constexpr and names functions of that file alone: nothing compiled for an instruction
// set runs when the library is loaded. Null entries are those of the instruction set before; see Choose().
struct Kernels {
  Attend bfloat16, float32;         // by the dtype of queries and cache
  Attend int8, float8;              // by that of the cache, with queries in bfloat16
  Attend int8_wide, float8_wide;    // and in float32
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAvx512Bf16;
#endif

}  // namespace jaxserve::attention
