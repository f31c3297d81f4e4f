// AVX2 with fused multiply-add.
#include <immintrin.h>

#include "pallas_kernels/matmul/native_four_bit.h"
#include "pallas_kernels/matmul/native_int8.h"

namespace jaxserve::matmul {
namespace {

struct Avx2 {
  using Words = __m256i;
  using Sums = __m256;
  static constexpr int kLanes = 8, kRows = 4, kVectors = 2;
  static __m256i First(int64_t lanes) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(lanes)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Sums Zero() { return _mm256_setzero_ps(); }
  static Sums Read(const float* y) { return _mm256_loadu_ps(y); }
  static Sums ReadPart(const float* y, int64_t lanes) { return _mm256_maskload_ps(y, First(lanes)); }
  static void Write(float* y, Sums sums) { _mm256_storeu_ps(y, sums); }
  static void WritePart(float* y, int64_t lanes, Sums sums) { _mm256_maskstore_ps(y, First(lanes), sums); }
  static Words Load(const void* words) { return _mm256_loadu_si256(static_cast<const __m256i*>(words)); }
  static Words LoadPart(const void* words, int64_t lanes) {
    return _mm256_maskload_epi32(static_cast<const int*>(words), First(lanes));
  }
  static void Store(void* to, Words words) { _mm256_storeu_si256(static_cast<__m256i*>(to), words); }
  static void StorePart(void* to, int64_t lanes, Words words) {
    _mm256_maskstore_epi32(static_cast<int*>(to), First(lanes), words);
  }
  static Words Broadcast(const void* word) {
    int32_t value;
    std::memcpy(&value, word, sizeof value);
    return _mm256_set1_epi32(value);
  }
  template <int BYTE>
  static Words Number(Words quads) {
    return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(quads, 24 - 8 * BYTE), 24)));
  }
  template <int BYTE>
  static Words Float8Number(Words quads) {  // see native_int8.h
    const Words bits = _mm256_slli_epi32(quads, 24 - 8 * BYTE);
    const Words magnitude = _mm256_and_si256(_mm256_srli_epi32(bits, 4), _mm256_set1_epi32(kMagnitude8));
    const Sums normal = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(kBias8)));
    const Sums one_more = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(kSmallBias8)));
    const Sums small = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(kNormal8), magnitude));
    const Sums number = _mm256_blendv_ps(normal, _mm256_sub_ps(one_more, _mm256_set1_ps(kSmallest8)), small);
    return _mm256_or_si256(_mm256_castps_si256(number), _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN)));
  }
  static float Total(Sums sums) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
};

struct Float32 : Avx2 {
  using Element = float;
  static constexpr int kPerWord = 1;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(w), sums);
  }
  static void Widen(Words quads, Words (&words)[4]) {
    words[0] = Number<0>(quads), words[1] = Number<1>(quads), words[2] = Number<2>(quads), words[3] = Number<3>(quads);
  }
  struct Table {
    Sums lower, upper;
  };
  static Table ReadTable(const float* numbers) { return {Read(numbers), Read(numbers + 8)}; }
  template <int I>
  static Words LookUp(const Table& table, Words eights) {  // by the lowest 3 bits, twice, and the fourth chooses
    const Words code = _mm256_srli_epi32(eights, 4 * I);
    const Sums lower = _mm256_permutevar8x32_ps(table.lower, code), upper = _mm256_permutevar8x32_ps(table.upper, code);
    return AsWords(_mm256_blendv_ps(lower, upper, _mm256_castsi256_ps(_mm256_slli_epi32(code, 28))));
  }
  static Words AsWords(Sums sums) { return _mm256_castps_si256(sums); }
  static Words Minus(Words words, Sums sums) { return AsWords(_mm256_sub_ps(_mm256_castsi256_ps(words), sums)); }
};

struct Bfloat16 : Avx2 {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Sums Even(Words words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
  static Sums Odd(Words words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
  }
  static Sums MulAdd(Sums sums, Words x, Words w) {
    return _mm256_fmadd_ps(Odd(x), Odd(w), _mm256_fmadd_ps(Even(x), Even(w), sums));
  }
  static Words Pair(Words even, Words odd) {  // a small whole number in float32 is one in bfloat16 and 16 zeros
    return _mm256_or_si256(_mm256_srli_epi32(even, 16), odd);
  }
  static void Widen(Words quads, Words (&words)[2]) {
    words[0] = Pair(Number<0>(quads), Number<1>(quads)), words[1] = Pair(Number<2>(quads), Number<3>(quads));
  }
};

}  // namespace

constexpr Kernels kAvx2 = {Panels<Bfloat16>,
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
