// What the files for each instruction set offer to native.cc.
#pragma once

#include <cstdint>
#include <string_view>

namespace jaxserve::linear {

// The arguments: axes and meaning as in api.py.
struct Call {
  const char *q, *k, *v;       // [T, K, D] and [T, H, V], of `size` bytes a number
  const float *decay, *beta;   // [T, H]
  float* states;               // of the layer, [N, H, D, V]
  char* out;                   // [T, H, V]
  const int32_t *query_start, *source, *destination, *snapshot, *snapshot_at;
  int64_t places, width;       // N, and W of `destination`
  int64_t key_heads, heads, key_dim, value_dim, size;
  float scale, norm_eps;       // of `l2_norm`
  bool delta, l2_norm;
};

// Some columns of a head's values, of one row of the batch: from `first` on, as many as Kernels says or as there are. `scratch` has
// key_dim * (columns + 2) elements, which are overwritten.
using Attend = void (*)(const Call&, int64_t row, int64_t head, int64_t first, float* scratch);

// A table in a file for an instruction set is constexpr: nothing compiled for an instruction set runs when the library is loaded.
struct Kernels {
  int64_t columns;
  Attend attend;
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512;
#endif

// The best ones that this CPU can run and `instruction_set` allows: a name as in native/library.py, "portable" or "best".
Kernels Choose(std::string_view instruction_set);

}  // namespace jaxserve::linear
