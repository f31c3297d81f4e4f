// The product with 4-bit codes of native_kernels.h, in terms of a vector type V of float32 as in native_tiles.h.
//
// A code's number is looked up in a register, and sums are multiplied by scales. For more than a few rows, some inputs of a panel
// become numbers of float32 in memory that stays in a core's cache, and all rows are multiplied by these. V has for it, besides:
//   Table ReadTable(numbers)   the 16 numbers that codes stand for
//   LookUp<I>(table, eights)   the number of code I of the eight in each lane
//   Minus(words, sums) AsWords(sums) Store(to, words)
#pragma once

#include "pallas_kernels/matmul/native_tiles.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kFewRows = 4;          // that are multiplied by codes as they come
constexpr int64_t kOctets = 32;          // of inputs that are added up before they are scaled, at most: 64 KiB of float32
constexpr int64_t kAheadOfCodes = 4096;  // bytes of a panel that memory is asked for before they are needed

// Inputs of one panel that share scales and zeros, all of a group or a part of it; `zeros` is null if these are 0.
struct Piece {
  const uint32_t* words;  // [octets, kBlock]
  const float* scales;
  const float* zeros;
  int64_t input, octets;  // the first one, and how many times eight
  bool first;             // whether y holds nothing yet
};

// Where the rows of x and y are.
struct RowsOf {
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
};

// Calls work(piece) for a panel of kBlock outputs, from the first inputs on, with `most` octets at most. Sums do not
// depend on what `work` does with them: so a row's result does not depend on how many rows there are.
template <class Work>
inline void ForPieces(const FourBitProduct& product, int64_t block, int64_t most, const Work& work) {
  const int64_t octets = product.group / 8;
  const uint32_t* panel = product.words + block * kBlock * (product.inputs / 8);
  for (int64_t group = 0; group < product.inputs / product.group; ++group)
    for (int64_t done = 0, here; done < octets; done += here) {
      here = octets - done < most ? octets - done : most;
      const int64_t octet = group * octets + done, factors = group * product.outputs + block * kBlock;
      work(Piece{panel + octet * kBlock, product.scales + factors, product.zeros == nullptr ? nullptr : product.zeros + factors,
                 8 * octet, here, octet == 0});
    }
}

template <class V, int I>
inline typename V::Words NumberOf(const typename V::Table& table, typename V::Words eights, const float* zeros) {
  const typename V::Words number = V::template LookUp<I>(table, eights);
  return zeros == nullptr ? number : V::Minus(number, V::Read(zeros));
}

// Adds the products of ROWS rows with one input's numbers.
template <class V, int ROWS>
inline void AddInput(typename V::Sums (&sums)[ROWS][V::kVectors], const typename V::Words (&numbers)[V::kVectors], const float* x,
                     int64_t x_stride) {
  for (int r = 0; r < ROWS; ++r) {
    const typename V::Words value = V::Broadcast(x + r * x_stride);
    for (int v = 0; v < V::kVectors; ++v) sums[r][v] = V::MulAdd(sums[r][v], value, numbers[v]);
  }
}

template <class V, int ROWS, bool ZEROS, int I>
inline void AddCode(typename V::Sums (&sums)[ROWS][V::kVectors], const typename V::Words (&eights)[V::kVectors],
                    const typename V::Table& table, const float* zeros, const float* x, int64_t x_stride) {
  typename V::Words numbers[V::kVectors];
  for (int v = 0; v < V::kVectors; ++v)
    numbers[v] = NumberOf<V, I>(table, eights[v], ZEROS ? zeros + v * V::kLanes : nullptr);
  AddInput<V, ROWS>(sums, numbers, x + I, x_stride);
}

// y plus the sums times their scales.
template <class V, int ROWS>
inline void AddScaled(const typename V::Sums (&sums)[ROWS][V::kVectors], const Piece& piece, const RowsOf& rows, int64_t column) {
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < V::kVectors; ++v) {
      const int64_t at = column + v * V::kLanes;
      float* to = rows.y + r * rows.y_stride + at;
      V::Write(to, V::MulAdd(piece.first ? V::Zero() : V::Read(to), V::AsWords(sums[r][v]), V::Load(piece.scales + at)));
    }
}

// ROWS rows by a piece's codes, as many outputs from `column` on as the registers hold.
template <class V, int ROWS, bool ZEROS>
inline void AddCodes(const Piece& piece, const typename V::Table& table, const RowsOf& rows, int64_t column) {
  typename V::Sums sums[ROWS][V::kVectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = V::Zero();
  const uint32_t* from = piece.words + column;
  const float* x = rows.x + piece.input;
  const float* zeros = ZEROS ? piece.zeros + column : nullptr;
  for (int64_t octet = 0; octet < piece.octets; ++octet, from += kBlock, x += 8) {
    typename V::Words eights[V::kVectors];
    for (int v = 0; v < V::kVectors; ++v) {
      __builtin_prefetch(reinterpret_cast<const char*>(from + v * V::kLanes) + kAheadOfCodes);
      eights[v] = V::Load(from + v * V::kLanes);
    }
    AddCode<V, ROWS, ZEROS, 0>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 1>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 2>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 3>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 4>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 5>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 6>(sums, eights, table, zeros, x, rows.x_stride);
    AddCode<V, ROWS, ZEROS, 7>(sums, eights, table, zeros, x, rows.x_stride);
  }
  AddScaled<V, ROWS>(sums, piece, rows, column);
}

// The same by numbers [8 * octets, kBlock] that codes were made.
template <class V, int ROWS>
inline void AddNumbers(const Piece& piece, const float* from, const RowsOf& rows, int64_t column) {
  typename V::Sums sums[ROWS][V::kVectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = V::Zero();
  for (int64_t input = 0; input < 8 * piece.octets; ++input) {
    typename V::Words numbers[V::kVectors];
    for (int v = 0; v < V::kVectors; ++v) numbers[v] = V::Load(from + input * kBlock + column + v * V::kLanes);
    AddInput<V, ROWS>(sums, numbers, rows.x + piece.input + input, rows.x_stride);
  }
  AddScaled<V, ROWS>(sums, piece, rows, column);
}

template <class V, int ROWS, bool ZEROS>
inline void FewRows(const FourBitProduct& product, int64_t block) {
  if constexpr (ROWS > 0) {
    if (product.rows < ROWS) return FewRows<V, ROWS - 1, ZEROS>(product, block);
    const typename V::Table table = V::ReadTable(product.table);
    const RowsOf rows{static_cast<const float*>(product.x), product.y + block * kBlock, product.inputs, product.outputs};
    ForPieces(product, block, kOctets, [&](const Piece& piece) {
      for (int64_t column = 0; column < kBlock; column += V::kVectors * V::kLanes)
        AddCodes<V, ROWS, ZEROS>(piece, table, rows, column);
    });
  }
}

template <class V, int ROWS>
inline void AddNumbersOf(int64_t count, const Piece& piece, const float* numbers, const RowsOf& rows) {
  if constexpr (ROWS > 0) {
    if (count < ROWS) return AddNumbersOf<V, ROWS - 1>(count, piece, numbers, rows);
    for (int64_t column = 0; column < kBlock; column += V::kVectors * V::kLanes)
      AddNumbers<V, ROWS>(piece, numbers, rows, column);
  }
}

// A piece's codes as float32 [8 * octets, kBlock], without scales.
template <class V>
inline void Widen(const Piece& piece, const typename V::Table& table, float* to) {
  for (int64_t octet = 0; octet < piece.octets; ++octet, to += 8 * kBlock)
    for (int64_t column = 0; column < kBlock; column += V::kLanes) {
      const typename V::Words eights = V::Load(piece.words + octet * kBlock + column);
      const float* zeros = piece.zeros == nullptr ? nullptr : piece.zeros + column;
      V::Store(to + 0 * kBlock + column, NumberOf<V, 0>(table, eights, zeros));
      V::Store(to + 1 * kBlock + column, NumberOf<V, 1>(table, eights, zeros));
      V::Store(to + 2 * kBlock + column, NumberOf<V, 2>(table, eights, zeros));
      V::Store(to + 3 * kBlock + column, NumberOf<V, 3>(table, eights, zeros));
      V::Store(to + 4 * kBlock + column, NumberOf<V, 4>(table, eights, zeros));
      V::Store(to + 5 * kBlock + column, NumberOf<V, 5>(table, eights, zeros));
      V::Store(to + 6 * kBlock + column, NumberOf<V, 6>(table, eights, zeros));
      V::Store(to + 7 * kBlock + column, NumberOf<V, 7>(table, eights, zeros));
    }
}

template <class V>
inline void ManyRows(const FourBitProduct& product, int64_t block) {
  alignas(64) float numbers[8 * kOctets * kBlock];
  const typename V::Table table = V::ReadTable(product.table);
  ForPieces(product, block, kOctets, [&](const Piece& piece) {
    Widen<V>(piece, table, numbers);
    for (int64_t row = 0, here; row < product.rows; row += here) {  // tiles of nearly equal numbers of rows
      const int64_t left = product.rows - row, tiles = (left + V::kRows - 1) / V::kRows;
      here = (left + tiles - 1) / tiles;
      const RowsOf rows{static_cast<const float*>(product.x) + row * product.inputs,
                        product.y + row * product.outputs + block * kBlock, product.inputs, product.outputs};
      AddNumbersOf<V, V::kRows>(here, piece, numbers, rows);
    }
  });
}

// A last panel that is narrower, a number at a time: real models have none.
template <class Element>
inline void NarrowPanel(const FourBitProduct& product, int64_t block, int64_t width) {
  const uint32_t* panel = product.words + block * kBlock * (product.inputs / 8);
  for (int64_t row = 0; row < product.rows; ++row)
    for (int64_t column = 0; column < width; ++column) {
      float sum = 0;
      for (int64_t input = 0; input < product.inputs; ++input) {
        const int64_t at = input / product.group * product.outputs + block * kBlock + column;
        const float zero = product.zeros == nullptr ? 0 : product.zeros[at];
        const float number = product.table[panel[input / 8 * width + column] >> (4 * (input % 8)) & 15] - zero;
        sum += ToFloat(static_cast<const Element*>(product.x)[row * product.inputs + input]) * (number * product.scales[at]);
      }
      product.y[row * product.outputs + block * kBlock + column] = sum;
    }
}

template <class V>
void FourBitPanels(const FourBitProduct& product, int64_t block) {
  const int64_t left = product.outputs - block * kBlock;
  if (left < kBlock) return NarrowPanel<float>(product, block, left);
  if (product.rows > kFewRows) return ManyRows<V>(product, block);
  product.zeros == nullptr ? FewRows<V, kFewRows, false>(product, block) : FewRows<V, kFewRows, true>(product, block);
}

}  // namespace
}  // namespace jaxserve::matmul
