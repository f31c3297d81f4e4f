// Vectors of 16 lanes for native_tiles.h and native_int8.h, but for what a dtype adds.
#pragma once

#include <immintrin.h>

#include "pallas_kernels/matmul/native_int8.h"

namespace jaxserve::matmul {
namespace {

struct Avx512 {
  using Words = __m512i;
  using Sums = __m512;
  static constexpr int kLanes = 16, kRows = 6, kVectors = 4;
  static __mmask16 First(int64_t lanes) { return static_cast<__mmask16>((1u << lanes) - 1); }
  static Sums Zero() { return _mm512_setzero_ps(); }
  static Sums Read(const float* y) { return _mm512_loadu_ps(y); }
  static Sums ReadPart(const float* y, int64_t lanes) { return _mm512_maskz_loadu_ps(First(lanes), y); }
  static void Write(float* y, Sums sums) { _mm512_storeu_ps(y, sums); }
  static void WritePart(float* y, int64_t lanes, Sums sums) { _mm512_mask_storeu_ps(y, First(lanes), sums); }
  static Words Load(const void* words) { return _mm512_loadu_si512(words); }
  static Words LoadPart(const void* words, int64_t lanes) { return _mm512_maskz_loadu_epi32(First(lanes), words); }
  static void Store(void* to, Words words) { _mm512_storeu_si512(to, words); }
  static void StorePart(void* to, int64_t lanes, Words words) { _mm512_mask_storeu_epi32(to, First(lanes), words); }
  static Words Broadcast(const void* word) {
    int32_t value;
    std::memcpy(&value, word, sizeof value);
    return _mm512_set1_epi32(value);
  }
  static float Total(Sums sums) { return _mm512_reduce_add_ps(sums); }
  template <int BYTE>
  static Words Number(Words quads) {
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(quads, 24 - 8 * BYTE), 24)));
  }
  template <int BYTE>
  static Words Float8Number(Words quads) {  // see native_int8.h
    const Words bits = _mm512_slli_epi32(quads, 24 - 8 * BYTE);
    const Words magnitude = _mm512_and_si512(_mm512_srli_epi32(bits, 4), _mm512_set1_epi32(kMagnitude8));
    const Sums normal = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(kBias8)));
    const Sums one_more = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(kSmallBias8)));
    const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(kNormal8));
    const Sums number = _mm512_mask_sub_ps(normal, small, one_more, _mm512_set1_ps(kSmallest8));
    return _mm512_or_si512(_mm512_castps_si512(number), _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN)));
  }
};

}  // namespace
}  // namespace jaxserve::matmul
