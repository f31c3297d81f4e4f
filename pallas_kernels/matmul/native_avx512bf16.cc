// AVX-512 with dot products of bfloat16.
#include "pallas_kernels/matmul/native_avx512bf16.h"

namespace jaxserve::matmul {

constexpr Kernels kAvx512Bf16 = {
    Panels<Bfloat16>, nullptr, Rows<Bfloat16>, nullptr, Plain<Bfloat16>, nullptr, BytePanels<Bfloat16, int8_t>, nullptr,
    GroupedBytePanels<Bfloat16Float8, Float8>};

}  // namespace jaxserve::matmul
