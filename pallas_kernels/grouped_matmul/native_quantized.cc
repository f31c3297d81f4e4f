// The grouped matrix product as XLA calls it, by panels of int8, of E4M3 and of 4-bit codes: those of matmul's kernels, one group's after
// the other's.
#include <string_view>

#include "pallas_kernels/grouped_matmul/native_groups.h"
#include "pallas_kernels/matmul/native_four_bit_rows.h"
#include "pallas_kernels/matmul/native_kernels.h"

namespace ffi = xla::ffi;

namespace jaxserve::grouped_matmul {
namespace {

bool Has(size_t elements, int64_t wanted) { return static_cast<int64_t>(elements) == wanted; }

// x [rows, inputs], matrices [groups, inputs * outputs] in int8 or E4M3, scales [groups, factors, outputs], sizes [groups],
// y [rows, outputs].
ffi::Error MultiplyBytes(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer matrices, ffi::Buffer<ffi::F32> scales,
                         ffi::Buffer<ffi::S32> sizes, ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  const bool wide = x.element_type() == ffi::F32, int8 = matrices.element_type() == ffi::S8;
  if (!(wide || x.element_type() == ffi::BF16)) return ffi::Error::InvalidArgument("x must be bfloat16 or float32");
  if (!(int8 || matrices.element_type() == ffi::F8E4M3FN))
    return ffi::Error::InvalidArgument("matrices must be int8 or float8_e4m3fn");
  const int64_t inputs = x.dimensions()[1], outputs = y->dimensions()[1], groups = sizes.element_count(), size = wide ? 4 : 2;
  const int64_t factors = scales.dimensions()[1];
  if (!Has(matrices.element_count(), groups * inputs * outputs) || !Has(scales.element_count(), groups * factors * outputs) ||
      !matmul::FitsGroups(inputs, factors, int8))
    return ffi::Error::InvalidArgument("each group must have inputs * outputs numbers, and scales for each output");
  const auto* from = static_cast<const char*>(x.untyped_data());
  const auto* bytes = static_cast<const char*>(matrices.untyped_data());
  const auto product = [&](const Group& group) {
    return matmul::Product{from + group.row * inputs * size,
                           bytes + group.matrix * inputs * outputs,
                           y->typed_data() + group.row * outputs,
                           group.rows,
                           inputs,
                           outputs,
                           scales.typed_data() + group.matrix * factors * outputs,
                           inputs / factors};
  };
  const matmul::Kernels kernels = matmul::Choose(instruction_set);
  const matmul::Compute compute = int8 ? (wide ? kernels.int8_float32 : kernels.int8_bfloat16)
                                       : (wide ? kernels.float8_float32 : kernels.float8_bfloat16);
  return MultiplyGroups(pool, sizes, y, inputs, matmul::kBlock, product, compute);
}

// x [rows, inputs] with 128 added, steps [rows], matrices [groups, inputs * outputs], scales [groups, outputs], sizes [groups],
// y [rows, outputs].
ffi::Error MultiplyW8A8(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> x, ffi::Buffer<ffi::F32> steps, ffi::Buffer<ffi::S8> matrices,
                        ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::S32> sizes, ffi::ResultBuffer<ffi::F32> y,
                        std::string_view instruction_set) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = y->dimensions()[1];
  const int64_t groups = sizes.element_count();
  if (inputs > matmul::kMostInputsW8A8) return ffi::Error::InvalidArgument("there must be 65536 inputs at most");
  if (!Has(matrices.element_count(), groups * inputs * outputs) || !Has(scales.element_count(), groups * outputs) ||
      !Has(steps.element_count(), rows))
    return ffi::Error::InvalidArgument("there must be inputs * outputs numbers and as many scales as outputs, and a step a row");
  const auto product = [&](const Group& group) {
    return matmul::W8A8Product{x.typed_data() + group.row * inputs, matrices.typed_data() + group.matrix * inputs * outputs,
                               y->typed_data() + group.row * outputs, group.rows, inputs, outputs,
                               steps.typed_data() + group.row, scales.typed_data() + group.matrix * outputs};
  };
  return MultiplyGroups(pool, sizes, y, inputs, matmul::kBlock, product, matmul::ChooseW8A8(instruction_set));
}

// x [rows, inputs] in bfloat16 or float32, words [groups, inputs * outputs / 8], table [16], scales [groups, factors, outputs] and zeros, the same or of
// no element; sizes [groups], y [rows, outputs].
ffi::Error MultiplyFourBit(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::U32> words, ffi::Buffer<ffi::F32> table,
                           ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::F32> zeros, ffi::Buffer<ffi::S32> sizes,
                           ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  const int64_t inputs = x.dimensions()[1], outputs = y->dimensions()[1], groups = sizes.element_count();
  const int64_t factors = scales.dimensions()[1], together = factors > 0 ? inputs / factors : 0;
  const bool zero = zeros.element_count() > 0;
  if (together == 0 || together % 8 != 0 || together * factors != inputs)
    return ffi::Error::InvalidArgument("inputs that share a scale must be a multiple of 8");
  if (!Has(words.element_count(), groups * (inputs / 8) * outputs))
    return ffi::Error::InvalidArgument("a word must hold eight inputs of an output");
  if (table.element_count() != 16 || !Has(scales.element_count(), groups * factors * outputs) ||
      (zero && zeros.element_count() != scales.element_count()))
    return ffi::Error::InvalidArgument("there must be 16 numbers, and a scale and perhaps a zero for each output");
  if (!matmul::FourBitRows::Takes(x)) return ffi::Error::InvalidArgument("x must be bfloat16 or float32");
  const matmul::FourBitRows from(matmul::Choose(instruction_set), x, together, table.typed_data(), zero);
  const auto product = [&](const Group& group) {
    const int64_t first = group.matrix * factors * outputs;
    return matmul::FourBitProduct{from.At(group.row),
                                  words.typed_data() + group.matrix * (inputs / 8) * outputs,
                                  y->typed_data() + group.row * outputs,
                                  group.rows,
                                  inputs,
                                  outputs,
                                  together,
                                  table.typed_data(),
                                  scales.typed_data() + first,
                                  zero ? zeros.typed_data() + first : nullptr};
  };
  return MultiplyGroups(pool, sizes, y, inputs, matmul::kBlock, product, from.compute);
}

}  // namespace
}  // namespace jaxserve::grouped_matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupedMatmulBytes, jaxserve::grouped_matmul::MultiplyBytes,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupedMatmulW8A8, jaxserve::grouped_matmul::MultiplyW8A8,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupedMatmulFourBit, jaxserve::grouped_matmul::MultiplyFourBit,
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
