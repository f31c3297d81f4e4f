// The product of int8 rows with panels of int8, in terms of a vector type V:
//   Words                          a vector of kLanes int32
//   kRows, kVectors                accumulators that fit the registers, as rows of x by vectors of outputs
//   Zero() Load(quads) Broadcast(quad)
//   MulAdd(sums, x, w)             sums plus the products of four numbers a lane: x unsigned, w signed, exact
//   Store(to, sums)
// Rows come with 128 added, so that they are unsigned; what that adds to a sum is 128 times the sum of the output's weights.
#pragma once

#include <cstdint>
#include <cstring>

#include "pallas_kernels/matmul/native_kernels.h"

namespace jaxserve::matmul {
namespace {

constexpr int64_t kAheadOfQuads = 4096;  // bytes of a panel that memory is asked for before they are needed

// What a panel's sums are made of: rows, which follow one another, and where their sums go.
struct Quads {
  const uint8_t* x;
  const int8_t* panel;  // [quads, kBlock, 4]
  int64_t stride, quads;
};

// Sums of ROWS rows by as many outputs from `column` on as the registers hold.
template <class V, int ROWS>
inline void Sum(const Quads& from, int64_t column, typename V::Words (&sums)[ROWS][V::kVectors]) {
  for (auto& row : sums)
    for (auto& sum : row) sum = V::Zero();
  const uint8_t* x = from.x;
  const int8_t* panel = from.panel + 4 * column;
  for (int64_t quad = 0; quad < from.quads; ++quad, x += 4, panel += 4 * kBlock) {
    typename V::Words quads[V::kVectors];
    for (int v = 0; v < V::kVectors; ++v) {
      __builtin_prefetch(panel + 4 * v * V::kLanes + kAheadOfQuads);
      quads[v] = V::Load(panel + 4 * v * V::kLanes);
    }
    for (int r = 0; r < ROWS; ++r) {
      const typename V::Words value = V::Broadcast(x + r * from.stride);
      for (int v = 0; v < V::kVectors; ++v) sums[r][v] = V::MulAdd(sums[r][v], value, quads[v]);
    }
  }
}

// A last panel that is narrower, and inputs that fill no word: `sums` [kBlock] without what 128 adds.
inline void AddNarrow(const W8A8Product& product, const int8_t* panel, int64_t row, int64_t width, int64_t from_input, int32_t* sums) {
  const int64_t even = product.inputs / 4 * 4;
  for (int64_t input = from_input; input < product.inputs; ++input) {
    const int32_t x = product.x[row * product.inputs + input] - 128;
    for (int64_t column = 0; column < width; ++column)
      sums[column] += x * (input < even ? panel[input / 4 * 4 * width + 4 * column + input % 4] : panel[input * width + column]);
  }
}

inline void Scale(const W8A8Product& product, int64_t block, int64_t row, int64_t width, const int32_t* __restrict sums) {
  const float step = product.steps[row];
  const float* __restrict scales = product.scales + block * kBlock;
  float* __restrict y = product.y + row * product.outputs + block * kBlock;
  for (int64_t column = 0; column < width; ++column) y[column] = static_cast<float>(sums[column]) * (step * scales[column]);
}

// A row's results by a whole panel, of whose words `sums` are the sums and `weights` those of the weights.
inline void Finish(const W8A8Product& product, int64_t block, int64_t row, const int8_t* panel, const int32_t* __restrict weights,
                   int32_t* __restrict sums) {
  for (int64_t column = 0; column < kBlock; ++column) sums[column] -= 128 * weights[column];
  AddNarrow(product, panel, row, kBlock, product.inputs / 4 * 4, sums);
  Scale(product, block, row, kBlock, sums);
}

// A last panel that is narrower: real models have none.
inline void NarrowPanel(const W8A8Product& product, int64_t block) {
  const int64_t width = product.outputs - block * kBlock;
  for (int64_t row = 0; row < product.rows; ++row) {
    int32_t sums[kBlock] = {};
    AddNarrow(product, product.matrix + block * kBlock * product.inputs, row, width, 0, sums);
    Scale(product, block, row, width, sums);
  }
}

template <class V, int ROWS>
inline void W8A8Rows(const W8A8Product& product, int64_t block, int64_t row, int64_t count, const int8_t* panel, const int32_t* weights) {
  if constexpr (ROWS > 0) {
    if (count < ROWS) return W8A8Rows<V, ROWS - 1>(product, block, row, count, panel, weights);
    alignas(64) int32_t sums[ROWS][kBlock];
    for (int64_t column = 0; column < kBlock; column += V::kVectors * V::kLanes) {
      typename V::Words tile[ROWS][V::kVectors];
      Sum<V, ROWS>({product.x + row * product.inputs, panel, product.inputs, product.inputs / 4}, column, tile);
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < V::kVectors; ++v) V::Store(sums[r] + column + v * V::kLanes, tile[r][v]);
    }
    for (int r = 0; r < ROWS; ++r) Finish(product, block, row + r, panel, weights, sums[r]);
  }
}

template <class V>
void W8A8Panels(const W8A8Product& product, int64_t block) {
  if (product.outputs - block * kBlock < kBlock) return NarrowPanel(product, block);
  const int8_t* panel = product.matrix + block * kBlock * product.inputs;
  alignas(64) int32_t weights[kBlock];
  constexpr uint8_t kOnes[4] = {1, 1, 1, 1};
  for (int64_t column = 0; column < kBlock; column += V::kVectors * V::kLanes) {
    typename V::Words tile[1][V::kVectors];
    for (auto& sum : tile[0]) sum = V::Zero();
    for (int64_t quad = 0; quad < product.inputs / 4; ++quad)
      for (int v = 0; v < V::kVectors; ++v)
        tile[0][v] = V::MulAdd(tile[0][v], V::Broadcast(kOnes), V::Load(panel + 4 * (quad * kBlock + column + v * V::kLanes)));
    for (int v = 0; v < V::kVectors; ++v) V::Store(weights + column + v * V::kLanes, tile[0][v]);
  }
  for (int64_t row = 0, here; row < product.rows; row += here) {  // tiles of nearly equal numbers of rows
    const int64_t rows = product.rows - row, tiles = (rows + V::kRows - 1) / V::kRows;
    here = (rows + tiles - 1) / tiles;
    W8A8Rows<V, V::kRows>(product, block, row, here, panel, weights);
  }
}

}  // namespace
}  // namespace jaxserve::matmul
