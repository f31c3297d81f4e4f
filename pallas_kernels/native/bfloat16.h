// Numbers in bfloat16, the upper half of a float32.
#pragma once

#include <cstdint>
#include <cstring>

namespace jaxserve {
namespace {  // every file its own: it is compiled for its CPUs

inline float FromBfloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Nearest, or even where there are two; NaN stays NaN.
inline uint16_t ToBfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace
}  // namespace jaxserve
