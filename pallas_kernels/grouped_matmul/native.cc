// The grouped matrix product as XLA calls it, by matrices that lie plain.
#include <string_view>

#include "pallas_kernels/grouped_matmul/native_groups.h"
#include "pallas_kernels/matmul/native_kernels.h"

namespace ffi = xla::ffi;

namespace jaxserve::grouped_matmul {
namespace {

// x [rows, inputs], weights [groups, inputs, outputs], sizes [groups], y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weights, ffi::Buffer<ffi::S32> sizes,
                    ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  const bool wide = x.element_type() == ffi::F32;
  if (x.element_type() != weights.element_type() || !(wide || x.element_type() == ffi::BF16))
    return ffi::Error::InvalidArgument("x and weights must both be bfloat16, or both float32");
  const int64_t inputs = x.dimensions()[1], outputs = y->dimensions()[1], size = wide ? 4 : 2;
  const auto* from = static_cast<const char*>(x.untyped_data());
  const auto* matrices = static_cast<const char*>(weights.untyped_data());
  const auto product = [&](const Group& group) {
    return matmul::Product{from + group.row * inputs * size, matrices + group.matrix * inputs * outputs * size,
                           y->typed_data() + group.row * outputs, group.rows, inputs, outputs};
  };
  const matmul::Kernels kernels = matmul::Choose(instruction_set);
  return MultiplyGroups(pool, sizes, y, inputs, matmul::kWide, product, wide ? kernels.plain_float32 : kernels.plain_bfloat16);
}

}  // namespace
}  // namespace jaxserve::grouped_matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupedMatmul, jaxserve::grouped_matmul::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));
