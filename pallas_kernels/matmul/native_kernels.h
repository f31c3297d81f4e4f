// What the files for each instruction set offer to native.cc.
#pragma once

#include <cstdint>
#include <string_view>

namespace jaxserve::matmul {

constexpr int64_t kBlock = 64;       // outputs of a piece of work
constexpr int64_t kWide = 4 * kBlock;  // the same for plain matrices: enough neighbours to read a line of memory or more at once
constexpr int64_t kMostInputsW8A8 = 1 << 16;  // of which no sum of products of int8 leaves an int32

// y[rows, outputs] = x[rows, inputs] times a matrix; x in bfloat16 or float32, the matrix in the same, in int8 or in E4M3, y in
// float32.
//
// The matrix is in one of three forms. Panels: blocks of kBlock outputs, the last one perhaps narrower, one after the other; in a
// block words of 32 bits lie as [inputs in words, outputs], where a word is one float32, or bfloat16 of two neighbouring inputs;
// the last input of an odd number of bfloat16 follows as a line by itself. Of int8 a word is four neighbouring inputs, up to three
// lines follow, and the sums of an output are multiplied by its scale; of E4M3 likewise, with a scale for each `group` of inputs, a
// multiple of 4, unless that is all of them. Rows: [outputs, inputs], nothing more. Plain: [inputs,
// outputs].
struct Product {
  const void* x;
  const void* matrix;
  float* y;
  int64_t rows, inputs, outputs;
  const float* scales = nullptr;  // [inputs / group, outputs]; of a matrix in int8 or E4M3
  int64_t group = inputs;
  int64_t stride = outputs;  // from row to row of y, and whether the product is added to what y holds: of plain matrices alone
  bool adds = false;
};

// y[rows, outputs] = x[rows, inputs] times a matrix of 4-bit codes, all in float32: a code stands for (table[code] - zero) * scale.
//
// Words of 32 bits lie in panels of kBlock outputs as [inputs / 8, outputs], where a word is eight neighbouring inputs, the first in
// its lowest bits. `group` inputs share a scale and a zero: inputs is a multiple of it, and it is one of 8.
struct FourBitProduct {
  const void* x;  // float32, or bfloat16 for a kernel of that
  const uint32_t* words;
  float* y;
  int64_t rows, inputs, outputs, group;
  const float* table;   // [16]
  const float* scales;  // [inputs / group, outputs]
  const float* zeros;   // the same, or null if all are 0
};

// y[rows, outputs] = x[rows, inputs] times panels of int8 as above, times a step for each row and a scale for each output. x is whole
// numbers from -127 to 127 with 128 added; sums are exact. Inputs are kMostInputsW8A8 at most.
struct W8A8Product {
  const uint8_t* x;
  const int8_t* matrix;
  float* y;
  int64_t rows, inputs, outputs;
  const float* steps;   // [rows]
  const float* scales;  // [outputs]
};

// Whether a matrix of bytes may have scales for so many groups of inputs: those of int8 are one, those of E4M3 words of 4 each.
inline bool FitsGroups(int64_t inputs, int64_t groups, bool int8) {
  return groups == 1 || (!int8 && groups > 1 && inputs % groups == 0 && inputs / groups % 4 == 0);
}

// Computes all rows of the outputs from kBlock * block on, kBlock of them or what there is; of a plain matrix kWide.
using Compute = void (*)(const Product& product, int64_t block);
using ComputeW8A8 = void (*)(const W8A8Product& product, int64_t block);
using ComputeFourBit = void (*)(const FourBitProduct& product, int64_t block);

// A table in a file for an instruction set is constexpr and names functions of that file alone: nothing compiled for an instruction
// set runs when the library is loaded. Its null entries are those of the instruction set before; see Choose().
struct Kernels {
  Compute panels_bfloat16 = nullptr, panels_float32 = nullptr, rows_bfloat16 = nullptr, rows_float32 = nullptr;
  Compute plain_bfloat16 = nullptr, plain_float32 = nullptr;
  Compute int8_bfloat16 = nullptr, int8_float32 = nullptr;      // panels of int8; x is what the name ends with
  Compute float8_bfloat16 = nullptr, float8_float32 = nullptr;  // panels of E4M3, likewise
  ComputeFourBit four_bit = nullptr;
  // Rows in bfloat16 by numbers that are bfloat16, without zeros and in groups of a multiple of 32 inputs; null if there is none.
  ComputeFourBit four_bit_bfloat16 = nullptr;
};

extern const ComputeW8A8 kPortableW8A8;
#if defined(__x86_64__)
extern const ComputeW8A8 kAvx2W8A8, kAvx512VnniW8A8, kAmxW8A8;
#endif
extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAvx512Bf16, kAmx;
#endif

// The best ones that this CPU can run and `instruction_set` allows: a name as in native/library.py, "portable" or "best".
Kernels Choose(std::string_view instruction_set);
ComputeW8A8 ChooseW8A8(std::string_view instruction_set);

}  // namespace jaxserve::matmul
