// AVX-512 with dot products of bfloat16. They take denormal numbers for 0.
#include "pallas_kernels/matmul/native_avx512.h"

namespace jaxserve::matmul {
namespace {

struct Bfloat16 : Avx512 {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace

const Kernels kAvx512Bf16 = {Panels<Bfloat16>,     kAvx512.panels_float32, Rows<Bfloat16>,
                             kAvx512.rows_float32, Plain<Bfloat16>,        kAvx512.plain_float32};

}  // namespace jaxserve::matmul
