// AVX-512 without instructions for bfloat16.
#include "pallas_kernels/ragged_paged_attention/native_avx512.h"

namespace jaxserve::attention {

constexpr Kernels kAvx512 = InFloats<Avx512>();

}  // namespace jaxserve::attention
