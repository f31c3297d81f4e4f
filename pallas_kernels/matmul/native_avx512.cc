// AVX-512 without instructions for bfloat16.
#include "pallas_kernels/matmul/native_avx512.h"
#include "pallas_kernels/matmul/native_four_bit.h"

namespace jaxserve::matmul {
namespace {

struct Float32 : Avx512 {
  using Element = float;
  static constexpr int kPerWord = 1;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), sums);
  }
  static void Widen(Words quads, Words (&words)[4]) {
    words[0] = Number<0>(quads), words[1] = Number<1>(quads), words[2] = Number<2>(quads), words[3] = Number<3>(quads);
  }
  using Table = Sums;
  static Table ReadTable(const float* numbers) { return Read(numbers); }
  template <int I>
  static Words LookUp(Table table, Words eights) {  // by the lowest 4 bits
    return _mm512_castps_si512(_mm512_permutexvar_ps(_mm512_srli_epi32(eights, 4 * I), table));
  }
  static Words AsWords(Sums sums) { return _mm512_castps_si512(sums); }
  static Words Minus(Words words, Sums sums) { return AsWords(_mm512_sub_ps(_mm512_castsi512_ps(words), sums)); }
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
  static Words Pair(Words even, Words odd) {  // a small whole number in float32 is one in bfloat16 and 16 zeros
    return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
  }
  static void Widen(Words quads, Words (&words)[2]) {
    words[0] = Pair(Number<0>(quads), Number<1>(quads)), words[1] = Pair(Number<2>(quads), Number<3>(quads));
  }
};

}  // namespace

constexpr Kernels kAvx512 = {Panels<Bfloat16>,
                             Panels<Float32>,
                             Rows<Bfloat16>,
                             Rows<Float32>,
                             Plain<Bfloat16>,
                             Plain<Float32>,
                             BytePanels<Bfloat16, int8_t>,
                             BytePanels<Float32, int8_t>,
                             GroupedBytePanels<OfFloat8<Bfloat16>, Float8>,
                             GroupedBytePanels<OfFloat8<Float32>, Float8>,
                             FourBitPanels<Float32>};

}  // namespace jaxserve::matmul
