// Attention over pages as XLA calls it: rows cut into pieces of work, shared between threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "pallas_kernels/native/instruction_sets.h"
#include "pallas_kernels/native/work.h"
#include "pallas_kernels/ragged_paged_attention/native_kernels.h"

namespace ffi = xla::ffi;

namespace jaxserve::attention {
namespace {

constexpr int64_t kRange = 8 * kBlock;   // keys whose softmax is computed by itself: long rows can be cut there
constexpr int64_t kRows = 64;            // tokens times heads of an item, if there are as many
constexpr int64_t kItems = 4;            // for each thread, so that all end at about the same time
constexpr int64_t kSmall = 1 << 18;      // multiplications that are done sooner than another thread is awake

const Kernels& Choose(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("avx512bf16", instruction_set)) return kAvx512Bf16;
  if (MayUse("avx512", instruction_set)) return kAvx512;
  if (MayUse("avx2", instruction_set)) return kAvx2;
#endif
  return kPortable;
}

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
  Attend attend;

  int64_t Group() const { return heads / kv_heads; }
};

// Some tokens of a row, from `token` of the batch on, in the heads of one KV head.
struct Item {
  int64_t row, token, tokens, kv_head;
};

Queries QueriesOf(const Call& call, const Item& item) {
  const int64_t head_bytes = call.page_size * call.dim * call.kv_size, half_bytes = call.kv_heads * head_bytes;
  const int64_t page_bytes = call.halves * half_bytes;
  Queries queries{};
  queries.q = call.q + (item.token * call.heads + item.kv_head * call.Group()) * call.dim * call.size;
  queries.token_stride = call.heads * call.dim;
  queries.tokens = item.tokens;
  queries.group = call.Group();
  queries.position = call.kv_length[item.row] - call.query_start[item.row + 1] + item.token;
  queries.window = call.window;
  queries.dim = call.dim;
  queries.value_dim = call.value_dim;
  queries.keys = call.kv_pages + call.layer * call.num_pages * page_bytes + item.kv_head * head_bytes;
  queries.pages = call.page_table + item.row * call.pages_per_row;
  queries.page_size = call.page_size;
  queries.page_bytes = page_bytes;
  queries.value_bytes = call.halves == 2 ? half_bytes : 0;
  queries.next_bytes = item.kv_head + 1 < call.kv_heads ? head_bytes : 0;
  queries.scale = call.scale;
  queries.soft_cap = call.soft_cap;
  if (call.kv_scales != nullptr) {
    const int64_t head_scales = call.page_size * call.scale_bytes;
    queries.scale_bytes = call.scale_bytes;
    queries.page_scales = call.halves * call.kv_heads * head_scales;
    queries.value_scales = call.halves == 2 ? call.kv_heads * head_scales : 0;
    queries.scales = call.kv_scales + call.layer * call.num_pages * queries.page_scales + item.kv_head * head_scales;
  }
  return queries;
}

// The ranges of keys that a piece's tokens see, as multiples of kRange.
int64_t FirstRange(const Queries& queries) { return Start(queries, 0) / kRange; }
int64_t LastRange(const Queries& queries) { return (End(queries, queries.tokens - 1) + kRange - 1) / kRange; }

// A softmax with its memory.
class State {
 public:
  State(int64_t rows, int64_t value_dim)
      : rows_(rows), stride_(Padded(value_dim)), memory_(new float[rows * (2 + stride_)]),
        softmax_{memory_.get(), memory_.get() + rows, memory_.get() + 2 * rows} {}

  const Softmax& softmax() const { return softmax_; }

  // Before any key: the sink of each row's head, or nothing.
  void Begin(const Call& call, const Item& item) {
    const int64_t group = call.Group();
    const float* sinks = call.sinks == nullptr ? nullptr : call.sinks + item.kv_head * group;
    for (int64_t row = 0; row < rows_; ++row) {
      softmax_.largest[row] = sinks == nullptr ? kLowest : sinks[row % group];
      softmax_.total[row] = sinks == nullptr ? 0.0f : 1.0f;
    }
    std::fill_n(softmax_.values, rows_ * stride_, 0.0f);
  }

  void Add(const State& other) {
    for (int64_t row = 0; row < rows_; ++row) {
      const float largest = std::max(softmax_.largest[row], other.softmax_.largest[row]);
      const float mine = std::exp(softmax_.largest[row] - largest), theirs = std::exp(other.softmax_.largest[row] - largest);
      softmax_.largest[row] = largest;
      softmax_.total[row] = softmax_.total[row] * mine + other.softmax_.total[row] * theirs;
      float* values = softmax_.values + row * stride_;
      const float* added = other.softmax_.values + row * stride_;
      for (int64_t i = 0; i < stride_; ++i) values[i] = values[i] * mine + added[i] * theirs;
    }
  }

 private:
  int64_t rows_, stride_;
  std::unique_ptr<float[]> memory_;
  Softmax softmax_;
};

// Nearest, ties to even; NaN stays NaN.
uint16_t ToBfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

void Finish(const Call& call, const Item& item, const Softmax& softmax) {
  const int64_t group = call.Group(), stride = Padded(call.value_dim);
  for (int64_t row = 0; row < item.tokens * group; ++row) {
    const int64_t head = (item.token + row / group) * call.heads + item.kv_head * group + row % group;
    const float* values = softmax.values + row * stride;
    const float share = 1.0f / softmax.total[row];  // a token sees itself
    char* out = call.out + head * call.value_dim * call.size;
    if (call.size == 2) {
      auto* to = reinterpret_cast<uint16_t*>(out);
      for (int64_t i = 0; i < call.value_dim; ++i) to[i] = ToBfloat16(values[i] * share);
    } else {
      auto* to = reinterpret_cast<float*>(out);
      for (int64_t i = 0; i < call.value_dim; ++i) to[i] = values[i] * share;
    }
  }
}

void AttendToRange(const Call& call, const Queries& queries, int64_t range, float* scratch, const State& state) {
  const int64_t first = range * kRange, last = std::min(first + kRange, End(queries, queries.tokens - 1));
  call.attend(queries, first, last, state.softmax(), scratch);
}

void Compute(const Call& call, const Item& item) {
  const Queries queries = QueriesOf(call, item);
  const std::unique_ptr<float[]> scratch(new float[ScratchFloats(queries)]);
  State all(Rows(queries), call.value_dim), part(Rows(queries), call.value_dim);
  all.Begin(call, item);
  for (int64_t range = FirstRange(queries); range < LastRange(queries); ++range) {
    AttendToRange(call, queries, range, scratch.get(), part);
    all.Add(part);
  }
  Finish(call, item, all.softmax());
}

// The same, number for number, with every range of keys a piece of work.
void ComputeInRanges(ffi::ThreadPool& pool, const Call& call, const std::vector<Item>& items) {
  struct Piece {
    const Item* item;
    int64_t range;
  };
  std::vector<Piece> pieces;
  std::vector<State> parts;
  for (const Item& item : items) {
    const Queries queries = QueriesOf(call, item);
    for (int64_t range = FirstRange(queries); range < LastRange(queries); ++range) {
      pieces.push_back({&item, range});
      parts.emplace_back(Rows(queries), call.value_dim);
    }
  }
  RunItems(pool, pieces.size(), [&](int64_t piece) {
    const Queries queries = QueriesOf(call, *pieces[piece].item);
    const std::unique_ptr<float[]> scratch(new float[ScratchFloats(queries)]);
    AttendToRange(call, queries, pieces[piece].range, scratch.get(), parts[piece]);
  });
  size_t piece = 0;
  for (const Item& item : items) {
    State all(Rows(QueriesOf(call, item)), call.value_dim);
    all.Begin(call, item);
    for (; piece < pieces.size() && pieces[piece].item == &item; ++piece) all.Add(parts[piece]);
    Finish(call, item, all.softmax());
  }
}

void ComputeAll(ffi::ThreadPool& pool, const Call& call) {
  const int64_t most = std::max<int64_t>(kRows / call.Group(), 1);  // tokens of an item
  std::vector<Item> items;
  int64_t ranges = 0, products = 0;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t end = call.query_start[row + 1];
    for (int64_t token = call.query_start[row]; token < end; token += most) {
      const int64_t tokens = std::min(most, end - token);
      for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
        items.push_back({row, token, tokens, kv_head});
        const Queries queries = QueriesOf(call, items.back());
        ranges += LastRange(queries) - FirstRange(queries);
        products += (End(queries, tokens - 1) - Start(queries, 0)) * Rows(queries) * (call.dim + call.value_dim);
      }
    }
  }
  const int64_t count = items.size();
  if (products < kSmall) {
    for (const Item& item : items) Compute(call, item);
  } else if (count < kItems * pool.num_threads() && ranges > count) {
    ComputeInRanges(pool, call, items);
  } else {
    RunItems(pool, count, [&](int64_t item) { Compute(call, items[item]); });
  }
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
  call.attend = attend;
  if (const char* wrong = Wrong(call)) return ffi::Error::InvalidArgument(wrong);
  const int64_t token_bytes = call.heads * call.value_dim * call.size, used = call.query_start[call.rows];
  std::memset(call.out + used * token_bytes, 0, (call.tokens - used) * token_bytes);
  ComputeAll(pool, call);
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
