// AMX: tiles of bfloat16, whose dot products take denormal numbers for 0.
#include "pallas_kernels/matmul/native_bytes_amx.h"
#include "pallas_kernels/matmul/native_four_bit_amx.h"
#include "pallas_kernels/matmul/native_plain_amx.h"
#include "pallas_kernels/matmul/native_rows_amx.h"

namespace jaxserve::matmul {

const Kernels kAmx = {Panels<Tiled>,
                      kAvx512.panels_float32,
                      TileRows,
                      kAvx512.rows_float32,
                      TilePlain,
                      kAvx512.plain_float32,
                      BytePanels<TiledInt8, int8_t>,
                      kAvx512.int8_float32,
                      GroupedBytePanels<TiledFloat8, Float8>,
                      kAvx512.float8_float32,
                      kAvx512.four_bit,
                      TileCodes};

}  // namespace jaxserve::matmul
