// AVX-512 with dot products of bfloat16.
#include "pallas_kernels/matmul/native_avx512bf16.h"

namespace jaxserve::matmul {

const Kernels kAvx512Bf16 = {Panels<Bfloat16>,
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

// For CPUs whose dot products take longer than two products of float32: those with E4M3 stay, whose numbers become bfloat16 sooner.
const Kernels kAvx512SlowBf16 = {kAvx512.panels_bfloat16,
                                 kAvx512.panels_float32,
                                 kAvx512.rows_bfloat16,
                                 kAvx512.rows_float32,
                                 kAvx512.plain_bfloat16,
                                 kAvx512.plain_float32,
                                 kAvx512.int8_bfloat16,
                                 kAvx512.int8_float32,
                                 kAvx512Bf16.float8_bfloat16,
                                 kAvx512.float8_float32,
                                 kAvx512.four_bit};

}  // namespace jaxserve::matmul
