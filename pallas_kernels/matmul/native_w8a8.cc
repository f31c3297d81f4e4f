// The product of int8 rows with panels of int8 as XLA calls it, its blocks shared between threads.
#include <cstring>
#include <string_view>

#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/instruction_sets.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::matmul {

ComputeW8A8 ChooseW8A8(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("amx", instruction_set)) return kAmxW8A8;
  if (MayUse("avx512vnni", instruction_set)) return kAvx512VnniW8A8;
  if (MayUse("avx2", instruction_set)) return kAvx2W8A8;
#endif
  return kPortableW8A8;
}

namespace {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// x [rows, inputs] with 128 added, of which the first used[] count; steps [rows]; matrix, scales [outputs]; y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> x, ffi::Buffer<ffi::F32> steps, ffi::Buffer<ffi::S8> matrix,
                    ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::S32> used, ffi::ResultBuffer<ffi::F32> y,
                    std::string_view instruction_set) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = y->dimensions()[1];
  const W8A8Product product{x.typed_data(), matrix.typed_data(), y->typed_data(), used.typed_data()[0],
                            inputs, outputs, steps.typed_data(), scales.typed_data()};
  if (product.rows < 0 || product.rows > rows) return ffi::Error::InvalidArgument("more rows are used than there are");
  if (inputs > kMostInputsW8A8) return ffi::Error::InvalidArgument("there must be 65536 inputs at most");
  if (static_cast<int64_t>(matrix.element_count()) != inputs * outputs)
    return ffi::Error::InvalidArgument("matrix must have inputs * outputs elements");
  if (static_cast<int64_t>(steps.element_count()) != rows || static_cast<int64_t>(scales.element_count()) != outputs)
    return ffi::Error::InvalidArgument("there must be a step for each row and a scale for each output");
  std::memset(product.y + product.rows * outputs, 0, (rows - product.rows) * outputs * sizeof(float));
  if (product.rows == 0) return ffi::Error::Success();
  const ComputeW8A8 compute = ChooseW8A8(instruction_set);
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
  const auto run = [&product, compute](int64_t block) { compute(product, block); };
  RunWork(pool, product.rows * inputs * outputs < kSmall, blocks, run);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(MatmulW8A8, jaxserve::matmul::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));
