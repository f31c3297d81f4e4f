// Groups of rows, each times a matrix of its own, shared between threads: what the products of every dtype have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pallas_kernels/native/work.h"

namespace jaxserve::grouped_matmul {

constexpr int64_t kSmall = 1 << 18;  // multiplications that are done sooner than another thread is awake

// Rows that follow one another, and the number of their matrix.
struct Group {
  int64_t matrix, row, rows;
};

// Computes y [rows, outputs]: product(group) for each group that has rows is a piece of work for compute(product, block), which has
// `width` of the outputs. Rows of nobody become 0.
template <class ProductOf, class Compute>
xla::ffi::Error MultiplyGroups(xla::ffi::ThreadPool& pool, xla::ffi::Buffer<xla::ffi::S32> sizes,
                               xla::ffi::ResultBuffer<xla::ffi::F32> y, int64_t inputs, int64_t width, const ProductOf& product,
                               Compute compute) {
  const int64_t rows = y->dimensions()[0], outputs = y->dimensions()[1], groups = sizes.element_count();
  std::vector<decltype(product(Group{}))> products;
  int64_t row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = sizes.typed_data()[group];
    if (count < 0 || count > rows - row)
      return xla::ffi::Error::InvalidArgument("group_sizes must be rows, and no more than there are");
    if (count > 0) products.push_back(product(Group{group, row, count}));
    row += count;
  }
  std::fill_n(y->typed_data() + row * outputs, (rows - row) * outputs, 0.0f);
  const int64_t blocks = (outputs + width - 1) / width, items = products.size() * blocks;
  const auto run = [&products, compute, blocks](int64_t item) { compute(products[item / blocks], item % blocks); };
  RunWork(pool, row * inputs * outputs < kSmall, items, run);
  return xla::ffi::Error::Success();
}

}  // namespace jaxserve::grouped_matmul
