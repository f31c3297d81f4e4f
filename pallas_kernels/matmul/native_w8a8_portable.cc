// Every other CPU: arrays that compilers turn into what vectors there are.
#include "pallas_kernels/matmul/native_w8a8.h"

namespace jaxserve::matmul {
namespace {

struct Portable {
  struct Words {
    int32_t lane[8];
  };
  static constexpr int kLanes = 8, kRows = 4, kVectors = 2;
  static Words Zero() { return {}; }
  static Words Load(const void* quads) {
    Words words;
    std::memcpy(&words, quads, sizeof words);
    return words;
  }
  static void Store(void* to, const Words& words) { std::memcpy(to, &words, sizeof words); }
  static Words Broadcast(const void* quad) {
    int32_t value;
    std::memcpy(&value, quad, sizeof value);
    Words words;
    for (int32_t& lane : words.lane) lane = value;
    return words;
  }
  static Words MulAdd(Words sums, const Words& x, const Words& w) {
    for (int i = 0; i < kLanes; ++i)
      for (int byte = 0; byte < 4; ++byte)
        sums.lane[i] += static_cast<uint8_t>(x.lane[i] >> (8 * byte)) * static_cast<int8_t>(w.lane[i] >> (8 * byte));
    return sums;
  }
};

}  // namespace

constexpr ComputeW8A8 kPortableW8A8 = W8A8Panels<Portable>;

}  // namespace jaxserve::matmul
