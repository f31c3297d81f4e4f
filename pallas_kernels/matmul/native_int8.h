// The product with int8 panels of native_kernels.h, in terms of a vector type V as in native_tiles.h.
//
// Every int8 is a number of V's dtype. The first rows of x are multiplied while a few inputs are made words of it, and the words are
// kept, in memory that stays in a core's cache, for the other rows. V has for it, besides:
//   Widen(quads, words)       the 4 / kPerWord words that the 4 int8 in each lane make, a vector each
//   Store(to, words) StorePart(to, n, words)
#pragma once

#include "pallas_kernels/matmul/native_tiles.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kAhead = 4096;  // bytes of a panel that memory is asked for before they are needed
constexpr int64_t kQuads = 256;  // lines of 4 inputs that are made words at a time, if these are kept: 256 KiB or less

// A few inputs of an int8 panel.
struct Quads {
  const int8_t* panel;  // [quads, width, 4]
  char* words;          // [quads, 4 / kPerWord, width] words
  int64_t quads, width;
};

template <class V>
constexpr int kLines = 4 / V::kPerWord;  // of words, from one of int8

template <class V>
constexpr int kFirstRows = V::kRows - 2;  // what the other two would take of the registers, making words needs

// Makes the words of all lines.
template <class V>
inline void WidenAll(const Quads& from) {
  typename V::Words words[kLines<V>];
  for (int64_t quad = 0; quad < from.quads; ++quad)
    for (int64_t column = 0; column < from.width; column += V::kLanes) {
      const int64_t lanes = from.width - column;
      const int8_t* quads = from.panel + 4 * (quad * from.width + column);
      V::Widen(lanes < V::kLanes ? V::LoadPart(quads, lanes) : V::Load(quads), words);
      for (int line = 0; line < kLines<V>; ++line) {
        char* to = from.words + 4 * ((quad * kLines<V> + line) * from.width + column);
        lanes < V::kLanes ? V::StorePart(to, lanes, words[line]) : V::Store(to, words[line]);
      }
    }
}

// The first ROWS rows by as many outputs of a whole panel as the registers hold, from `column` on. KEEP: also stores the words.
template <class V, int ROWS, bool KEEP>
inline void FirstTile(const Strip& strip, const Quads& from, int64_t column) {
  typename V::Sums sums[ROWS][V::kVectors];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < V::kVectors; ++v)
      sums[r][v] = strip.first ? V::Zero() : V::Read(strip.y + r * strip.y_stride + column + v * V::kLanes);
  for (int64_t quad = 0; quad < from.quads; ++quad) {
    typename V::Words words[V::kVectors][kLines<V>];
    const int8_t* quads = from.panel + 4 * (quad * kBlock + column);
    for (int v = 0; v < V::kVectors; ++v) {
      __builtin_prefetch(quads + kAhead + 4 * v * V::kLanes);
      V::Widen(V::Load(quads + 4 * v * V::kLanes), words[v]);
      for (int line = 0; KEEP && line < kLines<V>; ++line)
        V::Store(from.words + 4 * ((quad * kLines<V> + line) * kBlock + column + v * V::kLanes), words[v][line]);
    }
    for (int line = 0; line < kLines<V>; ++line)
      for (int r = 0; r < ROWS; ++r) {
        const typename V::Words value = V::Broadcast(strip.x + r * strip.x_stride + 4 * (quad * kLines<V> + line));
        for (int v = 0; v < V::kVectors; ++v) sums[r][v] = V::MulAdd(sums[r][v], value, words[v][line]);
      }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < V::kVectors; ++v) V::Write(strip.y + r * strip.y_stride + column + v * V::kLanes, sums[r][v]);
}

// A first tile of as many rows as `rows` says, ROWS at most.
template <class V, int ROWS, bool KEEP>
inline void FirstTileOf(int64_t rows, const Strip& strip, const Quads& from, int64_t column) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return FirstTile<V, ROWS, KEEP>(strip, from, column);
    FirstTileOf<V, ROWS - 1, KEEP>(rows, strip, from, column);
  }
}

// All rows by all outputs of some inputs of a panel.
template <class V>
inline void AddQuads(Strip strip, const Quads& from) {
  int64_t done = 0;
  if (from.width == kBlock) {
    done = strip.rows < kFirstRows<V> ? strip.rows : kFirstRows<V>;
    for (int64_t column = 0; column < kBlock; column += V::kVectors * V::kLanes)
      done < strip.rows ? FirstTileOf<V, kFirstRows<V>, true>(done, strip, from, column)
                        : FirstTileOf<V, kFirstRows<V>, false>(done, strip, from, column);
  } else {
    WidenAll<V>(from);
  }
  strip.x += done * strip.x_stride;
  strip.y += done * strip.y_stride;
  strip.rows -= done;
  AddStrip<V>(strip);
}

template <class V>
void Int8Panels(const Product& product, int64_t block) {
  using Element = typename V::Element;
  const int64_t inputs = product.inputs, quads = inputs / 4, left = product.outputs - block * kBlock;
  const int64_t width = left < kBlock ? left : kBlock, x_stride = inputs * static_cast<int64_t>(sizeof(Element));
  const int64_t most = width == kBlock && product.rows <= kFirstRows<V> ? quads : kQuads;
  const char* x = static_cast<const char*>(product.x);
  const int8_t* panel = static_cast<const int8_t*>(product.matrix) + block * kBlock * inputs;
  float* y = product.y + block * kBlock;
  alignas(64) char words[4 * kQuads * kLines<V> * kBlock];
  int64_t k = 0;
  do {
    const int64_t here = quads - k < most ? quads - k : most;
    AddQuads<V>({x + 16 / V::kPerWord * k, words, y, product.rows, here * kLines<V>, width, x_stride, product.outputs, k == 0},
                {panel + 4 * k * width, words, here, width});
    k += most;
  } while (k < quads);
  for (int64_t input = quads * 4; input < inputs; ++input) AddInput<Element>(product, input, y, panel + input * width, width);
  const float* scales = product.scales + block * kBlock;
  for (int64_t row = 0; row < product.rows; ++row)
    for (int64_t column = 0; column < width; ++column) y[row * product.outputs + column] *= scales[column];
}

}  // namespace
}  // namespace jaxserve::matmul
