#include "pallas_kernels/ragged_paged_attention/native_items.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "pallas_kernels/native/instruction_sets.h"

namespace ffi = xla::ffi;

namespace jaxserve::attention {
namespace {

constexpr int64_t kRange = 8 * kBlock;   // keys whose softmax is computed by itself: long rows can be cut there
constexpr int64_t kRows = 64;            // tokens times heads of an item, if there are as many
constexpr int64_t kItems = 4;            // for each thread, so that all end at about the same time
constexpr int64_t kSmall = 1 << 18;      // multiplications that are done sooner than another thread is awake

// The ranges of keys that an item's tokens see, as multiples of kRange.
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
  void Begin(const Item& item) {
    for (int64_t row = 0; row < rows_; ++row) {
      softmax_.largest[row] = item.sinks == nullptr ? kLowest : item.sinks[row % item.queries.group];
      softmax_.total[row] = item.sinks == nullptr ? 0.0f : 1.0f;
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

void Finish(const Shared& shared, const Item& item, const Softmax& softmax) {
  const Queries& queries = item.queries;
  const int64_t stride = Padded(queries.value_dim);
  for (int64_t row = 0; row < Rows(queries); ++row) {
    const int64_t head = row / queries.group * shared.heads + row % queries.group;
    const float* values = softmax.values + row * stride;
    const float share = 1.0f / softmax.total[row];  // a token sees itself
    char* out = item.out + head * queries.value_dim * shared.size;
    if (shared.size == 2) {
      auto* to = reinterpret_cast<uint16_t*>(out);
      for (int64_t i = 0; i < queries.value_dim; ++i) to[i] = ToBfloat16(values[i] * share);
    } else {
      auto* to = reinterpret_cast<float*>(out);
      for (int64_t i = 0; i < queries.value_dim; ++i) to[i] = values[i] * share;
    }
  }
}

void AttendToRange(const Shared& shared, const Queries& queries, int64_t range, float* scratch, const State& state) {
  const int64_t first = range * kRange, last = std::min(first + kRange, End(queries, queries.tokens - 1));
  shared.attend(queries, first, last, state.softmax(), scratch);
}

void ComputeItem(const Shared& shared, const Item& item) {
  const Queries& queries = item.queries;
  const std::unique_ptr<float[]> scratch(new float[ScratchFloats(queries)]);
  State all(Rows(queries), queries.value_dim), part(Rows(queries), queries.value_dim);
  all.Begin(item);
  for (int64_t range = FirstRange(queries); range < LastRange(queries); ++range) {
    AttendToRange(shared, queries, range, scratch.get(), part);
    all.Add(part);
  }
  Finish(shared, item, all.softmax());
}

// The same, number for number, with every range of keys a piece of work.
void ComputeInRanges(ffi::ThreadPool& pool, const Shared& shared, const std::vector<Item>& items) {
  struct Piece {
    const Item* item;
    int64_t range;
  };
  std::vector<Piece> pieces;
  std::vector<State> parts;
  for (const Item& item : items) {
    const Queries& queries = item.queries;
    for (int64_t range = FirstRange(queries); range < LastRange(queries); ++range) {
      pieces.push_back({&item, range});
      parts.emplace_back(Rows(queries), queries.value_dim);
    }
  }
  RunItems(pool, pieces.size(), [&](int64_t piece) {
    const Queries& queries = pieces[piece].item->queries;
    const std::unique_ptr<float[]> scratch(new float[ScratchFloats(queries)]);
    AttendToRange(shared, queries, pieces[piece].range, scratch.get(), parts[piece]);
  });
  size_t piece = 0;
  for (const Item& item : items) {
    State all(Rows(item.queries), item.queries.value_dim);
    all.Begin(item);
    for (; piece < pieces.size() && pieces[piece].item == &item; ++piece) all.Add(parts[piece]);
    Finish(shared, item, all.softmax());
  }
}

}  // namespace

int64_t MostTokens(int64_t group) { return std::max<int64_t>(kRows / group, 1); }

Kernels Choose(std::string_view instruction_set) {
#if defined(__x86_64__)
  if (MayUse("avx512bf16", instruction_set)) {
    Kernels kernels = kAvx512;
    kernels.bfloat16 = kAvx512Bf16.bfloat16, kernels.int8 = kAvx512Bf16.int8, kernels.float8 = kAvx512Bf16.float8;
    return kernels;
  }
  if (MayUse("avx512", instruction_set)) return kAvx512;
  if (MayUse("avx2", instruction_set)) return kAvx2;
#endif
  return kPortable;
}

void Compute(ffi::ThreadPool& pool, const Shared& shared, const std::vector<Item>& items) {
  int64_t ranges = 0, products = 0;
  for (const Item& item : items) {
    const Queries& queries = item.queries;
    ranges += LastRange(queries) - FirstRange(queries);
    products += (End(queries, queries.tokens - 1) - Start(queries, 0)) * Rows(queries) * (queries.dim + queries.value_dim);
  }
  const int64_t count = items.size();
  if (products < kSmall) {
    for (const Item& item : items) ComputeItem(shared, item);
  } else if (count < kItems * pool.num_threads() && ranges > count) {
    ComputeInRanges(pool, shared, items);
  } else {
    RunItems(pool, count, [&](int64_t item) { ComputeItem(shared, items[item]); });
  }
}

}  // namespace jaxserve::attention
