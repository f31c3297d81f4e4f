// The products with panels of int8 and E4M3 of native_kernels.h, in terms of a vector type V as in native_tiles.h.
//
// Every int8, and every number of E4M3, is a number of V's dtype. The first rows of x are multiplied while a few inputs are made words of it, and the words are
// kept, in memory that stays in a core's cache, for the other rows. V has for it, besides:
//   Widen(quads, words)       the 4 / kPerWord words that the 4 bytes in each lane make, a vector each
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

// Some rows, and the inputs of them that share a scale.
struct Part {
  int64_t row, rows, input, inputs;
};

// Lines that V has made words at a time, if it keeps words.
template <class V>
constexpr int64_t kMostQuads = kQuads;

// The sums of a part's products, without scales: y [rows, y_stride]. What fills no word is added by the caller.
template <class V>
inline void SumQuads(const Product& product, int64_t block, const Part& part, float* y, int64_t y_stride) {
  const int64_t quads = part.inputs / 4, left = product.outputs - block * kBlock, width = left < kBlock ? left : kBlock;
  const int64_t size = sizeof(typename V::Element), x_stride = product.inputs * size;
  const bool keeps = width < kBlock || part.rows > kFirstRows<V> || kMostQuads<V> < kQuads;
  const int64_t most = keeps ? kMostQuads<V> : quads;
  const char* x = static_cast<const char*>(product.x) + part.row * x_stride + part.input * size;
  const int8_t* panel = static_cast<const int8_t*>(product.matrix) + block * kBlock * product.inputs + part.input * width;
  alignas(64) char words[4 * kMostQuads<V> * kLines<V> * kBlock];
  int64_t k = 0;
  do {
    const int64_t here = quads - k < most ? quads - k : most;
    AddQuads<V>({x + 16 / V::kPerWord * k, words, y, part.rows, here * kLines<V>, width, x_stride, y_stride, k == 0},
                {panel + 4 * k * width, words, here, width});
    k += most;
  } while (k < quads);
}

// Panels of BYTE, int8_t or Float8, which V widens, with one scale for all inputs of an output.
template <class V, class BYTE>
void BytePanels(const Product& product, int64_t block) {
  const int64_t inputs = product.inputs, left = product.outputs - block * kBlock, width = left < kBlock ? left : kBlock;
  float* y = product.y + block * kBlock;
  SumQuads<V>(product, block, {0, product.rows, 0, inputs}, y, product.outputs);
  const BYTE* panel = static_cast<const BYTE*>(product.matrix) + block * kBlock * inputs;
  for (int64_t input = inputs / 4 * 4; input < inputs; ++input)
    AddInput<typename V::Element>(product, input, y, panel + input * width, width);
  const float* scales = product.scales + block * kBlock;
  for (int64_t row = 0; row < product.rows; ++row)
    for (int64_t column = 0; column < width; ++column) y[row * product.outputs + column] *= scales[column];
}

// The same with a scale for each group of inputs, whose sum is multiplied by it.
template <class V, class BYTE>
void GroupedBytePanels(const Product& product, int64_t block) {
  if (product.group == product.inputs) return BytePanels<V, BYTE>(product, block);
  constexpr int64_t kTogether = 128;  // rows whose sums stay in a core's cache
  const int64_t left = product.outputs - block * kBlock, width = left < kBlock ? left : kBlock;
  alignas(64) float sums[kTogether * kBlock];
  for (int64_t row = 0; row < product.rows; row += kTogether) {
    const int64_t rows = product.rows - row < kTogether ? product.rows - row : kTogether;
    for (int64_t input = 0; input < product.inputs; input += product.group) {
      SumQuads<V>(product, block, {row, rows, input, product.group}, sums, kBlock);
      const float* scales = product.scales + input / product.group * product.outputs + block * kBlock;
      for (int64_t r = 0; r < rows; ++r) {
        float* y = product.y + (row + r) * product.outputs + block * kBlock;
        for (int64_t column = 0; column < width; ++column)
          y[column] = (input == 0 ? 0 : y[column]) + sums[r * kBlock + column] * scales[column];
      }
    }
  }
}

// V as it widens E4M3 in place of int8, by V::Float8Number<BYTE>(quads), the number of a byte of each lane in float32.
template <class V>
struct OfFloat8 : V {
  static void Widen(typename V::Words quads, typename V::Words (&words)[kLines<V>]) {
    const typename V::Words first = V::template Float8Number<0>(quads), second = V::template Float8Number<1>(quads);
    const typename V::Words third = V::template Float8Number<2>(quads), fourth = V::template Float8Number<3>(quads);
    if constexpr (V::kPerWord == 1)
      words[0] = first, words[1] = second, words[2] = third, words[3] = fourth;
    else
      words[0] = V::Pair(first, second), words[1] = V::Pair(third, fourth);
  }
};

// A number of E4M3 as float32: its exponent and fraction shifted into place, and 120 more, the difference of the biases, added to the
// exponent. Where the exponent is 0 there is no leading 1 in the fraction: it is added, with an exponent that is one larger, and taken
// away. No number on the way is one that CPUs may take for 0.
constexpr int32_t kMagnitude8 = 127 << 20, kBias8 = 120 << 23, kSmallBias8 = 121 << 23, kNormal8 = 1 << 23;
constexpr float kSmallest8 = 1.0f / 64;  // of the numbers that have a leading 1

}  // namespace
}  // namespace jaxserve::matmul
