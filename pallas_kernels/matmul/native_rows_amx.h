// The product of native_kernels.h with rows of a matrix by AMX: tiles take the matrix for the rows, and the rows of x, turned, for a panel.
#pragma once

#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_tiles.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kTurnedWords = 512;  // of a row of x that are turned at a time: 128 KiB for 64 rows

// 16 vectors of 16 words, turned.
inline void Turn(__m512i (&lines)[16]) {
  __m512i twos[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88), b = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    lines[i] = _mm512_shuffle_i32x4(a, c, 0x88), lines[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    lines[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88), lines[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// x [rows, words] as [words, width], where rows up to `width`, a multiple of 16, are 0.
inline void TurnRows(const char* x, int64_t stride, int64_t rows, int64_t words, int64_t width, uint32_t* to) {
  for (int64_t row = 0; row < width; row += kTile)
    for (int64_t word = 0; word < words; word += kTile) {
      const int64_t here = Smaller(kTile, words - word);
      const auto some = static_cast<__mmask16>((1u << here) - 1);
      __m512i lines[16];
      for (int64_t r = 0; r < kTile; ++r)
        lines[r] = row + r < rows ? _mm512_maskz_loadu_epi32(some, x + (row + r) * stride + 4 * word) : _mm512_setzero_si512();
      Turn(lines);
      for (int64_t w = 0; w < here; ++w) _mm512_storeu_si512(to + (word + w) * width + row, lines[w]);
    }
}

// Asks for the next rows of the matrix where those are read that are multiplied.
struct NextRows {
  const char* at;
  int64_t stride;
  void operator()(const char*, int64_t) {
    for (int64_t line = 0; line < kTile; ++line) __builtin_prefetch(at + line * stride);
    at += 4 * kTile;
  }
};

// Some rows of x, kBlock at most, by the outputs from `begin` to `end`.
inline void TileSomeRows(const Product& product, int64_t row, int64_t rows, int64_t begin, int64_t end) {
  const int64_t inputs = product.inputs, words = inputs / 2, stride = 2 * inputs;
  const int64_t width = rows == 1 ? 1 : (rows + kTile - 1) / kTile * kTile;
  const auto* x = static_cast<const uint16_t*>(product.x) + row * inputs;
  const auto* matrix = static_cast<const uint16_t*>(product.matrix);
  alignas(64) uint32_t turned[kTurnedWords * kBlock];
  alignas(64) float sums[kBlock * kBlock];
  Tiles tiles;
  int64_t word = 0;
  do {
    const int64_t here = Smaller(kTurnedWords, words - word);
    const char* panel = reinterpret_cast<const char*>(x + 2 * word);  // one row is turned as it lies
    if (rows > 1) {
      TurnRows(panel, stride, rows, here, width, turned);
      panel = reinterpret_cast<const char*>(turned);
    }
    for (int64_t output = begin; output < end; output += kTile) {
      const char* from = reinterpret_cast<const char*>(matrix + output * inputs + 2 * word);
      NextRows next{output + kTile < product.outputs ? from + kTile * stride : from, stride};  // of this matrix only
      AddLines<Bfloat16Pairs>(tiles, {from, panel, reinterpret_cast<char*>(sums + (output - begin) * width),
                                      Smaller(kTile, end - output), here, width, stride, 4 * width, 4 * width, word == 0}, next);
    }
    word += kTurnedWords;
  } while (word < words);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t output = begin; output < end; ++output) {
      float total = sums[(output - begin) * width + r];
      if (2 * words < inputs) total += ToFloat(x[(r + 1) * inputs - 1]) * ToFloat(matrix[(output + 1) * inputs - 1]);
      product.y[(row + r) * product.outputs + output] = total;
    }
}

void TileRows(const Product& product, int64_t block) {
  const int64_t begin = block * kBlock, end = Smaller(begin + kBlock, product.outputs);
  for (int64_t row = 0; row < product.rows; row += kBlock)
    TileSomeRows(product, row, Smaller(kBlock, product.rows - row), begin, end);
}

}  // namespace
}  // namespace jaxserve::matmul
