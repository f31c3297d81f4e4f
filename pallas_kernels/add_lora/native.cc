// What adapters add to the products of rows that come sorted by adapter, as XLA calls it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/bfloat16.h"
#include "pallas_kernels/native/work.h"

namespace ffi = xla::ffi;

namespace jaxserve::add_lora {
namespace {

constexpr int64_t kRows = 64;           // of a piece: more than matrices are read for once
constexpr int64_t kSmallBytes = 1 << 16;  // that are read sooner than another thread is awake

// Rows of one adapter that follow one another.
struct Piece {
  int64_t slot, row, rows;
};

// One of the matrices B side by side: its numbers, and the columns of y that it is for.
struct Part {
  const char* b;
  int64_t first, outputs;
};

struct Arrays {
  const char *x, *a;
  float* y;
  std::vector<Part> parts;
  int64_t inputs, outputs, rank, size;  // size: bytes of a number
  matmul::Compute shrink, expand;

  int64_t Width() const { return parts.size() * rank; }
};

// Between A and B: sums [rows, parts * rank], and the numbers [parts, rows, rank] that B's are multiplied by.
class Shrunk {
 public:
  Shrunk(const Arrays& arrays, int64_t rows) : arrays_(arrays), sums_(rows * arrays.Width()), numbers_(sums_.size() * arrays.size) {}

  // `row` is where the piece's rows are in here.
  void Compute(const Piece& piece, int64_t row) {
    const int64_t width = arrays_.Width();
    float* sums = sums_.data() + row * width;
    const matmul::Product product{arrays_.x + piece.row * arrays_.inputs * arrays_.size,
                                  arrays_.a + piece.slot * width * arrays_.inputs * arrays_.size,
                                  sums, piece.rows, arrays_.inputs, width};
    for (int64_t block = 0; block * matmul::kBlock < width; ++block) arrays_.shrink(product, block);
    for (size_t part = 0; part < arrays_.parts.size(); ++part)
      for (int64_t r = 0; r < piece.rows; ++r) Narrow(sums + r * width + part * arrays_.rank, At(part, row, piece.rows, r));
  }

  // The piece's rows by the columns `block` of a part, added to y.
  void Expand(const Piece& piece, int64_t row, size_t part, int64_t block) {
    const Part& columns = arrays_.parts[part];
    matmul::Product product{At(part, row, piece.rows, 0),
                            columns.b + piece.slot * arrays_.rank * columns.outputs * arrays_.size,
                            arrays_.y + piece.row * arrays_.outputs + columns.first, piece.rows, arrays_.rank, columns.outputs};
    product.stride = arrays_.outputs, product.adds = true;
    arrays_.expand(product, block);
  }

 private:
  char* At(size_t part, int64_t row, int64_t rows, int64_t r) {
    return numbers_.data() + (row * arrays_.Width() + (part * rows + r) * arrays_.rank) * arrays_.size;
  }

  void Narrow(const float* from, char* to) {
    if (arrays_.size == sizeof(float)) std::memcpy(to, from, arrays_.rank * sizeof(float));
    else std::transform(from, from + arrays_.rank, reinterpret_cast<uint16_t*>(to), ToBfloat16);
  }

  const Arrays& arrays_;
  std::vector<float> sums_;
  std::vector<char> numbers_;
};

int64_t Blocks(const Part& part) { return (part.outputs + matmul::kWide - 1) / matmul::kWide; }

// A piece after the other.
void AddPiece(const Arrays& arrays, const Piece& piece) {
  Shrunk shrunk(arrays, piece.rows);
  shrunk.Compute(piece, 0);
  for (size_t part = 0; part < arrays.parts.size(); ++part)
    for (int64_t block = 0; block < Blocks(arrays.parts[part]); ++block) shrunk.Expand(piece, 0, part, block);
}

// Fewer pieces than threads would share: all are shrunk first, then the columns are shared.
void AddColumns(ffi::ThreadPool& pool, const Arrays& arrays, const std::vector<Piece>& pieces, int64_t rows) {
  struct Item {
    size_t piece, part;
    int64_t block;
  };
  std::vector<Item> items;
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    for (size_t part = 0; part < arrays.parts.size(); ++part)
      for (int64_t block = 0; block < Blocks(arrays.parts[part]); ++block) items.push_back({piece, part, block});
  Shrunk shrunk(arrays, rows);
  const auto shrink = [&](int64_t item) { shrunk.Compute(pieces[item], pieces[item].row); };
  RunItems(pool, pieces.size(), shrink);
  const auto expand = [&](int64_t item) {
    const Item& one = items[item];
    shrunk.Expand(pieces[one.piece], pieces[one.piece].row, one.part, one.block);
  };
  RunItems(pool, items.size(), expand);
}

// y [rows, outputs], which is what is added to; x [rows, inputs]; a [slots, parts * rank, inputs]; tokens [slots]; b of each part
// [slots, rank, its outputs].
ffi::Error Add(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> base, ffi::AnyBuffer x, ffi::AnyBuffer a, ffi::Buffer<ffi::S32> tokens,
               ffi::RemainingArgs b, ffi::ResultBuffer<ffi::F32> y, std::string_view instruction_set) {
  if (base.typed_data() != y->typed_data()) return ffi::Error::InvalidArgument("y must be added to where it lies");
  const bool wide = x.element_type() == ffi::F32;
  if (x.element_type() != a.element_type() || !(wide || x.element_type() == ffi::BF16) || b.size() == 0)
    return ffi::Error::InvalidArgument("x and all matrices must be bfloat16, or float32");
  const matmul::Kernels kernels = matmul::Choose(instruction_set);
  Arrays arrays{static_cast<const char*>(x.untyped_data()), static_cast<const char*>(a.untyped_data()), y->typed_data(), {},
                x.dimensions()[1], y->dimensions()[1], a.dimensions()[1] / static_cast<int64_t>(b.size()), wide ? 4 : 2,
                wide ? kernels.rows_float32 : kernels.rows_bfloat16, wide ? kernels.plain_float32 : kernels.plain_bfloat16};
  int64_t first = 0;
  for (size_t part = 0; part < b.size(); ++part) {
    const auto matrices = b.get<ffi::AnyBuffer>(part);
    if (!matrices || matrices->element_type() != x.element_type())
      return ffi::Error::InvalidArgument("x and all matrices must be bfloat16, or float32");
    const int64_t outputs = matrices->dimensions()[2];
    arrays.parts.push_back({static_cast<const char*>(matrices->untyped_data()), first, outputs});
    first += outputs;
  }
  const int64_t rows = y->dimensions()[0];
  std::vector<Piece> pieces;
  int64_t row = 0, used = 0;
  for (int64_t slot = 0; slot < static_cast<int64_t>(tokens.element_count()); ++slot) {
    const int64_t count = tokens.typed_data()[slot];
    if (count < 0 || count > rows - row) return ffi::Error::InvalidArgument("tokens must be rows, and no more than there are");
    for (int64_t done = 0; done < count; done += kRows) pieces.push_back({slot, row + done, std::min(kRows, count - done)});
    row += count, used += count > 0;
  }
  const int64_t bytes = used * (arrays.inputs * arrays.Width() + arrays.outputs * arrays.rank) * arrays.size;
  const auto add = [&](int64_t item) { AddPiece(arrays, pieces[item]); };
  if (bytes < kSmallBytes && row <= kRows) RunWork(pool, true, pieces.size(), add);
  else if (static_cast<int64_t>(pieces.size()) >= 2 * pool.num_threads()) RunItems(pool, pieces.size(), add);
  else AddColumns(pool, arrays, pieces, row);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxserve::add_lora

XLA_FFI_DEFINE_HANDLER_SYMBOL(AddLora, jaxserve::add_lora::Add,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("instruction_set"));
