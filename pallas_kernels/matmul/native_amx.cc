// AMX: tiles of bfloat16, whose dot products take denormal numbers for 0.
#include "pallas_kernels/matmul/native_bytes_amx.h"
#include "pallas_kernels/matmul/native_four_bit_amx.h"
#include "pallas_kernels/matmul/native_plain_amx.h"
#include "pallas_kernels/matmul/native_rows_amx.h"

namespace jaxserve::matmul {

constexpr Kernels kAmx = {
    Panels<Tiled>, nullptr, TileRows, nullptr, TilePlain, nullptr, BytePanels<TiledInt8, int8_t>, nullptr,
    GroupedBytePanels<TiledFloat8, Float8>, nullptr, nullptr, TileCodes};

}  // namespace jaxserve::matmul
