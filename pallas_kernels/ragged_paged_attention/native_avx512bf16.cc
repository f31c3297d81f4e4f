// AVX-512 with dot products of bfloat16: weights are rounded to it as well. They take denormal numbers for 0.
#include "pallas_kernels/ragged_paged_attention/native_avx512.h"

namespace jaxserve::attention {
namespace {

// What is stored, as 32 bfloat16: 0 after the `left`th. Numbers of 8 bits are exact.
inline __m512i Part(const uint16_t* numbers, int64_t left) {
  return left >= 32 ? _mm512_loadu_si512(numbers) : _mm512_maskz_loadu_epi16((1u << left) - 1, numbers);
}

template <class Byte>
inline __m256i Bytes(const Byte* numbers, int64_t left) {
  return left >= 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers))
                    : _mm256_maskz_loadu_epi8((1u << left) - 1, numbers);
}

inline __m512i Part(const int8_t* numbers, int64_t left) {
  const __m256i bytes = Bytes(numbers, left);
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// E4M3's numbers below its smallest normal one are 0 to 7 times 2^-9.
constexpr uint16_t kSmall[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};

inline __m512i Part(const Float8* numbers, int64_t left) {
  const __m512i bits = _mm512_cvtepu8_epi16(Bytes(numbers, left));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x7f)), 4),
                                          _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x78));
  const __m512i size = _mm512_mask_permutexvar_epi16(normal, small, _mm512_and_si512(bits, _mm512_set1_epi16(7)),
                                                     _mm512_loadu_si512(kSmall));
  return _mm512_or_si512(size, _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x80)), 8));
}

template <class Stored>
struct Pairs {
  using Element = Stored;
  using Query = uint16_t;
  static constexpr int kPerWord = 2;
  static __m512 Load(const Element* key, int64_t left) { return _mm512_castsi512_ps(Part(key, left)); }
  static __m512 LoadQuery(const Query* query, int64_t left) { return _mm512_castsi512_ps(Part(query, left)); }
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
  static constexpr uint16_t kPairs[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  static __m512 MulAdd(__m512 sums, __m512 x, __m512 y) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
};

}  // namespace

constexpr Kernels kAvx512Bf16 = {AttendWith<Avx512, Pairs<uint16_t>>, nullptr, AttendWith<Avx512, Pairs<int8_t>>,
                                 AttendWith<Avx512, Pairs<Float8>>, nullptr, nullptr};

}  // namespace jaxserve::attention
