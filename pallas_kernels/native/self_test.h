// Compares every kernel that the dispatch chooses with a plain loop, on small inputs. All elements are small whole numbers, which every
// dtype holds, times powers of two: sums of products are exact in any order.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "pallas_kernels/native/bfloat16.h"

namespace jaxserve {

namespace matmul {
// Each of these returns the name of the first kernel whose result is wrong, or null.
const char* WrongKernel(std::string_view instruction_set);
}  // namespace matmul
namespace attention {
const char* WrongKernel(std::string_view instruction_set);
}  // namespace attention
namespace linear {
const char* WrongKernel(std::string_view instruction_set);
}  // namespace linear

namespace self_test {
namespace {

// Whole numbers from -3 to 3, always the same ones.
class Numbers {
 public:
  float Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int>((state_ >> 24) % 7) - 3);
  }
  std::vector<float> Take(int64_t count, float factor = 1.0f) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = factor * Next();
    return numbers;
  }
  // Powers of two from 1/2 to 2.
  std::vector<float> TakeScales(int64_t count) {
    std::vector<float> scales(count);
    for (float& scale : scales) scale = Next() < -1 ? 0.5f : Next() > 1 ? 2.0f : 1.0f;
    return scales;
  }

 private:
  uint32_t state_ = 1;
};

// A whole number from -8 to 8 in E4M3.
inline uint8_t ToFloat8(float value) {
  int magnitude = std::abs(static_cast<int>(value)), exponent = 7;
  if (magnitude == 0) return 0;
  while (magnitude >> (exponent - 6)) ++exponent;
  const int fraction = (magnitude << (3 - (exponent - 7))) & 7;
  return static_cast<uint8_t>((value < 0 ? 128 : 0) | exponent << 3 | fraction);
}

template <class Element>
Element As(float value) {
  return static_cast<Element>(value);
}
template <>
inline uint16_t As<uint16_t>(float value) {
  return ToBfloat16(value);
}

template <class Element>
std::vector<Element> All(const std::vector<float>& values) {
  std::vector<Element> all;
  for (const float value : values) all.push_back(As<Element>(value));
  return all;
}

}  // namespace
}  // namespace self_test
}  // namespace jaxserve
