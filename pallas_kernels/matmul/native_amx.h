// Products by AMX, whose registers are tiles of 16 lines of 64 bytes: a line of x is a row's 16 words, a line of a panel one word of 16
// outputs, and a line of sums a row's 16 outputs. So rows and panels of native_kernels.h are read where they lie.
//
// A sum's words are added in order, 16 at a time, whatever its row's place in a tile: so a row's result does not depend on how many
// rows there are. An instruction is a type Dot with
//   Add<SUMS, X, W>()    adds the products of tile X, of rows, with tile W, of a panel, to tile SUMS
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "pallas_kernels/matmul/native_kernels.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kTile = 16;  // lines of a tile, and its words in a line

inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The intrinsics take numbers of tiles as text, and do not say that they read memory.
template <int TILE>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
template <int TILE>
inline void LoadTile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void StoreTile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
struct UnsignedBytes {
  template <int SUMS, int X, int W>
  static void Add() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(W));
  }
};
struct Bfloat16Pairs {
  template <int SUMS, int X, int W>
  static void Add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(W));
  }
};

// Denormal numbers are 0 in vectors too, as in tiles, while this lives.
class NoDenormals {
 public:
  NoDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  NoDenormals(const NoDenormals&) = delete;
  ~NoDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

// Words of one panel, and the same ones of all rows. Words, sums and outputs have 4 bytes.
struct Lines {
  const char* x;
  const char* panel;
  char* y;
  int64_t rows, words, width;            // width: of the panel
  int64_t x_stride, w_stride, y_stride;  // from line to line, in bytes
  bool first;                            // whether y holds nothing yet
};

// The shapes of a thread's tiles while this lives: sums are tiles 0 to 3, rows tile 4, and panels those behind it.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (shape_.palette) asm volatile("tilerelease");
  }

  // Of so many rows, words of a line, and outputs of a tile.
  void Shape(int64_t rows, int64_t words, int64_t outputs) {
    Config shape{};
    shape.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      shape.lines[tile] = tile > 4 ? words : rows;
      shape.bytes[tile] = 4 * (tile == 4 ? words : outputs);
    }
    if (std::memcmp(&shape, &shape_, sizeof shape) == 0) return;
    shape_ = shape;
    asm volatile("ldtilecfg %0" ::"m"(shape_));
  }

 private:
  struct Config {  // as the instruction takes it
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];  // of a line
    uint8_t lines[16];
  };
  Config shape_{};
};

// Where tiles begin.
struct Place {
  int64_t row, column, word;
};

template <int COLUMNS, int C = 0>
inline void ReadSums(const char* y, int64_t stride, bool zero) {
  if constexpr (C < COLUMNS) {
    if (zero) ZeroTile<C>();
    else LoadTile<C>(y + 4 * C * kTile, stride);
    ReadSums<COLUMNS, C + 1>(y, stride, zero);
  }
}

template <int COLUMNS, int C = 0>
inline void WriteSums(char* y, int64_t stride) {
  if constexpr (C < COLUMNS) {
    StoreTile<C>(y + 4 * C * kTile, stride);
    WriteSums<COLUMNS, C + 1>(y, stride);
  }
}

template <class Dot, int COLUMNS, int C = 0>
inline void AddColumns(const char* w, int64_t stride) {
  if constexpr (C < COLUMNS) {
    constexpr int kPanel = 5 + C % 3;
    LoadTile<kPanel>(w + 4 * C * kTile, stride);
    Dot::template Add<C, 4, kPanel>();
    AddColumns<Dot, COLUMNS, C + 1>(w, stride);
  }
}

// What is done besides with a panel's lines when they come from memory, `count` of them from `line` on: here nothing.
struct NoLook {
  void operator()(const char*, int64_t) const {}
};

// Adds `steps` times `depth` words, a tile of rows by COLUMNS of outputs.
template <class Dot, int COLUMNS, class Look>
inline void AddSteps(const Lines& lines, const Place& at, int64_t steps, int64_t depth, Look&& look) {
  char* y = lines.y + at.row * lines.y_stride + 4 * at.column;
  ReadSums<COLUMNS>(y, lines.y_stride, lines.first && at.word == 0);
  const char* x = lines.x + at.row * lines.x_stride + 4 * at.word;
  const char* w = lines.panel + at.word * lines.w_stride + 4 * at.column;
  for (int64_t step = 0; step < steps; ++step, x += 4 * kTile, w += kTile * lines.w_stride) {
    LoadTile<4>(x, lines.x_stride);
    AddColumns<Dot, COLUMNS>(w, lines.w_stride);
    look(w, depth);
  }
  WriteSums<COLUMNS>(y, lines.y_stride);
}

// All words of `rows` rows by COLUMNS tiles of `outputs` each.
template <class Dot, int COLUMNS, class Look>
inline void AddWords(Tiles& tiles, const Lines& lines, Place at, int64_t rows, int64_t outputs, Look&& look) {
  const int64_t whole = lines.words / kTile, left = lines.words % kTile;
  if (whole > 0 || left == 0) {
    tiles.Shape(rows, kTile, outputs);
    AddSteps<Dot, COLUMNS>(lines, at, whole, kTile, look);
  }
  if (left == 0) return;
  at.word = whole * kTile;
  tiles.Shape(rows, left, outputs);
  AddSteps<Dot, COLUMNS>(lines, at, 1, left, look);
}

// A tile of rows by all outputs.
template <class Dot, class Look>
inline void AddRows(Tiles& tiles, const Lines& lines, int64_t row, Look&& look) {
  static_assert(kBlock == 4 * kTile);
  const int64_t rows = lines.rows - row < kTile ? lines.rows - row : kTile;
  if (lines.width == kBlock) return AddWords<Dot, 4>(tiles, lines, {row, 0, 0}, rows, kTile, look);
  for (int64_t column = 0; column < lines.width; column += kTile) {
    const int64_t outputs = lines.width - column < kTile ? lines.width - column : kTile;
    if (column == 0) AddWords<Dot, 1>(tiles, lines, {row, column, 0}, rows, outputs, look);
    else AddWords<Dot, 1>(tiles, lines, {row, column, 0}, rows, outputs, NoLook{});
  }
}

// y = all rows by all outputs, added to what y holds. look(line, count) is called once for all lines, in order.
template <class Dot, class Look>
inline void AddLines(Tiles& tiles, const Lines& lines, Look&& look) {
  if (lines.rows == 0) return;
  AddRows<Dot>(tiles, lines, 0, look);
  for (int64_t row = kTile; row < lines.rows; row += kTile) AddRows<Dot>(tiles, lines, row, NoLook{});
}

}  // namespace
}  // namespace jaxserve::matmul
