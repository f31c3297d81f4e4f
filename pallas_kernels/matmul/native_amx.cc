// AMX: tiles of bfloat16, whose dot products take denormal numbers for 0.
#include "pallas_kernels/matmul/native_amx.h"
#include "pallas_kernels/matmul/native_avx512bf16.h"

namespace jaxserve::matmul {
namespace {

// Bfloat16 whose strips are tiles.
struct Tiled : Bfloat16 {};

// Asks for what follows in a panel.
struct Ahead {
  void operator()(const char* line, int64_t count) const {
    for (int64_t byte = 0; byte < count * 4 * kBlock; byte += 64) __builtin_prefetch(line + byte + kAhead);
  }
};

template <>
inline void AddStrip<Tiled>(const Strip& strip) {
  Tiles tiles;
  AddLines<Bfloat16Pairs>(tiles, {strip.x, strip.panel, reinterpret_cast<char*>(strip.y), strip.rows, strip.words, strip.width,
                                  strip.x_stride, 4 * strip.width, 4 * strip.y_stride, strip.first}, Ahead{});
}

}  // namespace

const Kernels kAmx = {Panels<Tiled>,
                      kAvx512.panels_float32,
                      Rows<Bfloat16>,
                      kAvx512.rows_float32,
                      Plain<Bfloat16>,
                      kAvx512.plain_float32,
                      BytePanels<Bfloat16, int8_t>,
                      kAvx512.int8_float32,
                      GroupedBytePanels<Bfloat16Float8, Float8>,
                      kAvx512.float8_float32,
                      kAvx512.four_bit};

}  // namespace jaxserve::matmul
