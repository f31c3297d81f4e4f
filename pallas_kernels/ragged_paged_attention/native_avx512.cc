// AVX-512 without instructions for bfloat16.
#include "pallas_kernels/ragged_paged_attention/native_avx512.h"

namespace jaxserve::attention {

const Kernels kAvx512 = {AttendWith<Avx512, Plain<Avx512, uint16_t>>, AttendWith<Avx512, Plain<Avx512, float>>};

}  // namespace jaxserve::attention
