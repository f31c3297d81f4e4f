// Vectors of bfloat16 for CPUs with dot products of them, which take denormal numbers for 0, and permutations of bytes.
#pragma once

#include "pallas_kernels/matmul/native_avx512.h"

namespace jaxserve::matmul {
namespace {

// The bytes of bfloat16 from 0 to 127, and which bytes of them and of their upper ones make words of the inputs 0, 1 and 2, 3.
struct Bytes {
  alignas(64) uint8_t lower[128]{}, upper[128]{}, first[64]{}, second[64]{};
  constexpr Bytes() {
    for (int number = 1, power = 0; number < 128; ++number) {
      if (number >> (power + 1)) ++power;
      const int bits = ((127 + power) << 7) | ((number << (7 - power)) & 127);
      lower[number] = bits & 255, upper[number] = bits >> 8;
    }
    for (int lane = 0; lane < 64; lane += 4)
      for (int byte = 0; byte < 4; ++byte) {
        first[lane + byte] = lane + byte / 2 + byte % 2 * 64;
        second[lane + byte] = first[lane + byte] + 2;
      }
  }
};
constexpr Bytes kBytes;

struct Bfloat16 : Avx512 {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
  static Words LookUp(const uint8_t* bytes, Words indices) {
    return _mm512_permutex2var_epi8(Load(bytes), indices, Load(bytes + 64));
  }
  static void Widen(Words quads, Words (&words)[2]) {  // half the time of converting numbers: looked up by magnitude
    const Words magnitudes = _mm512_abs_epi8(quads), lower = LookUp(kBytes.lower, magnitudes);
    const Words signs = _mm512_and_si512(quads, _mm512_set1_epi8(-128));
    Words upper = _mm512_or_si512(LookUp(kBytes.upper, magnitudes), signs);
    // The one magnitude that the table lacks has the index of 0, as its lower byte is; its upper one is 0xC3.
    upper = _mm512_mask_set1_epi8(upper, _mm512_cmpeq_epi8_mask(quads, _mm512_set1_epi8(-128)), static_cast<char>(0xC3));
    words[0] = _mm512_permutex2var_epi8(lower, Load(kBytes.first), upper);
    words[1] = _mm512_permutex2var_epi8(lower, Load(kBytes.second), upper);
  }
};

// The bytes of bfloat16 of the magnitudes of E4M3; the last is NaN.
struct Bytes8 {
  alignas(64) uint8_t lower[128]{}, upper[128]{};
  constexpr Bytes8() {
    for (int code = 1; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {
        for (exponent = 1; fraction < 8; --exponent) fraction *= 2;
        fraction -= 8;
      }
      const int bits = code == 127 ? 0x7fc0 : ((exponent + 120) << 7) | (fraction << 4);
      lower[code] = bits & 255, upper[code] = bits >> 8;
    }
  }
};
constexpr Bytes8 kBytes8;

struct Bfloat16Float8 : Bfloat16 {
  static void Widen(Words quads, Words (&words)[2]) {  // an index's eighth bit, the sign, is not looked at
    const Words lower = LookUp(kBytes8.lower, quads), signs = _mm512_and_si512(quads, _mm512_set1_epi8(-128));
    const Words upper = _mm512_or_si512(LookUp(kBytes8.upper, quads), signs);
    words[0] = _mm512_permutex2var_epi8(lower, Load(kBytes.first), upper);
    words[1] = _mm512_permutex2var_epi8(lower, Load(kBytes.second), upper);
  }
};

}  // namespace
}  // namespace jaxserve::matmul
