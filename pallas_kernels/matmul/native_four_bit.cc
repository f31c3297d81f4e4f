// The product with 4-bit codes as XLA calls it, its blocks shared between threads.
#include <cstring>
#include <string_view>

#include "pallas_kernels/matmul/native_four_bit_rows.h"
#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::matmul {
namespace {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// x [rows, inputs] in bfloat16 or float32, of which the first used[] count; words, table, scales [groups, outputs] and zeros as native_kernels.h describes
// them, zeros [0, outputs] for none; y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::U32> words, ffi::Buffer<ffi::F32> table,
                    ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::F32> zeros, ffi::Buffer<ffi::S32> used,
                    ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = y->dimensions()[1];
  const int64_t groups = scales.dimensions()[0], size = groups > 0 ? inputs / groups : 0;
  const bool zero = zeros.element_count() > 0;
  if (!FourBitRows::Takes(x)) return ffi::Error::InvalidArgument("x must be bfloat16 or float32");
  if (size == 0 || size % 8 != 0 || size * groups != inputs)
    return ffi::Error::InvalidArgument("inputs must be groups of a multiple of 8");
  if (static_cast<int64_t>(words.element_count()) * 8 != inputs * outputs)
    return ffi::Error::InvalidArgument("a word must hold eight inputs of an output");
  if (table.element_count() != 16 || scales.dimensions()[1] != outputs || (zero && zeros.element_count() != scales.element_count()))
    return ffi::Error::InvalidArgument("there must be 16 numbers, and a scale and perhaps a zero for each output of a group");
  const FourBitRows from(Choose(instruction_set), x, size, table.typed_data(), zero);
  const FourBitProduct product{from.At(0), words.typed_data(), y->typed_data(), used.typed_data()[0], inputs,
                               outputs, size, table.typed_data(), scales.typed_data(), zero ? zeros.typed_data() : nullptr};
  if (product.rows < 0 || product.rows > rows) return ffi::Error::InvalidArgument("more rows are used than there are");
  std::memset(product.y + product.rows * outputs, 0, (rows - product.rows) * outputs * sizeof(float));
  if (product.rows == 0) return ffi::Error::Success();
  const ComputeFourBit compute = from.compute;
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
  const auto run = [&product, compute](int64_t block) { compute(product, block); };
  RunWork(pool, product.rows * inputs * outputs < kSmall, blocks, run);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(MatmulFourBit, jaxserve::matmul::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));
