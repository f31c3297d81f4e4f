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

// Where such a dot product takes longer than the two products that it is: only few rows times E4M3 are faster by it there.
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
