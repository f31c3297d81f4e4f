// AVX2: bytes are widened to 16 bits, for its products of bytes are cut off where their sums leave 16 bits.
#include <immintrin.h>

#include "pallas_kernels/matmul/native_w8a8.h"

namespace jaxserve::matmul {
namespace {

struct Avx2 {
  using Words = __m256i;
  static constexpr int kLanes = 8, kRows = 3, kVectors = 2;
  static Words Zero() { return _mm256_setzero_si256(); }
  static Words Load(const void* quads) { return _mm256_loadu_si256(static_cast<const Words*>(quads)); }
  static void Store(void* to, Words words) { _mm256_storeu_si256(static_cast<Words*>(to), words); }
  static Words Broadcast(const void* quad) {
    int32_t value;
    std::memcpy(&value, quad, sizeof value);
    return _mm256_set1_epi32(value);
  }
  // The numbers at even places and those at odd ones, each widened where they lie.
  static Words MulAdd(Words sums, Words x, Words w) {
    const Words even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
    const Words odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(w, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
  }
};

}  // namespace

constexpr ComputeW8A8 kAvx2W8A8 = W8A8Panels<Avx2>;

}  // namespace jaxserve::matmul
