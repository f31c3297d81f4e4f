// AVX2 with fused multiply-add.
#include <immintrin.h>

#include "pallas_kernels/ragged_paged_attention/native_tiles.h"

namespace jaxserve::attention {
namespace {

struct Avx2 {
  using Floats = __m256;
  typedef float Vector __attribute__((vector_size(32)));
  typedef uint32_t Integers __attribute__((vector_size(32)));
  static constexpr int kLanes = 8, kRows = 4, kVectors = 2;
  static Floats Read(const float* from) { return _mm256_loadu_ps(from); }
  static Floats Read(const uint16_t* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Integers ReadBytes(const uint8_t* from) {
    return reinterpret_cast<Integers>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static void Write(float* to, Floats floats) { _mm256_storeu_ps(to, floats); }
  static Floats Broadcast(float value) { return _mm256_set1_ps(value); }
  static Floats MulAdd(Floats sum, Floats x, Floats y) { return _mm256_fmadd_ps(x, y, sum); }
  static float Largest(Floats floats) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(floats), _mm256_extractf128_ps(floats, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static float Total(Floats floats) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(floats), _mm256_extractf128_ps(floats, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }

  // 4 by 4 within halves of the vectors, then the halves.
  static void Transpose(Floats (&lines)[8]) {
    Floats halves[8];
    for (int i = 0; i < 8; i += 4) {
      const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(lines[i], lines[i + 1]));
      const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(lines[i], lines[i + 1]));
      const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(lines[i + 2], lines[i + 3]));
      const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(lines[i + 2], lines[i + 3]));
      halves[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
      halves[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
      halves[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
      halves[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; ++i) {
      lines[i] = _mm256_permute2f128_ps(halves[i], halves[i + 4], 0x20);
      lines[i + 4] = _mm256_permute2f128_ps(halves[i], halves[i + 4], 0x31);
    }
  }
};

}  // namespace

constexpr Kernels kAvx2 = InFloats<Avx2>();

}  // namespace jaxserve::attention
