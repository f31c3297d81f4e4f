// AVX-512 with dot products of bfloat16, for queries and keys. They take denormal numbers for 0.
#include "pallas_kernels/ragged_paged_attention/native_avx512.h"

namespace jaxserve::attention {
namespace {

struct Pairs {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static __m512 Load(const Element* key, int64_t left) {
    const __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, key));
  }
  static __m512 MulAdd(__m512 sums, __m512 x, __m512 y) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
};

}  // namespace

const Kernels kAvx512Bf16 = {AttendWith<Avx512, Pairs>, kAvx512.float32};

}  // namespace jaxserve::attention
