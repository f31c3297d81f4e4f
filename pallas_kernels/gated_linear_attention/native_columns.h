// The recurrence for some columns of a head's values, whose state lies in a core's nearest cache: columns do not depend on each other.
// Tokens come one after the other, so a token's result does not depend on what else is in the batch, nor on how a row is cut.
#pragma once

#include <cstring>

#include "pallas_kernels/gated_linear_attention/native_kernels.h"
#include "pallas_kernels/native/bfloat16.h"

namespace jaxserve::linear {
namespace {  // every file its own: it is compiled for its CPUs

constexpr int kVectors = 4;  // of a row of the state here

inline void Widen(const char* from, int64_t count, int64_t size, float* to) {
  if (size == sizeof(float)) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = FromBfloat16(halves[i]);
}

inline void Narrow(const float* from, int64_t count, int64_t size, char* to) {
  if (size == sizeof(float)) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) halves[i] = ToBfloat16(from[i]);
}

inline float Dot(const float* a, const float* b, int64_t count) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (; i < count; ++i) lanes[i % 16] += a[i] * b[i];
  float total = 0;
  for (float lane : lanes) total += lane;
  return total;
}

// A vector of LANES numbers is `Vector`.
template <class Vector, int LANES>
class Columns {
 public:
  static constexpr int64_t kColumns = kVectors * LANES;

  static void Attend(const Call& call, int64_t row, int64_t head, int64_t first, float* scratch) {
    Columns columns(call, head, first, scratch);
    columns.Run(row);
  }

 private:
  Columns(const Call& call, int64_t head, int64_t first, float* scratch)
      : call_(call), head_(head), first_(first), count_(kColumns < call.value_dim - first ? kColumns : call.value_dim - first),
        state_(scratch), q_(scratch + call.key_dim * kColumns), k_(q_ + call.key_dim) {}

  void Run(int64_t row) {
    const int64_t begin = call_.query_start[row], tokens = call_.query_start[row + 1] - begin;
    if (tokens == 0) return;
    std::memset(state_, 0, call_.key_dim * kColumns * sizeof(float));
    const float* from = Place(call_.source[row]);
    for (int64_t d = 0; d < call_.key_dim; ++d) std::memcpy(state_ + d * kColumns, from + d * call_.value_dim, count_ * 4);
    const int64_t drafts = tokens - call_.width;  // destination w is of the state after so many tokens, w and one
    for (int64_t token = 0; token < tokens; ++token) {
      Step(begin + token);
      if (call_.snapshot_at[row] == token + 1) Leave(call_.snapshot[row]);
      if (token >= drafts) Leave(call_.destination[row * call_.width + token - drafts]);
    }
  }

  float* Place(int64_t place) const {
    return call_.states + (place * call_.heads + head_) * call_.key_dim * call_.value_dim + first_;
  }

  void Leave(int64_t place) const {
    if (place < 0 || place >= call_.places) return;
    float* to = Place(place);
    for (int64_t d = 0; d < call_.key_dim; ++d) std::memcpy(to + d * call_.value_dim, state_ + d * kColumns, count_ * 4);
  }

  void Step(int64_t token) {
    const int64_t dim = call_.key_dim, key = (token * call_.key_heads + head_ / (call_.heads / call_.key_heads)) * dim;
    Widen(call_.q + key * call_.size, dim, call_.size, q_);
    Widen(call_.k + key * call_.size, dim, call_.size, k_);
    float read = call_.scale, written = 1.0f;
    if (call_.l2_norm) {
      read /= __builtin_sqrtf(Dot(q_, q_, dim) + call_.norm_eps);
      written /= __builtin_sqrtf(Dot(k_, k_, dim) + call_.norm_eps);
    }
    for (int64_t d = 0; d < dim; ++d) q_[d] *= read, k_[d] *= written;

    Vector known[kVectors] = {}, asked[kVectors] = {}, row;
    for (int64_t d = 0; d < dim; ++d)
      for (int i = 0; i < kVectors; ++i) {
        std::memcpy(&row, state_ + d * kColumns + i * LANES, sizeof row);
        known[i] += row * k_[d];
        asked[i] += row * q_[d];
      }

    const float fade = __builtin_expf(call_.decay[token * call_.heads + head_]), beta = call_.beta[token * call_.heads + head_];
    const float alike = Dot(q_, k_, dim);
    float values[kColumns] = {}, out[kColumns];
    const int64_t place = (token * call_.heads + head_) * call_.value_dim + first_;
    Widen(call_.v + place * call_.size, count_, call_.size, values);
    Vector added[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      std::memcpy(&added[i], values + i * LANES, sizeof row);
      if (call_.delta) added[i] -= known[i] * fade;
      added[i] *= beta;
      row = asked[i] * fade + added[i] * alike;
      std::memcpy(out + i * LANES, &row, sizeof row);
    }
    Narrow(out, count_, call_.size, call_.out + place * call_.size);

    for (int64_t d = 0; d < dim; ++d)
      for (int i = 0; i < kVectors; ++i) {
        std::memcpy(&row, state_ + d * kColumns + i * LANES, sizeof row);
        row = row * fade + added[i] * k_[d];
        std::memcpy(state_ + d * kColumns + i * LANES, &row, sizeof row);
      }
  }

  const Call& call_;
  const int64_t head_, first_, count_;
  float *state_, *q_, *k_;  // [D, columns], with zeros where there are fewer; [D] of the token
};

}  // namespace
}  // namespace jaxserve::linear
