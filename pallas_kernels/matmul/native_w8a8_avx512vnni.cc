// AVX-512 with dot products of four bytes.
#include <immintrin.h>

#include "pallas_kernels/matmul/native_w8a8.h"

namespace jaxserve::matmul {
namespace {

struct Vnni {
  using Words = __m512i;
  static constexpr int kLanes = 16, kRows = 6, kVectors = 4;
  static Words Zero() { return _mm512_setzero_si512(); }
  static Words Load(const void* quads) { return _mm512_loadu_si512(quads); }
  static void Store(void* to, Words words) { _mm512_storeu_si512(to, words); }
  static Words Broadcast(const void* quad) {
    int32_t value;
    std::memcpy(&value, quad, sizeof value);
    return _mm512_set1_epi32(value);
  }
  static Words MulAdd(Words sums, Words x, Words w) { return _mm512_dpbusd_epi32(sums, x, w); }
};

}  // namespace

constexpr ComputeW8A8 kAvx512VnniW8A8 = W8A8Panels<Vnni>;

}  // namespace jaxserve::matmul
