// Pieces of work that attention is cut into, however its keys lie: shared between threads, and each token's parts put together.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "pallas_kernels/native/work.h"
#include "pallas_kernels/ragged_paged_attention/native_kernels.h"

namespace jaxserve::attention {

// Some tokens of a row in the heads of one KV head.
struct Item {
  Queries queries;
  const float* sinks;  // of the heads, or null
  char* out;           // of the first token and head
};

// What all items share.
struct Shared {
  Attend attend;
  int64_t heads, size;  // of a token; bytes of a number
};

// Tokens of an item at most, where so many heads share a KV head.
int64_t MostTokens(int64_t group);

// The kernels for a CPU: the best ones, or those of an instruction set that it has.
Kernels Choose(std::string_view instruction_set);

void Compute(xla::ffi::ThreadPool& pool, const Shared& shared, const std::vector<Item>& items);

}  // namespace jaxserve::attention
