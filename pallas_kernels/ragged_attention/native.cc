// Attention of whole rows over themselves as XLA calls it, in the tiles of attention over pages: a row is a page of its own.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "pallas_kernels/ragged_paged_attention/native_items.h"

namespace ffi = xla::ffi;

namespace jaxserve::attention {
namespace {

constexpr int32_t kOnlyPage = 0;

// The arguments: axes and meaning as in api.py.
struct Whole {
  const char *q, *k, *v;       // [T, H, D], [T, K, D]
  const int32_t* query_start;  // [R + 1]
  char* out;                   // [T, H, D]
  int64_t tokens, heads, dim, kv_heads, rows, window, size;  // size: bytes of a number
  float scale, soft_cap;
};

// `tokens` of a row from `token` of the batch on, in the heads of one KV head.
Item ItemOf(const Whole& call, int64_t row, int64_t token, int64_t tokens, int64_t kv_head) {
  const int64_t begin = call.query_start[row], length = call.query_start[row + 1] - begin;
  const int64_t group = call.heads / call.kv_heads, head = (token * call.heads + kv_head * group) * call.dim * call.size;
  Queries queries{};
  queries.q = call.q + head;
  queries.token_stride = call.heads * call.dim;
  queries.tokens = tokens;
  queries.group = group;
  queries.position = token - begin;
  queries.window = queries.ahead = call.window;
  queries.end = length;
  queries.dim = queries.value_dim = call.dim;
  queries.keys = call.k + (begin * call.kv_heads + kv_head) * call.dim * call.size;
  queries.key_stride = call.kv_heads * call.dim;
  queries.pages = &kOnlyPage;
  queries.page_size = length;
  queries.value_bytes = call.v - call.k;
  queries.next_bytes = kv_head + 1 < call.kv_heads ? call.dim * call.size : 0;
  queries.scale = call.scale;
  queries.soft_cap = call.soft_cap;
  return {queries, nullptr, call.out + head};
}

std::vector<Item> Items(const Whole& call) {
  const int64_t most = MostTokens(call.heads / call.kv_heads);
  std::vector<Item> items;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t end = call.query_start[row + 1];
    for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head)
      for (int64_t token = call.query_start[row]; token < end; token += most)
        items.push_back(ItemOf(call, row, token, std::min(most, end - token), kv_head));
  }
  return items;
}

// Says what would make a kernel read or write elsewhere than in its arrays.
const char* Wrong(const Whole& call) {
  if (call.query_start[0] != 0 || call.query_start[call.rows] > call.tokens) return "query_start must go from 0 to at most T";
  for (int64_t row = 0; row < call.rows; ++row)
    if (call.query_start[row + 1] < call.query_start[row]) return "query_start must not descend";
  return nullptr;
}

ffi::Error Handle(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::Buffer<ffi::S32> query_start,
                  ffi::Result<ffi::AnyBuffer> out, float scale, int64_t window, float soft_cap, std::string_view instruction_set) {
  const bool wide = q.element_type() == ffi::F32;
  if (!wide && q.element_type() != ffi::BF16) return ffi::Error::InvalidArgument("queries must be bfloat16 or float32");
  const Kernels kernels = Choose(instruction_set);
  const auto shape = q.dimensions();
  Whole call{};
  call.q = static_cast<const char*>(q.untyped_data());
  call.k = static_cast<const char*>(k.untyped_data());
  call.v = static_cast<const char*>(v.untyped_data());
  call.query_start = query_start.typed_data();
  call.out = static_cast<char*>(out->untyped_data());
  call.tokens = shape[0], call.heads = shape[1], call.dim = shape[2];
  call.kv_heads = k.dimensions()[1], call.rows = query_start.dimensions()[0] - 1;
  call.window = std::min(window, call.tokens), call.size = ffi::ByteWidth(q.element_type());
  call.scale = scale, call.soft_cap = soft_cap;
  if (const char* wrong = Wrong(call)) return ffi::Error::InvalidArgument(wrong);
  const int64_t token_bytes = call.heads * call.dim * call.size, used = call.query_start[call.rows];
  std::memset(call.out + used * token_bytes, 0, (call.tokens - used) * token_bytes);
  Compute(pool, {wide ? kernels.float32 : kernels.bfloat16, call.heads, call.size}, Items(call));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(RaggedAttention, jaxserve::attention::Handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Attr<std::string_view>("instruction_set"));
