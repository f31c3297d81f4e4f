// Every kernel of native_kernels.h against a plain softmax in double, on a row whose pages lie in any order.
#include "pallas_kernels/native/self_test.h"

#include <algorithm>
#include <cmath>

#include "pallas_kernels/ragged_paged_attention/native_items.h"

namespace jaxserve::attention {
namespace {

using self_test::All;
using self_test::Numbers;

constexpr int64_t kTokens = 3, kGroup = 2, kHeads = 2, kDim = 40, kPageSize = 16, kPages = 6, kLength = kBlock + 6;
constexpr int32_t kTable[] = {4, 1, 5, 0, 2};
constexpr int64_t kHead = 1;                      // the KV head that is read
constexpr float kUnit = 0.125f, kScale = 0.25f;   // of stored numbers, which are whole ones in a cache of 8 bits; of scores

struct Case {
  int64_t window;
  float soft_cap;
};

template <class Element>
Element Stored(float value) {
  return self_test::As<Element>(value * kUnit);
}
template <>
int8_t Stored(float value) {
  return static_cast<int8_t>(value);
}
template <>
Float8 Stored(float value) {
  return static_cast<Float8>(self_test::ToFloat8(value));
}

// The cache [pages, 2, heads, page_size, dim] in whole numbers, and the queries [tokens, group, dim].
struct Arrays {
  Numbers numbers;
  std::vector<float> cache = numbers.Take(kPages * 2 * kHeads * kPageSize * kDim);
  std::vector<float> queries = numbers.Take(kTokens * kGroup * kDim, 0.5f);

  // The first element of a key (half 0) or a value (half 1).
  const float* At(int64_t key, int64_t half) const {
    return cache.data() + (((kTable[key / kPageSize] * 2 + half) * kHeads + kHead) * kPageSize + key % kPageSize) * kDim;
  }
};

// A row's result; `window` is the keys that a token attends to, up to its own position.
std::vector<double> Expected(const Arrays& arrays, const Case& options, int64_t row) {
  const int64_t end = kLength - kTokens + row / kGroup + 1, start = std::max<int64_t>(end - options.window, 0);
  std::vector<double> values(kDim);
  double total = 0;
  for (int64_t key = start; key < end; ++key) {
    double score = 0;
    for (int64_t i = 0; i < kDim; ++i) score += arrays.queries[row * kDim + i] * arrays.At(key, 0)[i] * kUnit * kScale;
    if (options.soft_cap > 0) score = std::tanh(score / options.soft_cap) * options.soft_cap;
    const double weight = std::exp(score);
    total += weight;
    for (int64_t i = 0; i < kDim; ++i) values[i] += weight * arrays.At(key, 1)[i] * kUnit;
  }
  for (double& value : values) value /= total;
  return values;
}

template <class Query, class Element>
bool IsRight(Attend attend, const Case& options, double tolerance) {
  const Arrays arrays;
  std::vector<Element> cache;
  for (const float value : arrays.cache) cache.push_back(Stored<Element>(value));
  const auto q = All<Query>(arrays.queries);
  const std::vector<float> scales(kPages * 2 * kHeads * kPageSize, kUnit);
  constexpr int64_t kHeadElements = kPageSize * kDim, kHeadScales = kPageSize * 4;
  Queries queries{};
  queries.q = q.data();
  queries.token_stride = kGroup * kDim;
  queries.tokens = kTokens, queries.group = kGroup;
  queries.position = kLength - kTokens;
  queries.window = options.window, queries.ahead = 1, queries.end = kLength;
  queries.dim = queries.value_dim = queries.key_stride = kDim;
  queries.keys = reinterpret_cast<const char*>(cache.data() + kHead * kHeadElements);
  queries.pages = kTable;
  queries.page_size = kPageSize;
  queries.page_bytes = 2 * kHeads * kHeadElements * static_cast<int64_t>(sizeof(Element));
  queries.value_bytes = kHeads * kHeadElements * static_cast<int64_t>(sizeof(Element));
  queries.scale = kScale, queries.soft_cap = options.soft_cap;
  if (sizeof(Element) == 1) {
    queries.scales = reinterpret_cast<const char*>(scales.data()) + kHead * kHeadScales;
    queries.scale_bytes = 4;
    queries.page_scales = 2 * kHeads * kHeadScales, queries.value_scales = kHeads * kHeadScales;
  }
  const int64_t rows = Rows(queries), stride = Padded(kDim);
  std::vector<float> scratch(ScratchFloats(queries)), largest(rows), total(rows), values(rows * stride);
  attend(queries, 0, kLength, {largest.data(), total.data(), values.data()}, scratch.data());
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<double> expected = Expected(arrays, options, row);
    for (int64_t i = 0; i < kDim; ++i)
      if (!(std::abs(values[row * stride + i] / total[row] - expected[i]) <= tolerance)) return false;
  }
  return true;
}

}  // namespace

const char* WrongKernel(std::string_view instruction_set) {
  constexpr double kExact = 1e-5, kRounded = 5e-3;  // weights in float32; in bfloat16
  const Kernels kernels = Choose(instruction_set);
  for (const Case& options : {Case{kLength, 0.0f}, Case{50, 3.0f}}) {
    if (!IsRight<float, float>(kernels.float32, options, kExact)) return "ragged_paged_attention, float32";
    if (!IsRight<uint16_t, uint16_t>(kernels.bfloat16, options, kRounded)) return "ragged_paged_attention, bfloat16";
    if (!IsRight<float, int8_t>(kernels.int8_wide, options, kExact)) return "ragged_paged_attention, int8 by float32";
    if (!IsRight<uint16_t, int8_t>(kernels.int8, options, kRounded)) return "ragged_paged_attention, int8 by bfloat16";
    if (!IsRight<float, Float8>(kernels.float8_wide, options, kExact)) return "ragged_paged_attention, E4M3 by float32";
    if (!IsRight<uint16_t, Float8>(kernels.float8, options, kRounded)) return "ragged_paged_attention, E4M3 by bfloat16";
  }
  return nullptr;
}

}  // namespace jaxserve::attention
