// The product with 4-bit codes of native_kernels.h by AMX: a piece's codes become bfloat16, which hold their numbers, and all rows are
// multiplied by these as by a panel. One row alone is multiplied sooner by vectors, which add as tiles do, bit by bit: of a tile's 16
// words the first numbers and the second ones apart, then both to what there was; denormal numbers are 0.
#pragma once

#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_avx512.h"
#include "pallas_kernels/matmul/native_four_bit.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kStepOctets = 4;   // whose words a tile has
constexpr int64_t kTileOctets = 16;  // that are added up before they are scaled, at most: 16 KiB of words

// The words of codes 2 * PAIR and the next of each lane. An index is a code and one bit more: `table` has its numbers twice.
template <int PAIR>
inline __m512i PairOf(__m512i table, __m512i eights) {
  constexpr int64_t kBits = 8 * PAIR | (8 * PAIR + 4) << 16;
  const __m512i bits = _mm512_set1_epi64(kBits | (kBits + 0x00200020) << 32);
  return _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(bits, eights), table);
}

// The codes of a panel as words [4 * octets, kBlock], without scales: four octets a call, a tile's words, one step before they are read.
// They go to one of two places in turns, for one piece and the next.
struct NextCodes {
  const uint32_t* from;
  const uint32_t* end;
  __m512i table;
  uint32_t* to;
  uint32_t* other;
  int64_t left;  // calls of this piece

  void operator()(const char*, int64_t) {
    if (left-- == 0) to = other;
    if (from == end) return;
    for (const uint32_t* last = from + kStepOctets * kBlock; from < last; from += kBlock, to += 4 * kBlock)
      for (int64_t column = 0; column < kBlock; column += kTile) {
        __builtin_prefetch(reinterpret_cast<const char*>(from + column) + kAheadOfCodes);
        const __m512i eights = _mm512_loadu_si512(from + column);
        _mm512_store_si512(to + column, PairOf<0>(table, eights));
        _mm512_store_si512(to + column + kBlock, PairOf<1>(table, eights));
        _mm512_store_si512(to + column + 2 * kBlock, PairOf<2>(table, eights));
        _mm512_store_si512(to + column + 3 * kBlock, PairOf<3>(table, eights));
      }
  }
};

// y plus the sums times their scales.
inline void AddScaledVector(const Piece& piece, int64_t column, __m512 sums, float* y) {
  const __m512 before = piece.first ? _mm512_setzero_ps() : _mm512_loadu_ps(y);
  _mm512_storeu_ps(y, _mm512_fmadd_ps(sums, _mm512_loadu_ps(piece.scales + column), before));
}

// Adds the products of one row's inputs with code I and those after it of the eight in each lane.
template <int I = 0>
inline void AddEight(__m512 (&sums)[2][4], const __m512i (&eights)[4], __m512 table, const float* x) {
  if constexpr (I < 8) {
    const __m512 value = _mm512_set1_ps(x[I]);
    for (int v = 0; v < 4; ++v) {
      const __m512 number = _mm512_permutexvar_ps(_mm512_srli_epi32(eights[v], 4 * I), table);
      sums[I % 2][v] = _mm512_fmadd_ps(value, number, sums[I % 2][v]);
    }
    AddEight<I + 1>(sums, eights, table, x);
  }
}

// One row by a piece.
inline void AddAsTiles(const Piece& piece, __m512 table, const uint16_t* row, float* y) {
  alignas(64) float wide[8 * kTileOctets];
  for (int64_t input = 0; input < 8 * piece.octets; ++input) wide[input] = ToFloat(row[input]);
  const float* x = wide;
  __m512 sums[4] = {};
  const uint32_t* from = piece.words;
  for (int64_t octet = 0; octet < piece.octets; octet += kStepOctets) {
    __m512 step[2][4] = {};
    for (int64_t o = 0; o < kStepOctets; ++o, from += kBlock, x += 8) {
      __m512i eights[4];
      for (int v = 0; v < 4; ++v) {
        __builtin_prefetch(reinterpret_cast<const char*>(from + v * kTile) + kAheadOfCodes);
        eights[v] = _mm512_loadu_si512(from + v * kTile);
      }
      AddEight(step, eights, table, x);
    }
    for (int v = 0; v < 4; ++v) sums[v] = _mm512_add_ps(sums[v], _mm512_add_ps(step[0][v], step[1][v]));
  }
  for (int v = 0; v < 4; ++v) AddScaledVector(piece, v * kTile, sums[v], y + v * kTile);
}

void TileCodes(const FourBitProduct& product, int64_t block) {
  const int64_t left = product.outputs - block * kBlock;
  if (left < kBlock) return NarrowPanel<uint16_t>(product, block, left);
  const NoDenormals scope;
  if (product.rows == 1)
    return ForPieces(product, block, kTileOctets, [&](const Piece& piece) {
      const auto* x = static_cast<const uint16_t*>(product.x) + piece.input;
      AddAsTiles(piece, _mm512_loadu_ps(product.table), x, product.y + block * kBlock);
    });
  alignas(64) uint32_t words[2][4 * kTileOctets * kBlock];
  alignas(64) float sums[kTile][kBlock];
  const __m512i numbers = _mm512_srli_epi32(_mm512_loadu_si512(product.table), 16);
  const __m512i table = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(numbers));
  const int64_t size = kBlock * (product.inputs / 8);
  const uint32_t* panel = product.words + block * size;
  const char* x = static_cast<const char*>(product.x);
  float* y = product.y + block * kBlock;
  NextCodes next{panel, panel + size, table, words[0], words[0], 1};
  next(nullptr, 0);
  Tiles tiles;
  int at = 0;
  ForPieces(product, block, kTileOctets, [&](const Piece& piece) {
    next.left = piece.octets / kStepOctets - 1, next.other = words[1 - at];
    for (int64_t row = 0; row < product.rows; row += kTile) {
      const int64_t rows = product.rows - row < kTile ? product.rows - row : kTile;
      const Lines lines{x + 2 * (row * product.inputs + piece.input), reinterpret_cast<const char*>(words[at]),
                        reinterpret_cast<char*>(sums), rows, 4 * piece.octets, kBlock, 2 * product.inputs, 4 * kBlock, sizeof sums[0], true};
      if (row == 0) AddLines<Bfloat16Pairs>(tiles, lines, next);
      else AddLines<Bfloat16Pairs>(tiles, lines, NoLook{});
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t column = 0; column < kBlock; column += kTile)
          AddScaledVector(piece, column, _mm512_load_ps(sums[r] + column), y + (row + r) * product.outputs + column);
    }
    at = 1 - at;
  });
}

}  // namespace
}  // namespace jaxserve::matmul
