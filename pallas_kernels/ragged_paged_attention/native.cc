// Attention over pages as XLA calls it: rows cut into pieces of work, shared between threads.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "pallas_kernels/ragged_paged_attention/native_items.h"

namespace ffi = xla::ffi;

namespace jaxserve::attention {
namespace {

// The arguments: axes and meaning as in api.py.
struct Call {
  const char* q;            // [T, H, D]
  const char* kv_pages;     // [L, P, C, K, S, D]
  const int32_t* page_table;   // [R, M]
  const int32_t* query_start;  // [R + 1]
  const int32_t* kv_length;    // [R]
  const float* sinks;          // [H], or null
  char* out;                   // [T, H, value_dim]
  int64_t tokens, heads, dim, num_pages, halves, kv_heads, page_size, rows, pages_per_row, value_dim, layer, window;
  int64_t size, kv_size;       // bytes of a number of queries and result, and of the cache
  const char* kv_scales;       // [L, P, C, K, S], or null
  int64_t scale_bytes;
  float scale, soft_cap;

  int64_t Group() const { return heads / kv_heads; }
};

// Some tokens of a row, from `token` of the batch on, in the heads of one KV head.
Item ItemOf(const Call& call, int64_t row, int64_t token, int64_t tokens, int64_t kv_head) {
  const int64_t head_bytes = call.page_size * call.dim * call.kv_size, half_bytes = call.kv_heads * head_bytes;
  const int64_t page_bytes = call.halves * half_bytes;
  Queries queries{};
  queries.q = call.q + (token * call.heads + kv_head * call.Group()) * call.dim * call.size;
  queries.token_stride = call.heads * call.dim;
  queries.tokens = tokens;
  queries.group = call.Group();
  queries.ahead = 1;
  queries.end = std::numeric_limits<int64_t>::max();
  queries.position = call.kv_length[row] - call.query_start[row + 1] + token;
  queries.window = call.window;
  queries.dim = call.dim;
  queries.value_dim = call.value_dim;
  queries.keys = call.kv_pages + call.layer * call.num_pages * page_bytes + kv_head * head_bytes;
  queries.pages = call.page_table + row * call.pages_per_row;
  queries.key_stride = call.dim;
  queries.page_size = call.page_size;
  queries.page_bytes = page_bytes;
  queries.value_bytes = call.halves == 2 ? half_bytes : 0;
  queries.next_bytes = kv_head + 1 < call.kv_heads ? head_bytes : 0;
  queries.scale = call.scale;
  queries.soft_cap = call.soft_cap;
  if (call.kv_scales != nullptr) {
    const int64_t head_scales = call.page_size * call.scale_bytes;
    queries.scale_bytes = call.scale_bytes;
    queries.page_scales = call.halves * call.kv_heads * head_scales;
    queries.value_scales = call.halves == 2 ? call.kv_heads * head_scales : 0;
    queries.scales = call.kv_scales + call.layer * call.num_pages * queries.page_scales + kv_head * head_scales;
  }
  const float* sinks = call.sinks == nullptr ? nullptr : call.sinks + kv_head * call.Group();
  return {queries, sinks, call.out + (token * call.heads + kv_head * call.Group()) * call.value_dim * call.size};
}

std::vector<Item> Items(const Call& call) {
  const int64_t most = MostTokens(call.Group());
  std::vector<Item> items;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t end = call.query_start[row + 1];
    for (int64_t token = call.query_start[row]; token < end; token += most)
      for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head)
        items.push_back(ItemOf(call, row, token, std::min(most, end - token), kv_head));
  }
  return items;
}


// Says what would make a kernel read or write elsewhere than in its arrays.
const char* Wrong(const Call& call) {
  bool outside = false;
  for (int64_t i = 0; i < call.rows * call.pages_per_row; ++i)
    outside |= static_cast<uint32_t>(call.page_table[i]) >= static_cast<uint64_t>(call.num_pages);
  if (outside) return "page_table must name pages of the cache";
  if (call.query_start[0] != 0 || call.query_start[call.rows] > call.tokens) return "query_start must go from 0 to at most T";
  for (int64_t row = 0; row < call.rows; ++row) {
    if (call.query_start[row + 1] < call.query_start[row]) return "query_start must not descend";
    if (call.kv_length[row] < call.query_start[row + 1] - call.query_start[row]) return "a row has more queries than keys";
    if (call.kv_length[row] > call.pages_per_row * call.page_size) return "a row has more keys than its pages hold";
  }
  return nullptr;
}

// What attends to a cache of `kv` from queries of `q`; null for what nothing does.
Attend KernelFor(const Kernels& kernels, ffi::DataType q, ffi::DataType kv) {
  const bool wide = q == ffi::F32;
  if (!wide && q != ffi::BF16) return nullptr;
  if (kv == q) return wide ? kernels.float32 : kernels.bfloat16;
  if (kv == ffi::S8) return wide ? kernels.int8_wide : kernels.int8;
  if (kv == ffi::U8) return wide ? kernels.float8_wide : kernels.float8;
  return nullptr;
}

ffi::Error Handle(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer kv_pages, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> query_start, ffi::Buffer<ffi::S32> kv_length, ffi::RemainingArgs others,
                  ffi::Result<ffi::AnyBuffer> out, int64_t layer, float scale, int64_t window, float soft_cap,
                  std::string_view instruction_set) {
  const Attend attend = KernelFor(Choose(instruction_set), q.element_type(), kv_pages.element_type());
  if (attend == nullptr)
    return ffi::Error::InvalidArgument("queries must be bfloat16 or float32, and the cache the same, int8, or uint8 for float8");
  const auto pages = kv_pages.dimensions(), shape = q.dimensions();
  Call call{};
  call.q = static_cast<const char*>(q.untyped_data());
  call.kv_pages = static_cast<const char*>(kv_pages.untyped_data());
  call.page_table = page_table.typed_data();
  call.query_start = query_start.typed_data();
  call.kv_length = kv_length.typed_data();
  // First the scales of a quantized cache, then sinks, if there are any.
  size_t next = 0;
  if (ffi::ByteWidth(kv_pages.element_type()) == 1) {
    const auto given = others.get<ffi::AnyBuffer>(next++);
    if (!given) return given.error();
    call.kv_scales = static_cast<const char*>(given->untyped_data());
    call.scale_bytes = ffi::ByteWidth(given->element_type());
  }
  if (next < others.size()) {
    const auto given = others.get<ffi::Buffer<ffi::F32>>(next);
    if (!given) return given.error();
    call.sinks = given->typed_data();
  }
  call.out = static_cast<char*>(out->untyped_data());
  call.tokens = shape[0], call.heads = shape[1], call.dim = shape[2];
  call.num_pages = pages[1], call.halves = pages[2], call.kv_heads = pages[3], call.page_size = pages[4];
  call.rows = page_table.dimensions()[0], call.pages_per_row = page_table.dimensions()[1];
  call.value_dim = out->dimensions()[2];
  call.layer = layer;
  call.window = window;
  call.size = ffi::ByteWidth(q.element_type()), call.kv_size = ffi::ByteWidth(kv_pages.element_type());
  call.scale = scale, call.soft_cap = soft_cap;
  if (const char* wrong = Wrong(call)) return ffi::Error::InvalidArgument(wrong);
  const int64_t token_bytes = call.heads * call.value_dim * call.size, used = call.query_start[call.rows];
  std::memset(call.out + used * token_bytes, 0, (call.tokens - used) * token_bytes);
  Compute(pool, {attend, call.heads, call.size}, Items(call));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(RaggedPagedAttention, jaxserve::attention::Handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("layer")
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Attr<std::string_view>("instruction_set"));
