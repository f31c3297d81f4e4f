// The matrix product as XLA calls it: which kernel, and its blocks shared between threads.
#include <cstring>
#include <string_view>

#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/instruction_sets.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::matmul {

#if defined(__x86_64__)
namespace {

template <class Kernel>
void Fill(Kernel& kernel, Kernel other) {
  if (kernel == nullptr) kernel = other;
}

// `kernels`, with those of `others` in place of its null entries.
Kernels Completed(Kernels kernels, const Kernels& others) {
  Fill(kernels.panels_bfloat16, others.panels_bfloat16), Fill(kernels.panels_float32, others.panels_float32);
  Fill(kernels.rows_bfloat16, others.rows_bfloat16), Fill(kernels.rows_float32, others.rows_float32);
  Fill(kernels.plain_bfloat16, others.plain_bfloat16), Fill(kernels.plain_float32, others.plain_float32);
  Fill(kernels.int8_bfloat16, others.int8_bfloat16), Fill(kernels.int8_float32, others.int8_float32);
  Fill(kernels.float8_bfloat16, others.float8_bfloat16), Fill(kernels.float8_float32, others.float8_float32);
  Fill(kernels.four_bit, others.four_bit), Fill(kernels.four_bit_bfloat16, others.four_bit_bfloat16);
  return kernels;
}

// For CPUs whose dot products take longer than two products of float32: those with E4M3 stay, whose numbers become bfloat16 sooner.
// Measured on a Xeon: with 4 rows and more a dot product takes 1.2 to 1.4 times as long as the two products that it is.
Kernels WithSlowDotProducts() {
  Kernels kernels = kAvx512;
  kernels.float8_bfloat16 = kAvx512Bf16.float8_bfloat16;
  return kernels;
}

}  // namespace
#endif

Kernels Choose(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("amx", instruction_set)) return Completed(kAmx, kAvx512);
  if (MayUse("avx512bf16", instruction_set))
    return instruction_set == "best" && __builtin_cpu_is("intel") ? WithSlowDotProducts() : Completed(kAvx512Bf16, kAvx512);
  if (MayUse("avx512", instruction_set)) return kAvx512;
  if (MayUse("avx2", instruction_set)) return kAvx2;
#endif
  return kPortable;
}

namespace {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// Zeros in the rows of a block's outputs that are not computed.
void Clear(const Product& product, int64_t block, int64_t rows) {
  const int64_t left = product.outputs - block * kBlock, width = left < kBlock ? left : kBlock;
  for (int64_t row = product.rows; row < rows; ++row)
    std::memset(product.y + row * product.outputs + block * kBlock, 0, width * sizeof(float));
}

// x [rows, inputs], of which the first used[] count; matrix of inputs * outputs elements in the form that native_kernels.h
// describes; scales [groups, outputs] of one in int8 (one group) or E4M3, [0, outputs] of others; y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer matrix, ffi::Buffer<ffi::F32> scales,
                    ffi::Buffer<ffi::S32> used, ffi::ResultBuffer<ffi::F32> y, bool panels, std::string_view instruction_set) {
  const int64_t rows = x.dimensions()[0];
  const int64_t inputs = x.dimensions()[1], outputs = y->dimensions()[1], groups = scales.dimensions()[0];
  const bool wide = x.element_type() == ffi::F32, int8 = matrix.element_type() == ffi::S8;
  const bool float8 = matrix.element_type() == ffi::F8E4M3FN;
  if (!(wide || x.element_type() == ffi::BF16)) return ffi::Error::InvalidArgument("x must be bfloat16 or float32");
  if (int8 || float8 ? !panels : x.element_type() != matrix.element_type())
    return ffi::Error::InvalidArgument("matrix must be of the dtype of x, or panels of int8 or float8_e4m3fn");
  if ((int8 || float8 ? !FitsGroups(inputs, groups, int8) : groups != 0) || scales.dimensions()[1] != outputs)
    return ffi::Error::InvalidArgument("an int8 matrix must have a scale for each output, one of float8 for each group, others none");
  if (static_cast<int64_t>(matrix.element_count()) != inputs * outputs)
    return ffi::Error::InvalidArgument("matrix must have inputs * outputs elements");
  const Product product{x.untyped_data(), matrix.untyped_data(), y->typed_data(),     used.typed_data()[0],
                        inputs,           outputs,               scales.typed_data(), groups > 0 ? inputs / groups : inputs};
  if (product.rows < 0 || product.rows > rows) return ffi::Error::InvalidArgument("more rows are used than there are");
  const Kernels kernels = Choose(instruction_set);
  const Compute compute = int8     ? (wide ? kernels.int8_float32 : kernels.int8_bfloat16)
                          : float8 ? (wide ? kernels.float8_float32 : kernels.float8_bfloat16)
                          : panels ? (wide ? kernels.panels_float32 : kernels.panels_bfloat16)
                                   : (wide ? kernels.rows_float32 : kernels.rows_bfloat16);
  const int64_t blocks = (product.outputs + kBlock - 1) / kBlock;
  const auto run = [&product, compute, rows](int64_t block) {
    compute(product, block);
    Clear(product, block, rows);
  };
  RunWork(pool, product.rows * product.inputs * product.outputs < kSmall, blocks, run);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(Matmul, jaxserve::matmul::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("panels")
                                  .Attr<std::string_view>("instruction_set"));
