// Products by AMX, whose registers are tiles of 16 lines of 64 bytes: a line of x is a row's 16 words, a line of a panel one word of 16
// outputs, and a line of sums a row's 16 outputs. So rows and panels of native_kernels.h are read where they lie.
//
// A sum's words are added in order, 16 at a time, whatever its row's place in a tile: so a row's result does not depend on how many
// rows there are. An instruction is a type Dot with
//   Add<SUMS, X, W>()    adds the products of tile X, of rows, with tile W, of a panel, to tile SUMS
#pragma once

#include <cstdint>
#include <cstring>

namespace jaxserve::matmul {
namespace {

constexpr int64_t kTile = 16;  // lines of a tile, and its words in a line

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

// Words of one panel, and the same ones of all rows. Words, sums and outputs have 4 bytes.
struct Lines {
  const char* x;
  const char* panel;
  char* y;
  int64_t rows, words, width;            // width: of the panel
  int64_t x_stride, w_stride, y_stride;  // from line to line, in bytes
  bool first;                            // whether y holds nothing yet
};

// The shapes of a thread's tiles while this lives. ROWS tiles of rows by COLUMNS of outputs: sums are the tiles from 0 on, rows those
// from 4 on, and panels those behind them.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (shaped_) asm volatile("tilerelease");
  }

  // Of `rows` in all, words of a line, and outputs of a tile.
  template <int ROWS, int COLUMNS>
  void Shape(int64_t rows, int64_t words, int64_t outputs) {
    alignas(64) Config config{};
    config.palette = 1;
    for (int r = 0; r < ROWS; ++r) {
      const int64_t here = r + 1 < ROWS ? kTile : rows - r * kTile;
      for (int c = 0; c < COLUMNS; ++c) config.Set(r * COLUMNS + c, here, outputs);
      config.Set(4 + r, here, words);
    }
    for (int tile = 4 + ROWS; tile < 8; ++tile) config.Set(tile, words, outputs);
    if (shaped_ && std::memcmp(&config, &config_, sizeof config) == 0) return;
    config_ = config, shaped_ = true;
    asm volatile("ldtilecfg %0" ::"m"(config_));
  }

 private:
  struct Config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t lines[16];
    void Set(int tile, int64_t height, int64_t width) { lines[tile] = height, bytes[tile] = 4 * width; }
  };
  alignas(64) Config config_{};
  bool shaped_ = false;
};

// Where tiles begin.
struct Place {
  int64_t row, column, word;
};

template <int ROWS, int COLUMNS, int I = 0>
inline void ReadSums(const Lines& lines, const Place& at, bool zero) {
  if constexpr (I < ROWS * COLUMNS) {
    const int64_t row = at.row + I / COLUMNS * kTile, column = at.column + I % COLUMNS * kTile;
    if (zero) ZeroTile<I>();
    else LoadTile<I>(lines.y + row * lines.y_stride + 4 * column, lines.y_stride);
    ReadSums<ROWS, COLUMNS, I + 1>(lines, at, zero);
  }
}

template <int ROWS, int COLUMNS, int I = 0>
inline void WriteSums(const Lines& lines, const Place& at) {
  if constexpr (I < ROWS * COLUMNS) {
    const int64_t row = at.row + I / COLUMNS * kTile, column = at.column + I % COLUMNS * kTile;
    StoreTile<I>(lines.y + row * lines.y_stride + 4 * column, lines.y_stride);
    WriteSums<ROWS, COLUMNS, I + 1>(lines, at);
  }
}

template <class Dot, int ROWS, int COLUMNS, int C = 0>
inline void AddColumns(const char* w, int64_t w_stride) {
  if constexpr (C < COLUMNS) {
    constexpr int kPanel = 4 + ROWS + C % (4 - ROWS);
    LoadTile<kPanel>(w + 4 * C * kTile, w_stride);
    Dot::template Add<C, 4, kPanel>();
    if constexpr (ROWS > 1) Dot::template Add<COLUMNS + C, 5, kPanel>();
    AddColumns<Dot, ROWS, COLUMNS, C + 1>(w, w_stride);
  }
}

// What is done besides with a panel's lines when they come from memory, `count` of them from `line` on: here nothing.
struct NoLook {
  void operator()(const char* line, int64_t count) const {}
};

// Adds `steps` times `depth` words.
template <class Dot, int ROWS, int COLUMNS, class Look>
inline void AddSteps(const Lines& lines, const Place& at, int64_t steps, int64_t depth, Look& look) {
  ReadSums<ROWS, COLUMNS>(lines, at, lines.first && at.word == 0);
  const char* x = lines.x + at.row * lines.x_stride + 4 * at.word;
  const char* w = lines.panel + at.word * lines.w_stride + 4 * at.column;
  for (int64_t step = 0; step < steps; ++step, x += 4 * kTile, w += kTile * lines.w_stride) {
    LoadTile<4>(x, lines.x_stride);
    if constexpr (ROWS > 1) LoadTile<5>(x + kTile * lines.x_stride, lines.x_stride);
    AddColumns<Dot, ROWS, COLUMNS>(w, lines.w_stride);
    look(w, depth);
  }
  WriteSums<ROWS, COLUMNS>(lines, at);
}

// All words of `rows` rows by COLUMNS tiles of outputs; the last one's outputs may be fewer.
template <class Dot, int ROWS, int COLUMNS, class Look>
inline void AddWords(Tiles& tiles, const Lines& lines, Place at, int64_t rows, int64_t outputs, Look& look) {
  const int64_t whole = lines.words / kTile, left = lines.words % kTile;
  if (whole > 0 || left == 0) {
    tiles.Shape<ROWS, COLUMNS>(rows, kTile, outputs);
    AddSteps<Dot, ROWS, COLUMNS>(lines, at, whole, kTile, look);
  }
  if (left == 0) return;
  at.word = whole * kTile;
  tiles.Shape<ROWS, COLUMNS>(rows, left, outputs);
  AddSteps<Dot, ROWS, COLUMNS>(lines, at, 1, left, look);
}

// `rows` rows by all outputs.
template <class Dot, int ROWS, class Look>
inline void AddRows(Tiles& tiles, const Lines& lines, int64_t row, int64_t rows, Look& look) {
  constexpr int kColumns = ROWS == 1 ? 4 : 2;
  constexpr NoLook none;
  for (int64_t column = 0; column < lines.width;) {
    const int64_t left = lines.width - column;
    if (left >= kColumns * kTile) {
      if (column == 0) AddWords<Dot, ROWS, kColumns>(tiles, lines, {row, column, 0}, rows, kTile, look);
      else AddWords<Dot, ROWS, kColumns>(tiles, lines, {row, column, 0}, rows, kTile, none);
      column += kColumns * kTile;
    } else {
      AddWords<Dot, ROWS, 1>(tiles, lines, {row, column, 0}, rows, left < kTile ? left : kTile, none);
      column += kTile;
    }
  }
}

// The rows from `row` on, as many as two tiles have.
template <class Dot, class Look>
inline void AddSomeRows(Tiles& tiles, const Lines& lines, int64_t row, Look& look) {
  const int64_t left = lines.rows - row;
  if (left > kTile) AddRows<Dot, 2>(tiles, lines, row, left < 2 * kTile ? left : 2 * kTile, look);
  else AddRows<Dot, 1>(tiles, lines, row, left, look);
}

// y = all rows by all outputs, added to what y holds. look(line, count) is called for all lines of the panel, in order; the panel has
// kBlock outputs if that does anything.
template <class Dot, class Look>
inline void AddLines(Tiles& tiles, const Lines& lines, Look& look) {
  constexpr NoLook none;
  AddSomeRows<Dot>(tiles, lines, 0, look);
  for (int64_t row = 2 * kTile; row < lines.rows; row += 2 * kTile) AddSomeRows<Dot>(tiles, lines, row, none);
}

}  // namespace
}  // namespace jaxserve::matmul
