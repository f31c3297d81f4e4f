// Every other CPU: vectors that compilers turn into what there is.
#include "pallas_kernels/ragged_paged_attention/native_tiles.h"

namespace jaxserve::attention {
namespace {

struct Portable {
  typedef float Floats __attribute__((vector_size(16)));
  using Vector = Floats;
  typedef uint32_t Integers __attribute__((vector_size(16)));
  static constexpr int kLanes = 4, kRows = 4, kVectors = 2;
  static Floats Read(const float* from) {
    Floats floats;
    std::memcpy(&floats, from, sizeof floats);
    return floats;
  }
  static Floats Read(const uint16_t* from) {
    const Integers bits = {from[0], from[1], from[2], from[3]};
    return reinterpret_cast<Floats>(bits << 16);
  }
  static Integers ReadBytes(const uint8_t* from) { return Integers{from[0], from[1], from[2], from[3]}; }
  static void Write(float* to, Floats floats) { std::memcpy(to, &floats, sizeof floats); }
  static Floats Broadcast(float value) { return Floats{value, value, value, value}; }
  static Floats MulAdd(Floats sum, Floats x, Floats y) { return sum + x * y; }
  static void Transpose(Floats (&lines)[4]) {
    const Floats a = lines[0], b = lines[1], c = lines[2], d = lines[3];
    for (int i = 0; i < 4; ++i) lines[i] = Floats{a[i], b[i], c[i], d[i]};
  }
  static float Largest(Floats floats) {
    float largest = floats[0];
    for (int i = 1; i < 4; ++i) largest = largest > floats[i] ? largest : floats[i];
    return largest;
  }
  static float Total(Floats floats) { return (floats[0] + floats[1]) + (floats[2] + floats[3]); }
};

}  // namespace

constexpr Kernels kPortable = InFloats<Portable>();

}  // namespace jaxserve::attention
