// The product of native_kernels.h with a plain matrix of bfloat16 by AMX: a few inputs are packed, and all rows are multiplied by these.
#pragma once

#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_tiles.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kPackedWords = 64;  // that are packed at a time

// Words of two lines of `width` outputs, kWide at most; the lines `ahead` of them are asked for.
inline void PackLines(const uint16_t* line, int64_t outputs, int64_t width, int64_t ahead, uint32_t* to) {
  alignas(64) static constexpr uint16_t kPlaces[2][32] = {
      {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  for (int64_t column = 0; column < width; column += 32) {
    const auto some = static_cast<__mmask32>((uint64_t{1} << Smaller(32, width - column)) - 1);
    __builtin_prefetch(line + ahead + column, 0, 2);
    __builtin_prefetch(line + ahead + outputs + column, 0, 2);
    const __m512i first = _mm512_maskz_loadu_epi16(some, line + column);
    const __m512i second = _mm512_maskz_loadu_epi16(some, line + outputs + column);
    for (int half = 0; half < 2; ++half)
      _mm512_store_si512(to + column + half * kTile, _mm512_permutex2var_epi16(first, _mm512_load_si512(kPlaces[half]), second));
  }
}

void TilePlain(const Product& product, int64_t block) {
  const int64_t inputs = product.inputs, outputs = product.outputs, words = inputs / 2, begin = block * kWide;
  const int64_t width = Smaller(kWide, outputs - begin);
  const char* x = static_cast<const char*>(product.x);
  const auto* matrix = static_cast<const uint16_t*>(product.matrix) + begin;
  // What is read next: more words, or the next columns where these are all that there are.
  const int64_t ahead = words > kPackedWords ? 2 * kPackedWords * outputs : kWide;
  alignas(64) uint32_t packed[kPackedWords][kWide];
  Tiles tiles;
  int64_t k = 0;
  do {
    const int64_t here = Smaller(kPackedWords, words - k);
    for (int64_t word = 0; word < here; ++word)
      PackLines(matrix + 2 * (k + word) * outputs, outputs, width, ahead, packed[word]);
    for (int64_t first = 0; first < width; first += kBlock)
      AddLines<Bfloat16Pairs>(tiles, {x + 4 * k, reinterpret_cast<const char*>(packed[0] + first),
                                      reinterpret_cast<char*>(product.y + begin + first), product.rows, here,
                                      Smaller(kBlock, width - first), 2 * inputs, sizeof packed[0], 4 * product.stride,
                                      k == 0 && !product.adds}, NoLook{});
    k += kPackedWords;
  } while (k < words);
  if (2 * words < inputs) AddInput<uint16_t>(product, inputs - 1, product.y + begin, matrix + (inputs - 1) * outputs, width);
}

}  // namespace
}  // namespace jaxserve::matmul
