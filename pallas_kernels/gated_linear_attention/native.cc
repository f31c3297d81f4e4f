// Gated linear attention as XLA calls it: rows, heads and columns of their values are shared between threads.
#include <algorithm>
#include <string_view>
#include <vector>

#include "pallas_kernels/gated_linear_attention/native_kernels.h"
#include "pallas_kernels/native/instruction_sets.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::linear {

Kernels Choose(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("avx512", instruction_set)) return kAvx512;
  if (MayUse("avx2", instruction_set)) return kAvx2;
#endif
  return kPortable;
}

namespace {

constexpr int64_t kSmall = 1 << 16;  // products that are made sooner than another thread is awake

ffi::Error Run(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::Buffer<ffi::F32> decay,
               ffi::Buffer<ffi::F32> beta, ffi::Buffer<ffi::F32> before, ffi::Buffer<ffi::S32> query_start,
               ffi::Buffer<ffi::S32> source, ffi::Buffer<ffi::S32> destination, ffi::Buffer<ffi::S32> snapshot,
               ffi::Buffer<ffi::S32> snapshot_at, ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> states,
               int64_t layer, float scale, float norm_eps, bool delta, bool l2_norm, std::string_view instruction_set) {
  if (before.typed_data() != states->typed_data()) return ffi::Error::InvalidArgument("states must be written where they lie");
  const auto sizes = states->dimensions();  // [L, N, H, D, V]
  const int64_t rows = source.element_count(), tokens = q.dimensions()[0];
  Call call{};
  call.q = static_cast<const char*>(q.untyped_data());
  call.k = static_cast<const char*>(k.untyped_data());
  call.v = static_cast<const char*>(v.untyped_data());
  call.decay = decay.typed_data();
  call.beta = beta.typed_data();
  call.states = states->typed_data() + layer * sizes[1] * sizes[2] * sizes[3] * sizes[4];
  call.out = static_cast<char*>(out->untyped_data());
  call.query_start = query_start.typed_data();
  call.source = source.typed_data();
  call.destination = destination.typed_data();
  call.snapshot = snapshot.typed_data();
  call.snapshot_at = snapshot_at.typed_data();
  call.places = sizes[1];
  call.width = destination.dimensions()[1];
  call.key_heads = q.dimensions()[1];
  call.heads = sizes[2];
  call.key_dim = sizes[3];
  call.value_dim = sizes[4];
  call.size = q.element_type() == ffi::F32 ? 4 : 2;
  call.scale = scale;
  call.norm_eps = norm_eps;
  call.delta = delta;
  call.l2_norm = l2_norm;
  for (int64_t row = 0; row < rows; ++row) {
    if (call.query_start[row] < 0 || call.query_start[row + 1] < call.query_start[row] || call.query_start[row + 1] > tokens)
      return ffi::Error::InvalidArgument("query_start must rise from 0 to the number of tokens");
    if (call.source[row] < 0 || call.source[row] >= call.places) return ffi::Error::InvalidArgument("source must be a place");
  }
  const Kernels kernels = Choose(instruction_set);
  const int64_t parts = (call.value_dim + kernels.columns - 1) / kernels.columns, items = rows * call.heads * parts;
  const auto attend = [&](int64_t item) {
    static thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), call.key_dim * (kernels.columns + 2)));
    const int64_t part = item % parts, head = item / parts % call.heads;
    kernels.attend(call, item / parts / call.heads, head, part * kernels.columns, scratch.data());
  };
  const int64_t products = call.query_start[rows] * call.heads * call.key_dim * call.value_dim;
  RunWork(pool, products < kSmall, items, attend);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::linear

XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedLinearAttention, jaxserve::linear::Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("layer")
                                  .Attr<float>("scale")
                                  .Attr<float>("norm_eps")
                                  .Attr<bool>("delta")
                                  .Attr<bool>("l2_norm")
                                  .Attr<std::string_view>("instruction_set"));
