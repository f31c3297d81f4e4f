// The grouped matrix product as XLA calls it: groups that have rows, and blocks of their outputs, shared between threads.
#include <algorithm>
#include <string_view>
#include <vector>

#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::grouped_matmul {
namespace {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// x [rows, inputs], weights [groups, inputs, outputs], sizes [groups], y [rows, outputs].
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weights, ffi::Buffer<ffi::S32> sizes,
                    ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  const bool wide = x.element_type() == ffi::F32;
  if (x.element_type() != weights.element_type() || !(wide || x.element_type() == ffi::BF16))
    return ffi::Error::InvalidArgument("x and weights must both be bfloat16, or both float32");
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = y->dimensions()[1], size = wide ? 4 : 2;
  const auto* from = static_cast<const char*>(x.untyped_data());
  const auto* matrices = static_cast<const char*>(weights.untyped_data());
  std::vector<matmul::Product> products;
  int64_t row = 0;
  for (size_t group = 0; group < sizes.element_count(); ++group) {
    const int64_t count = sizes.typed_data()[group];
    if (count < 0 || count > rows - row) return ffi::Error::InvalidArgument("group_sizes must be rows, and no more than there are");
    if (count > 0)
      products.push_back({from + row * inputs * size, matrices + group * inputs * outputs * size,
                          y->typed_data() + row * outputs, count, inputs, outputs});
    row += count;
  }
  std::fill_n(y->typed_data() + row * outputs, (rows - row) * outputs, 0.0f);
  const matmul::Kernels& kernels = matmul::Choose(instruction_set);
  const matmul::Compute compute = wide ? kernels.plain_float32 : kernels.plain_bfloat16;
  const int64_t blocks = (outputs + matmul::kWide - 1) / matmul::kWide, items = products.size() * blocks;
  const auto run = [&products, compute, blocks](int64_t item) { compute(products[item / blocks], item % blocks); };
  RunWork(pool, row * inputs * outputs < kSmall, items, run);
  return ffi::Error::Success();
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
