// Which kernel for 4-bit codes, and rows as it takes them: bfloat16 where it has a kernel for these numbers and groups, else float32.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "pallas_kernels/matmul/native_kernels.h"
#include "xla/ffi/api/ffi.h"

namespace jaxserve::matmul {

class FourBitRows {
 public:
  // x [rows, inputs] in bfloat16 or float32; `group` inputs share a scale, and a zero if there are any.
  FourBitRows(const Kernels& kernels, const xla::ffi::AnyBuffer& x, int64_t group, const float* table, bool zeros)
      : compute(kernels.four_bit), x_(static_cast<const char*>(x.untyped_data())), stride_(4 * x.dimensions()[1]) {
    if (x.element_type() != xla::ffi::BF16) return;
    if (kernels.four_bit_bfloat16 != nullptr && group % 32 == 0 && !zeros && AreBfloat16(table)) {
      compute = kernels.four_bit_bfloat16, stride_ /= 2;
      return;
    }
    wide_.resize(x.element_count());
    const auto* narrow = static_cast<const uint16_t*>(x.untyped_data());
    for (size_t i = 0; i < wide_.size(); ++i) wide_[i] = static_cast<uint32_t>(narrow[i]) << 16;
    x_ = reinterpret_cast<const char*>(wide_.data());
  }

  static bool Takes(const xla::ffi::AnyBuffer& x) { return x.element_type() == xla::ffi::BF16 || x.element_type() == xla::ffi::F32; }

  const void* At(int64_t row) const { return x_ + row * stride_; }

  ComputeFourBit compute;

 private:
  static bool AreBfloat16(const float* table) {
    uint32_t bits[16];
    std::memcpy(bits, table, sizeof bits);
    for (const uint32_t number : bits)
      if (number & 0xffff) return false;
    return true;
  }

  const char* x_;
  int64_t stride_;
  std::vector<uint32_t> wide_;  // float32
};

}  // namespace jaxserve::matmul
