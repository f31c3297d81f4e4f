// The products of native_tiles.h and native_int8.h by AMX: their strips are tiles, where their rows are bfloat16.
//
// Bytes become bfloat16 a step before tiles read them. One row alone is multiplied sooner by vectors, which add as tiles do, bit by bit:
// of a tile's 16 words the first numbers and the second ones apart, then both to what there was; denormal numbers are 0.
#pragma once

#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_avx512bf16.h"

namespace jaxserve::matmul {
namespace {

struct Tiled : Bfloat16 {};

// Bytes whose words are tiles, and as float32: the numbers of the four in each lane.
struct TiledInt8 : Bfloat16 {
  static void Numbers(Words quads, Sums (&numbers)[4]) {
    numbers[0] = _mm512_castsi512_ps(Number<0>(quads)), numbers[1] = _mm512_castsi512_ps(Number<1>(quads));
    numbers[2] = _mm512_castsi512_ps(Number<2>(quads)), numbers[3] = _mm512_castsi512_ps(Number<3>(quads));
  }
};
struct TiledFloat8 : Bfloat16Float8 {
  static void Numbers(Words quads, Sums (&numbers)[4]) {
    const Words uppers = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    Words words[2];
    Widen(quads, words);
    for (int line = 0; line < 2; ++line) {
      numbers[2 * line] = _mm512_castsi512_ps(_mm512_slli_epi32(words[line], 16));
      numbers[2 * line + 1] = _mm512_castsi512_ps(_mm512_and_si512(words[line], uppers));
    }
  }
};

// Asks for what follows in a panel.
struct Ahead {
  void operator()(const char* line, int64_t count) const {
    for (int64_t byte = 0; byte < count * 4 * kBlock; byte += 64) __builtin_prefetch(line + byte + kAhead);
  }
};

inline Lines LinesOf(const Strip& strip) {
  return {strip.x,        strip.panel,      reinterpret_cast<char*>(strip.y), strip.rows, strip.words, strip.width,
          strip.x_stride, 4 * strip.width, 4 * strip.y_stride,               strip.first};
}

template <>
inline void AddStrip<Tiled>(const Strip& strip) {
  Tiles tiles;
  AddLines<Bfloat16Pairs>(tiles, LinesOf(strip), Ahead{});
}

constexpr int64_t kTileQuads = 32;         // lines of bytes that are made words at a time: 16 KiB of words
constexpr int64_t kStepQuads = kTile / 2;  // lines of bytes whose words a tile has

// Makes the words of a step at each call.
template <class V>
struct NextQuads {
  const int8_t* from;
  const int8_t* end;
  char* to;

  void operator()(const char*, int64_t) {
    for (int64_t quad = 0; quad < kStepQuads && from < end; ++quad, from += 4 * kBlock, to += 8 * kBlock)
      for (int64_t byte = 0; byte < 4 * kBlock; byte += 64) {
        __builtin_prefetch(from + byte + kAhead);
        __m512i words[2];
        V::Widen(V::Load(from + byte), words);
        V::Store(to + byte, words[0]);
        V::Store(to + byte + 4 * kBlock, words[1]);
      }
  }
};

// One row by a few inputs of a whole panel.
template <class V>
inline void AddRowAsTiles(const Strip& strip, const Quads& from) {
  const NoDenormals scope;
  alignas(64) float x[4 * kTileQuads];
  for (int64_t input = 0; input < 4 * from.quads; ++input) {
    uint16_t number;
    std::memcpy(&number, strip.x + 2 * input, sizeof number);
    x[input] = ToFloat(number);
  }
  __m512 sums[4];
  for (int v = 0; v < 4; ++v) sums[v] = strip.first ? V::Zero() : V::Read(strip.y + v * kTile);
  const int8_t* quads = from.panel;
  for (int64_t quad = 0; quad < from.quads;) {
    __m512 first[4] = {}, second[4] = {};
    for (const int64_t end = Smaller(quad + kStepQuads, from.quads); quad < end; ++quad, quads += 4 * kBlock)
      for (int v = 0; v < 4; ++v) {
        __builtin_prefetch(quads + 4 * v * kTile + kAhead);
        __m512 numbers[4];
        V::Numbers(V::Load(quads + 4 * v * kTile), numbers);
        for (int byte = 0; byte < 4; ++byte) {
          __m512& sum = byte % 2 == 0 ? first[v] : second[v];
          sum = _mm512_fmadd_ps(_mm512_set1_ps(x[4 * quad + byte]), numbers[byte], sum);
        }
      }
    for (int v = 0; v < 4; ++v) sums[v] = _mm512_add_ps(sums[v], _mm512_add_ps(first[v], second[v]));
  }
  for (int v = 0; v < 4; ++v) V::Write(strip.y + v * kTile, sums[v]);
}

// All rows by a few inputs of a panel.
template <class V>
inline void AddTileQuads(const Strip& strip, const Quads& from) {
  if (strip.rows == 1 && from.width == kBlock) return AddRowAsTiles<V>(strip, from);
  Tiles tiles;
  if (from.width < kBlock) {
    WidenAll<V>(from);
    return AddLines<Bfloat16Pairs>(tiles, LinesOf(strip), NoLook{});
  }
  NextQuads<V> next{from.panel, from.panel + 4 * from.quads * kBlock, from.words};
  next(nullptr, 0);
  AddLines<Bfloat16Pairs>(tiles, LinesOf(strip), next);
}

template <>
constexpr int64_t kMostQuads<TiledInt8> = kTileQuads;
template <>
constexpr int64_t kMostQuads<TiledFloat8> = kTileQuads;

template <>
inline void AddQuads<TiledInt8>(Strip strip, const Quads& from) {
  AddTileQuads<TiledInt8>(strip, from);
}
template <>
inline void AddQuads<TiledFloat8>(Strip strip, const Quads& from) {
  AddTileQuads<TiledFloat8>(strip, from);
}

}  // namespace
}  // namespace jaxserve::matmul
