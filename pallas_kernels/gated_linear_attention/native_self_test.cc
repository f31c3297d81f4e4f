// The kernel of native_kernels.h against the recurrence in double.
#include "pallas_kernels/native/self_test.h"

#include <cmath>

#include "pallas_kernels/gated_linear_attention/native_kernels.h"

namespace jaxserve::linear {
namespace {

using self_test::All;
using self_test::Numbers;

constexpr int64_t kTokens = 3, kHeads = 2, kKeyDim = 20, kValueDim = 70, kPlaces = 2;
constexpr int64_t kStateSize = kHeads * kKeyDim * kValueDim;
constexpr int32_t kStarts[] = {0, kTokens}, kFrom = 0, kTo = 1, kNowhere = -1;
constexpr double kScale = 0.5, kEps = 1e-6;

struct Arrays {
  Numbers numbers;
  std::vector<float> q = numbers.Take(kTokens * kKeyDim), k = numbers.Take(kTokens * kKeyDim);  // one key head
  std::vector<float> v = numbers.Take(kTokens * kHeads * kValueDim);
  std::vector<float> decay = std::vector<float>(kTokens * kHeads, -0.25f), beta = std::vector<float>(kTokens * kHeads, 0.5f);
  std::vector<float> states = numbers.Take(kPlaces * kStateSize, 0.25f);
};

double OverNorm(const float* numbers) {
  double sum = kEps;
  for (int64_t d = 0; d < kKeyDim; ++d) sum += numbers[d] * numbers[d];
  return 1 / std::sqrt(sum);
}

// The state of place kFrom becomes that after all tokens, of the delta rule with normed queries and keys.
void Recur(const Arrays& arrays, std::vector<double>& state, std::vector<double>& out) {
  for (int64_t token = 0; token < kTokens; ++token)
    for (int64_t head = 0; head < kHeads; ++head)
      for (int64_t column = 0; column < kValueDim; ++column) {
        const float *q = arrays.q.data() + token * kKeyDim, *k = arrays.k.data() + token * kKeyDim;
        const int64_t at = token * kHeads + head;
        double* cells = state.data() + head * kKeyDim * kValueDim + column;
        double known = 0, read = 0;
        for (int64_t d = 0; d < kKeyDim; ++d) {
          cells[d * kValueDim] *= std::exp(static_cast<double>(arrays.decay[at]));
          known += cells[d * kValueDim] * k[d] * OverNorm(k);
        }
        const double added = arrays.beta[at] * (arrays.v[at * kValueDim + column] - known);
        for (int64_t d = 0; d < kKeyDim; ++d) {
          cells[d * kValueDim] += added * k[d] * OverNorm(k);
          read += cells[d * kValueDim] * q[d] * OverNorm(q) * kScale;
        }
        out[at * kValueDim + column] = read;
      }
}

float FromStored(float value) { return value; }
float FromStored(uint16_t value) { return FromBfloat16(value); }

template <class Element>
bool IsRight(const Kernels& kernels, double tolerance) {
  Arrays arrays;
  std::vector<double> state(arrays.states.begin(), arrays.states.begin() + kStateSize), expected(arrays.v.size());
  Recur(arrays, state, expected);
  const auto q = All<Element>(arrays.q), k = All<Element>(arrays.k), v = All<Element>(arrays.v);
  std::vector<Element> out(v.size());
  Call call{};
  call.q = reinterpret_cast<const char*>(q.data()), call.k = reinterpret_cast<const char*>(k.data());
  call.v = reinterpret_cast<const char*>(v.data()), call.out = reinterpret_cast<char*>(out.data());
  call.decay = arrays.decay.data(), call.beta = arrays.beta.data(), call.states = arrays.states.data();
  call.query_start = kStarts, call.source = &kFrom, call.destination = &kTo;
  call.snapshot = call.snapshot_at = &kNowhere;
  call.places = kPlaces, call.width = 1;
  call.key_heads = 1, call.heads = kHeads, call.key_dim = kKeyDim, call.value_dim = kValueDim;
  call.size = sizeof(Element);
  call.scale = kScale, call.norm_eps = kEps;
  call.delta = call.l2_norm = true;
  std::vector<float> scratch(kKeyDim * (kernels.columns + 2));
  for (int64_t head = 0; head < kHeads; ++head)
    for (int64_t first = 0; first < kValueDim; first += kernels.columns) kernels.attend(call, 0, head, first, scratch.data());
  bool right = true;
  for (size_t i = 0; i < out.size(); ++i) right &= std::abs(FromStored(out[i]) - expected[i]) <= tolerance;
  for (int64_t i = 0; i < kStateSize; ++i) right &= std::abs(arrays.states[kTo * kStateSize + i] - state[i]) <= 1e-5;
  return right;
}

}  // namespace

const char* WrongKernel(std::string_view instruction_set) {
  const Kernels kernels = Choose(instruction_set);
  if (!IsRight<float>(kernels, 1e-5)) return "gated_linear_attention, float32";
  return IsRight<uint16_t>(kernels, 2e-2) ? nullptr : "gated_linear_attention, bfloat16";
}

}  // namespace jaxserve::linear
