// The matrix product as XLA calls it: which kernel, and its blocks shared between threads.
#include <string_view>

#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/instruction_sets.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::matmul {
namespace {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// The best kernels that this CPU can run and `instruction_set` allows: a name as in native/library.py, "portable" or "best".
const Kernels& Choose(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("avx512bf16", instruction_set)) return kAvx512Bf16;
  if (MayUse("avx512", instruction_set)) return kAvx512;
  if (MayUse("avx2", instruction_set)) return kAvx2;
#endif
  return kPortable;
}

// x [rows, inputs], matrix of inputs * outputs elements in the form that native_kernels.h describes, y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer matrix, ffi::ResultBuffer<ffi::F32> y, bool panels,
                    std::string_view instruction_set) {
  const Product product{x.untyped_data(), matrix.untyped_data(), y->typed_data(), x.dimensions()[0],
                        x.dimensions()[1], y->dimensions()[1]};
  const bool wide = x.element_type() == ffi::F32;
  if (x.element_type() != matrix.element_type() || !(wide || x.element_type() == ffi::BF16))
    return ffi::Error::InvalidArgument("x and matrix must both be bfloat16, or both float32");
  if (static_cast<int64_t>(matrix.element_count()) != product.inputs * product.outputs)
    return ffi::Error::InvalidArgument("matrix must have inputs * outputs elements");
  const Kernels& kernels = Choose(instruction_set);
  const Compute compute = panels ? (wide ? kernels.panels_float32 : kernels.panels_bfloat16)
                                 : (wide ? kernels.rows_float32 : kernels.rows_bfloat16);
  const int64_t blocks = (product.outputs + kBlock - 1) / kBlock;
  if (product.rows * product.inputs * product.outputs < kSmall) {
    for (int64_t block = 0; block < blocks; ++block) compute(product, block);
  } else {
    RunItems(pool, blocks, [&product, compute](int64_t block) { compute(product, block); });
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(Matmul, jaxserve::matmul::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("panels")
                                  .Attr<std::string_view>("instruction_set"));
