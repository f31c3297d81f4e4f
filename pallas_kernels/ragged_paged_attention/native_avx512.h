// Vectors of 16 lanes for native_tiles.h.
#pragma once

#include <immintrin.h>

#include "pallas_kernels/ragged_paged_attention/native_tiles.h"

namespace jaxserve::attention {
namespace {

struct Avx512 {
  using Floats = __m512;
  typedef float Vector __attribute__((vector_size(64)));
  typedef uint32_t Integers __attribute__((vector_size(64)));
  static constexpr int kLanes = 16, kRows = 6, kVectors = 4;
  static Floats Read(const float* from) { return _mm512_loadu_ps(from); }
  static Floats Read(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Integers ReadBytes(const uint8_t* from) {
    return reinterpret_cast<Integers>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void Write(float* to, Floats floats) { _mm512_storeu_ps(to, floats); }
  static Floats Broadcast(float value) { return _mm512_set1_ps(value); }
  static Floats MulAdd(Floats sum, Floats x, Floats y) { return _mm512_fmadd_ps(x, y, sum); }
  static float Largest(Floats floats) { return _mm512_reduce_max_ps(floats); }
  static float Total(Floats floats) { return _mm512_reduce_add_ps(floats); }

  // 4 by 4 within quarters of the vectors, then the quarters.
  static void Transpose(Floats (&lines)[16]) {
    Floats quarters[16];
    for (int i = 0; i < 16; i += 4) {
      const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(lines[i], lines[i + 1]));
      const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(lines[i], lines[i + 1]));
      const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(lines[i + 2], lines[i + 3]));
      const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(lines[i + 2], lines[i + 3]));
      quarters[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
      quarters[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      quarters[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
      quarters[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; ++i) {
      const Floats a = _mm512_shuffle_f32x4(quarters[i], quarters[i + 4], 0x88);
      const Floats b = _mm512_shuffle_f32x4(quarters[i], quarters[i + 4], 0xdd);
      const Floats c = _mm512_shuffle_f32x4(quarters[i + 8], quarters[i + 12], 0x88);
      const Floats d = _mm512_shuffle_f32x4(quarters[i + 8], quarters[i + 12], 0xdd);
      lines[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      lines[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      lines[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      lines[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

}  // namespace
}  // namespace jaxserve::attention
