// The products of native_kernels.h in terms of a vector type V, which a file for an instruction set defines.
//
// V works on words: float32, or two bfloat16. It has
//   Element, kPerWord         the dtype's, and how many of them a word holds
//   Words, Sums               vectors of kLanes words, and of as many float32
//   kRows, kVectors           accumulators that fit the registers, as rows of x by vectors of outputs
//   Zero() Read(y) Write(y, sums) ReadPart(y, n) WritePart(y, n, sums)
//   Load(words) LoadPart(words, n) Broadcast(word)
//   MulAdd(sums, x, w)        sums plus the products of all numbers in a word, lane by lane
//   Total(sums)               of all lanes
// Everything has internal linkage: two files for different CPUs must never share a function.
#pragma once

#include <cstdint>
#include <cstring>

#include "pallas_kernels/matmul/native_kernels.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kWords = 512;  // inputs of a panel, in words, that stay in a core's cache while all rows pass: 128 KiB

inline float ToFloat(float value) { return value; }
inline float ToFloat(int8_t value) { return value; }
struct Float8 {  // E4M3
  uint8_t bits;
};
inline float ToFloat(Float8 value) {
  const int exponent = value.bits >> 3 & 15, fraction = value.bits & 7;
  const float magnitude = exponent == 0 ? fraction / 512.0f : static_cast<float>((8 + fraction) << exponent) / 1024.0f;
  return value.bits >> 7 ? -magnitude : magnitude;
}
inline float ToFloat(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Some inputs of one panel, and the same ones of all rows.
struct Strip {
  const char* x;
  const char* panel;
  float* y;
  int64_t rows, words, width;   // width: of the panel
  int64_t x_stride, y_stride;   // from row to row: bytes; elements
  bool first;                   // whether y holds nothing yet
  int64_t ahead = 0;            // bytes from each number of the panel to one of what is read next; 0: it is not asked for
};

// Lines of memory that VECTORS vectors fill.
template <class V, int VECTORS>
constexpr int kAheadLines = (4 * VECTORS * V::kLanes + 63) / 64;

// Which lines of memory a tile asks for ahead, of those that a step of it reads: every `step`th from `first` on.
struct Prefetch {
  int first, step;
};

// ROWS rows by VECTORS vectors of outputs from `column` on. Not WHOLE: one vector, of which the panel has `width - column` lanes.
template <class V, int ROWS, int VECTORS, bool WHOLE>
inline void Tile(const Strip& strip, int64_t row, int64_t column, Prefetch prefetch) {
  const int64_t lanes = strip.width - column;
  const char* x = strip.x + row * strip.x_stride;
  float* y = strip.y + row * strip.y_stride + column;
  typename V::Sums sums[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) {
      const float* from = y + r * strip.y_stride + v * V::kLanes;
      sums[r][v] = strip.first ? V::Zero() : WHOLE ? V::Read(from) : V::ReadPart(from, lanes);
    }
  const char* w = strip.panel + 4 * column;
  for (int64_t k = 0; k < strip.words; ++k, w += 4 * strip.width) {
    typename V::Words words[VECTORS];
    for (int v = 0; v < VECTORS; ++v)
      words[v] = WHOLE ? V::Load(w + 4 * v * V::kLanes) : V::LoadPart(w, lanes);
    for (int line = prefetch.first; line < kAheadLines<V, VECTORS>; line += prefetch.step)
      __builtin_prefetch(w + strip.ahead + 64 * line, 0, 2);  // into the second cache
    for (int r = 0; r < ROWS; ++r) {
      const typename V::Words value = V::Broadcast(x + r * strip.x_stride + 4 * k);
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = V::MulAdd(sums[r][v], value, words[v]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) {
      float* to = y + r * strip.y_stride + v * V::kLanes;
      WHOLE ? V::Write(to, sums[r][v]) : V::WritePart(to, lanes, sums[r][v]);
    }
}

// A tile of as many rows as `rows` says, ROWS at most.
template <class V, int ROWS, int VECTORS, bool WHOLE>
inline void TileOf(int64_t rows, const Strip& strip, int64_t row, int64_t column, Prefetch prefetch) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return Tile<V, ROWS, VECTORS, WHOLE>(strip, row, column, prefetch);
    TileOf<V, ROWS - 1, VECTORS, WHOLE>(rows, strip, row, column, prefetch);
  }
}

// All rows in tiles of nearly equal numbers, which share the lines that are read next between them: those come from memory while
// this panel, which did, is multiplied.
template <class V, int VECTORS, bool WHOLE>
inline void Columns(const Strip& strip, int64_t column) {
  constexpr int kMost = kAheadLines<V, VECTORS>;
  const int tiles = static_cast<int>((strip.rows + V::kRows - 1) / V::kRows);
  int64_t row = 0, rows;
  for (int tile = 0; row < strip.rows; row += rows, ++tile) {
    rows = (strip.rows - row + tiles - tile - 1) / (tiles - tile);
    const Prefetch prefetch{strip.ahead == 0 ? kMost : tile, tiles < kMost ? tiles : kMost};
    TileOf<V, V::kRows, VECTORS, WHOLE>(rows, strip, row, column, prefetch);
  }
}

// All rows and all outputs of the panel.
template <class V>
inline void AddStrip(const Strip& strip) {
  int64_t column = 0;
  for (; column + V::kVectors * V::kLanes <= strip.width; column += V::kVectors * V::kLanes)
    Columns<V, V::kVectors, true>(strip, column);
  for (; column + V::kLanes <= strip.width; column += V::kLanes) Columns<V, 1, true>(strip, column);
  if (column < strip.width) Columns<V, 1, false>(strip, column);
}

// The products with one input that fills no word; `line` of the matrix has its outputs.
template <class Element, class Weight>
inline void AddInput(const Product& product, int64_t input, float* y, const Weight* line, int64_t width) {
  for (int64_t row = 0; row < product.rows; ++row) {
    const float value = ToFloat(static_cast<const Element*>(product.x)[row * product.inputs + input]);
    for (int64_t column = 0; column < width; ++column) y[row * product.stride + column] += value * ToFloat(line[column]);
  }
}

template <class V>
void Panels(const Product& product, int64_t block) {
  using Element = typename V::Element;
  const int64_t inputs = product.inputs, words = inputs / V::kPerWord, size = sizeof(Element);
  const int64_t left = product.outputs - block * kBlock, width = left < kBlock ? left : kBlock;
  const char* x = static_cast<const char*>(product.x);
  const char* panel = static_cast<const char*>(product.matrix) + block * kBlock * inputs * size;
  float* y = product.y + block * kBlock;
  int64_t k = 0;
  do {
    const int64_t here = words - k < kWords ? words - k : kWords;
    AddStrip<V>({x + 4 * k, panel + 4 * k * width, y, product.rows, here, width, inputs * size, product.outputs, k == 0,
                 4 * here * width});
    k += kWords;
  } while (k < words);
  if (words * V::kPerWord < inputs)
    AddInput<Element>(product, inputs - 1, y, reinterpret_cast<const Element*>(panel) + (inputs - 1) * width, width);
}

// Packs a few inputs at a time, then multiplies by them as by panels: for a matrix that is not worth another copy.
template <class V>
void Plain(const Product& product, int64_t block) {
  using Element = typename V::Element;
  constexpr int64_t kFew = 64, kPanels = kWide / kBlock;  // words of a strip
  const int64_t inputs = product.inputs, outputs = product.outputs, words = inputs / V::kPerWord, begin = block * kWide;
  const int64_t width = outputs - begin < kWide ? outputs - begin : kWide;
  const char* x = static_cast<const char*>(product.x);
  const Element* matrix = static_cast<const Element*>(product.matrix) + begin;
  // What is read next: the next strip, or the next columns where one strip is all that there are.
  const int64_t ahead = words > kFew ? kFew * V::kPerWord * outputs : kWide;
  alignas(64) Element panels[kPanels][kFew * V::kPerWord * kBlock];
  int64_t k = 0;
  do {
    const int64_t here = words - k < kFew ? words - k : kFew;
    for (int64_t word = 0; word < here; ++word) {
      const Element* line = matrix + (k + word) * V::kPerWord * outputs;
      for (int64_t input = 0; input < V::kPerWord; ++input)
        for (int64_t at = 0; at < width; at += 64 / sizeof(Element))  // into the second cache
          __builtin_prefetch(line + ahead + input * outputs + at, 0, 2);
      for (int64_t first = 0; first < width; first += kBlock) {
        const int64_t panel_width = width - first < kBlock ? width - first : kBlock;
        Element* to = panels[first / kBlock] + word * V::kPerWord * panel_width;
        for (int64_t column = 0; column < panel_width; ++column)
          for (int64_t input = 0; input < V::kPerWord; ++input)
            to[column * V::kPerWord + input] = line[input * outputs + first + column];
      }
    }
    for (int64_t first = 0; first < width; first += kBlock) {
      const int64_t panel_width = width - first < kBlock ? width - first : kBlock;
      AddStrip<V>({x + 4 * k, reinterpret_cast<const char*>(panels[first / kBlock]), product.y + begin + first, product.rows, here,
                   panel_width, inputs * static_cast<int64_t>(sizeof(Element)), product.stride, k == 0 && !product.adds});
    }
    k += kFew;
  } while (k < words);
  if (words * V::kPerWord < inputs)
    AddInput<Element>(product, inputs - 1, product.y + begin, matrix + (inputs - 1) * outputs, width);
}

// Dot products of ROWS rows of x, from `row` on, and OUTPUTS rows of the matrix, from `output` on.
template <class V, int ROWS, int OUTPUTS>
inline void Dots(const Product& product, int64_t row, int64_t output) {
  using Element = typename V::Element;
  const int64_t inputs = product.inputs, words = inputs / V::kPerWord;
  const Element* x = static_cast<const Element*>(product.x) + row * inputs;
  const Element* w = static_cast<const Element*>(product.matrix) + output * inputs;
  typename V::Sums sums[ROWS][OUTPUTS];
  for (auto& line : sums)
    for (auto& sum : line) sum = V::Zero();
  const auto add = [&](int64_t k, auto load) __attribute__((always_inline)) {
    typename V::Words values[OUTPUTS];
    for (int o = 0; o < OUTPUTS; ++o) values[o] = load(w + o * inputs + k * V::kPerWord);
    for (int r = 0; r < ROWS; ++r) {
      const typename V::Words value = load(x + r * inputs + k * V::kPerWord);
      for (int o = 0; o < OUTPUTS; ++o) sums[r][o] = V::MulAdd(sums[r][o], value, values[o]);
    }
  };
  int64_t k = 0;
  for (; k + V::kLanes <= words; k += V::kLanes) {
    if (row == 0)  // the only rows of x for which these lines are not there yet: ask for those of the next outputs
      for (int o = 0; o < OUTPUTS; ++o) __builtin_prefetch(w + (OUTPUTS + o) * inputs + k * V::kPerWord);
    add(k, [](const Element* from) { return V::Load(from); });
  }
  if (k < words) add(k, [&](const Element* from) { return V::LoadPart(from, words - k); });
  for (int r = 0; r < ROWS; ++r)
    for (int o = 0; o < OUTPUTS; ++o) {
      float total = V::Total(sums[r][o]);
      if (words * V::kPerWord < inputs) total += ToFloat(x[(r + 1) * inputs - 1]) * ToFloat(w[(o + 1) * inputs - 1]);
      product.y[(row + r) * product.outputs + output + o] = total;
    }
}

// Dot products of ROWS rows of x at most, as `rows` says, with OUTPUTS rows of the matrix.
template <class V, int ROWS, int OUTPUTS>
inline void DotsOf(int64_t rows, const Product& product, int64_t row, int64_t output) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return Dots<V, ROWS, OUTPUTS>(product, row, output);
    DotsOf<V, ROWS - 1, OUTPUTS>(rows, product, row, output);
  }
}

template <class V>
void Rows(const Product& product, int64_t block) {
  constexpr int kRows = 3, kOutputs = V::kRows * V::kVectors / kRows;  // 8 or 2, which divide kBlock
  const int64_t left = product.outputs - block * kBlock, end = block * kBlock + (left < kBlock ? left : kBlock);
  for (int64_t output = block * kBlock; output < end;) {
    const bool several = output + kOutputs <= end;
    for (int64_t row = 0; row < product.rows; row += kRows) {
      const int64_t rows = product.rows - row < kRows ? product.rows - row : kRows;
      several ? DotsOf<V, kRows, kOutputs>(rows, product, row, output) : DotsOf<V, kRows, 1>(rows, product, row, output);
    }
    output += several ? kOutputs : 1;
  }
}

}  // namespace
}  // namespace jaxserve::matmul
