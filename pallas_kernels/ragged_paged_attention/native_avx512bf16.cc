// AVX-512 with dot products of bfloat16: weights are rounded to it as well. They take denormal numbers for 0.
#include "pallas_kernels/ragged_paged_attention/native_avx512.h"

namespace jaxserve::attention {
namespace {

struct Pairs {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static __m512i Part(const Element* numbers, int64_t left) {
    return left >= 32 ? _mm512_loadu_si512(numbers) : _mm512_maskz_loadu_epi16((1u << left) - 1, numbers);
  }
  static __m512 Load(const Element* key, int64_t left) { return _mm512_castsi512_ps(Part(key, left)); }
  static void Join(const Element* const* values, int64_t numbers, float* line) {
    const __m512i first = _mm512_loadu_si512(kPairs), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const Element* lower = values[0] == nullptr ? kZeros : values[0];
    const Element* upper = values[1] == nullptr ? kZeros : values[1];
    const int64_t lower_step = values[0] == nullptr ? 0 : 32, upper_step = values[1] == nullptr ? 0 : 32;
    for (int64_t left = numbers; left > 0; left -= 32, lower += lower_step, upper += upper_step, line += 32) {
      const __m512i low = Part(lower, left), high = Part(upper, left);
      _mm512_storeu_si512(line, _mm512_permutex2var_epi16(low, first, high));
      if (left > 16) _mm512_storeu_si512(line + 16, _mm512_permutex2var_epi16(low, second, high));
    }
  }
  static void WriteWeights(float* line, int64_t column, __m512 weights) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(line) + column / 16, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weights)));
  }
  static constexpr Element kZeros[32] = {};
  static constexpr Element kPairs[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  static __m512 MulAdd(__m512 sums, __m512 x, __m512 y) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
};

}  // namespace

const Kernels kAvx512Bf16 = {AttendWith<Avx512, Pairs>, kAvx512.float32};

}  // namespace jaxserve::attention
