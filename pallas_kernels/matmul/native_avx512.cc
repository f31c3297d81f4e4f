// AVX-512 without instructions for bfloat16.
#include "pallas_kernels/matmul/native_avx512.h"

namespace jaxserve::matmul {
namespace {

struct Float32 : Avx512 {
  using Element = float;
  static constexpr int kPerWord = 1;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), sums);
  }
};

struct Bfloat16 : Avx512 {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Sums Even(Words words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
  static Sums Odd(Words words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
  }
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm512_fmadd_ps(Odd(x), Odd(w), _mm512_fmadd_ps(Even(x), Even(w), sums));
  }
};

}  // namespace

const Kernels kAvx512 = {Panels<Bfloat16>, Panels<Float32>, Rows<Bfloat16>, Rows<Float32>, Plain<Bfloat16>, Plain<Float32>};

}  // namespace jaxserve::matmul
