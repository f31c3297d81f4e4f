// AMX, with dot products of four bytes in AVX-512 for the sums of weights.
#include <immintrin.h>

#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_w8a8.h"

namespace jaxserve::matmul {
namespace {

// The sums of a whole panel's weights, taken while its lines are at hand.
struct SumWeights {
  __m512i sums[4] = {};
  void operator()(const char* line, int64_t count) {
    for (int64_t left = count; left > 0; --left, line += 4 * kBlock)
      for (int v = 0; v < 4; ++v)
        sums[v] = _mm512_dpbusd_epi32(sums[v], _mm512_set1_epi8(1), _mm512_loadu_si512(line + 4 * v * kTile));
  }
};

void TilePanels(const W8A8Product& product, int64_t block) {
  if (product.outputs - block * kBlock < kBlock) return NarrowPanel(product, block);
  const int64_t inputs = product.inputs;
  const int8_t* panel = product.matrix + block * kBlock * inputs;
  alignas(64) int32_t weights[kBlock], sums[kTile][kBlock];
  SumWeights look;
  Tiles tiles;
  for (int64_t row = 0; row < product.rows; row += kTile) {
    const int64_t left = product.rows - row, rows = left < kTile ? left : kTile;
    const Lines lines{reinterpret_cast<const char*>(product.x + row * inputs), reinterpret_cast<const char*>(panel),
                      reinterpret_cast<char*>(sums), rows, inputs / 4, kBlock, inputs, 4 * kBlock, sizeof sums[0], true};
    if (row > 0) {
      AddLines<UnsignedBytes>(tiles, lines, NoLook{});
    } else {
      AddLines<UnsignedBytes>(tiles, lines, look);
      for (int v = 0; v < 4; ++v) _mm512_store_si512(weights + v * kTile, look.sums[v]);
    }
    for (int64_t r = 0; r < rows; ++r) Finish(product, block, row + r, panel, weights, sums[r]);
  }
}

}  // namespace

constexpr ComputeW8A8 kAmxW8A8 = TilePanels;

}  // namespace jaxserve::matmul
