// Attention of native_kernels.h in terms of a vector type V, which a file for an instruction set defines, and of Words.
//
// V has
//   Floats, Integers            vectors of kLanes float32, and of as many uint32, with the compilers' operators
//   kRows, kVectors             accumulators that fit the registers: rows by vectors
//   Read(from)                  of float32 or of bfloat16
//   ReadBytes(from)             Integers of bytes
//   Write(to, floats) Broadcast(value) MulAdd(sum, x, y)
//   Transpose(vectors)          kLanes of them, in place
//   Largest(floats) Total(floats)
// Words says how numbers go into words of 32 bits: Plain below, or two bfloat16 a word. It has
//   Element, kPerWord           what is stored, and how many numbers a word holds
//   Load(key, left)             a vector of words of a key's neighbouring numbers; after `left` of them they are 0
//   Query, LoadQuery            the same of queries
//   Join(values, numbers, line) writes words, each of the same number of kPerWord values; a null pointer stands for zeros, which
//                               also fill the last vector
//   WriteWeights(line, column, weights)  kLanes of a row's weights, which lie as those of the values in words do
//   MulAdd(sums, words, words)
// Everything has internal linkage: two files for different CPUs must never share a function.
#pragma once

#include <cstdint>
#include <cstring>

#include "pallas_kernels/ragged_paged_attention/native_kernels.h"

namespace jaxserve::attention {
namespace {

template <class V>
inline typename V::Floats ReadNumbers(const float* from) { return V::Read(from); }
template <class V>
inline typename V::Floats ReadNumbers(const uint16_t* from) { return V::Read(from); }

template <class V>
inline typename V::Floats ReadNumbers(const int8_t* from) {
  typedef int32_t Signed __attribute__((vector_size(sizeof(typename V::Integers))));
  const Signed shifted = reinterpret_cast<Signed>(V::ReadBytes(reinterpret_cast<const uint8_t*>(from)) << 24);
  return reinterpret_cast<typename V::Floats>(__builtin_convertvector(shifted >> 24, typename V::Vector));
}

// 4 bits of exponent and 3 of mantissa. Below the smallest normal number they are 0 to 7 times 2^-9, computed apart: CPUs may be told
// to take denormal numbers for 0.
template <class V>
inline typename V::Floats ReadNumbers(const Float8* from) {
  using Integers = typename V::Integers;
  typedef int32_t Signed __attribute__((vector_size(sizeof(Integers))));
  const Integers bits = V::ReadBytes(reinterpret_cast<const uint8_t*>(from));
  const Integers normal = ((bits & 0x7f) << 20) + (120u << 23);
  const auto small = __builtin_convertvector(reinterpret_cast<Signed>(bits & 7), typename V::Vector) * 0.001953125f;
  const Integers size = (bits & 0x78) == 0 ? reinterpret_cast<Integers>(small) : normal;
  return reinterpret_cast<typename V::Floats>(size | ((bits & 0x80) << 24));
}

template <class V, class Element>
inline typename V::Floats ReadPart(const Element* from, int64_t lanes) {
  Element whole[V::kLanes] = {};
  std::memcpy(whole, from, lanes * sizeof(Element));
  return ReadNumbers<V>(whole);
}

// Everything as float32, whatever it is stored in.
template <class V, class Stored, class Asked = Stored>
struct Plain {
  using Element = Stored;
  using Query = Asked;
  static constexpr int kPerWord = 1;
  template <class Number>
  static typename V::Floats LoadNumbers(const Number* from, int64_t left) {
    return left >= V::kLanes ? ReadNumbers<V>(from) : ReadPart<V>(from, left);
  }
  static typename V::Floats Load(const Element* key, int64_t left) { return LoadNumbers(key, left); }
  static typename V::Floats LoadQuery(const Query* query, int64_t left) { return LoadNumbers(query, left); }
  static void Join(const Element* const* values, int64_t numbers, float* line) {
    for (int64_t at = 0; at < numbers; at += V::kLanes) V::Write(line + at, Load(*values + at, numbers - at));
  }
  static void WriteWeights(float* line, int64_t column, typename V::Floats weights) { V::Write(line + column, weights); }
  static typename V::Floats MulAdd(typename V::Floats sums, typename V::Floats x, typename V::Floats y) {
    return V::MulAdd(sums, x, y);
  }
};

// e^x for x <= 0, and 0 where that is below the smallest normal number. Cephes' expf (Moshier): x = n ln 2 + r, and a polynomial
// for e^r.
template <class V>
inline typename V::Floats Exp(typename V::Floats x) {
  using Floats = typename V::Floats;
  using Integers = typename V::Integers;
  const Floats shifted = x * 1.44269504f + 12582912.0f;  // the lower bits are n, rounded
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  const Integers power = (reinterpret_cast<Integers>(shifted) + 127) << 23;
  return x < -87.0f ? Floats{} : y * reinterpret_cast<Floats>(power);
}

template <class V>
inline typename V::Floats Tanh(typename V::Floats x) {
  using Floats = typename V::Floats;
  const Floats e = Exp<V>((x < 0.0f ? x : -x) * 2.0f);
  const Floats size = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -size : size;
}

// Scales of keys that follow each other, in bfloat16 or float32.
template <class Bytes>
inline void ReadScales(const char* from, int64_t count, float* scales) {
  for (int64_t i = 0; i < count; ++i) {
    Bytes bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << (32 - 8 * sizeof bits);
    std::memcpy(scales + i, &wide, sizeof wide);
  }
}

// Calls Tile<n>::Run(arguments...) for the n that `rows` is, ROWS at most.
template <template <int> class Tile, int ROWS, class... Arguments>
inline void WithRows(int64_t rows, const Arguments&... arguments) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return Tile<ROWS>::Run(arguments...);
    WithRows<Tile, ROWS - 1>(rows, arguments...);
  }
}

// The work of one call, with its scratch.
template <class V, class Words>
struct Attention {
  using Floats = typename V::Floats;
  using Element = typename Words::Element;
  using Query = typename Words::Query;
  static constexpr bool kQuantized = sizeof(Element) == 1;
  static constexpr int64_t kLanes = V::kLanes, kPerWord = Words::kPerWord;

  const Queries& queries;
  const Softmax& state;
  const int64_t rows, words, stride;  // words of a key; floats of a row of values
  float* q;                           // [rows, words]
  float* totals;                      // [rows, kLanes]
  float* tile;                        // [words, kBlock]: keys of the block, transposed
  float* lines;                       // [kBlock / kPerWord, stride]: its values, in words
  float* weights;                     // [rows, kBlock]: first scores, then weights, in words
  float* fades;                       // [rows]: what the block makes of the values before it
  const Element* keys[kBlock];        // where each key of the block is
  const Element* coming[kBlock];      // and of the next one
  float key_scales[kBlock];           // of a quantized cache, and of its values
  float value_scales[kBlock];
  int64_t block;                      // its first key
  int64_t columns;                    // of it that are computed

  Attention(const Queries& queries, const Softmax& state, float* scratch)
      : queries(queries), state(state), rows(Rows(queries)), words((queries.dim + kPerWord - 1) / kPerWord),
        stride(Padded(queries.value_dim)), q(scratch), totals(q + rows * Padded(queries.dim)),
        tile(totals + rows * kMostLanes), lines(tile + Padded(queries.dim) * kBlock), weights(lines + stride * kBlock),
        fades(weights + rows * kBlock) {}

  // The keys of the block that a row sees.
  int64_t Low(int64_t row) const { return Clamp(Start(queries, row / queries.group)); }
  int64_t High(int64_t row) const { return Clamp(End(queries, row / queries.group)); }
  int64_t Clamp(int64_t key) const { return key < block ? 0 : key > block + kBlock ? kBlock : key - block; }

  void Run(int64_t first, int64_t last) {
    const int64_t start = Start(queries, 0) / kBlock * kBlock;
    Begin();
    block = first > start ? first : start;
    Find(block, 0);
    for (const Element* key : coming) {
      Prefetch(key, queries.dim);
      Prefetch(Value(key), queries.value_dim);
    }
    for (; block < last; block += kBlock) {
      columns = (High(rows - 1) + kLanes - 1) / kLanes * kLanes;
      std::memcpy(keys, coming, sizeof keys);
      // Of the next range, and then of the next head, too: who computes this one is likely to go on there.
      const bool more = block + kBlock < End(queries, queries.tokens - 1);
      Find(more ? block + kBlock : start, more ? 0 : queries.next_bytes);
      Transpose();
      Join();
      if constexpr (kQuantized) FindScales();
      for (int64_t row = 0; row < rows; row += V::kRows) WithRows<Scores, V::kRows>(Tiled(row), *this, row);
      for (int64_t row = 0; row < rows; ++row) Weigh(row);
      for (int64_t row = 0; row < rows; row += V::kRows) WithRows<Values, V::kRows>(Tiled(row), *this, row);
    }
    for (int64_t row = 0; row < rows; ++row) state.total[row] = V::Total(V::Read(totals + row * kLanes));
  }

  // Rows of the tile that begins there.
  int64_t Tiled(int64_t row) const { return rows - row < V::kRows ? rows - row : V::kRows; }

  // Queries as words, and a softmax before any key.
  void Begin() {
    const auto* from = static_cast<const Query*>(queries.q);
    const int64_t step = kLanes * kPerWord;
    for (int64_t row = 0; row < rows; ++row) {
      const Query* query = from + row / queries.group * queries.token_stride + row % queries.group * queries.dim;
      float line[kMostLanes];
      for (int64_t at = 0; at < queries.dim; at += step) {
        const int64_t word = at / kPerWord, left = words - word;
        V::Write(line, Words::LoadQuery(query + at, queries.dim - at));
        std::memcpy(q + row * words + word, line, 4 * (left < kLanes ? left : kLanes));
      }
      state.largest[row] = kLowest;
    }
    std::memset(totals, 0, 4 * rows * kLanes);
    std::memset(state.values, 0, 4 * rows * stride);
  }

  // Where the keys of a block are, or what lies `bytes` after them. In place of those that no row sees, which need not be in any
  // page, stands one that is.
  void Find(int64_t first, int64_t bytes) {
    const int64_t size = queries.page_size, start = Start(queries, 0), end = End(queries, queries.tokens - 1);
    const int64_t low = start > first ? start - first : 0, high = end - first < kBlock ? end - first : kBlock;
    for (int64_t at = low; at < high;) {
      const int64_t page = (first + at) / size, slot = (first + at) % size;
      const int64_t here = size - slot < high - at ? size - slot : high - at;
      const auto* first_slot = reinterpret_cast<const Element*>(queries.keys + queries.pages[page] * queries.page_bytes + bytes);
      for (int64_t i = 0; i < here; ++i) coming[at + i] = first_slot + (slot + i) * queries.key_stride;
      if constexpr (kQuantized) {
        const char* scales = queries.scales + queries.pages[page] * queries.page_scales + slot * queries.scale_bytes;
        __builtin_prefetch(scales);
        __builtin_prefetch(scales + queries.value_scales);
      }
      at += here;
    }
    for (int64_t at = 0; at < low; ++at) coming[at] = coming[low];
    for (int64_t at = high; at < kBlock; ++at) coming[at] = coming[low];
  }

  // The scales of the block's keys and values; 1 in place of those that no row sees.
  void FindScales() {
    const int64_t size = queries.page_size, low = Low(0), high = High(rows - 1);
    for (int64_t at = 0; at < low; ++at) key_scales[at] = value_scales[at] = 1.0f;
    for (int64_t at = low; at < high;) {
      const int64_t page = (block + at) / size, slot = (block + at) % size;
      const int64_t here = size - slot < high - at ? size - slot : high - at;
      const char* scales = queries.scales + queries.pages[page] * queries.page_scales + slot * queries.scale_bytes;
      const auto read = queries.scale_bytes == 2 ? ReadScales<uint16_t> : ReadScales<uint32_t>;
      read(scales, here, key_scales + at);
      read(scales + queries.value_scales, here, value_scales + at);
      at += here;
    }
    for (int64_t at = high; at < kBlock; ++at) key_scales[at] = value_scales[at] = 1.0f;
  }

  // Asks for numbers of the next block, which pages have anywhere: only we know what is read next. A core can wait for few lines
  // at once, for more of them in its second cache: each is asked for there, when the one of this block is read.
  static void Prefetch(const Element* from, int64_t numbers) {
    for (int64_t at = 0; at < numbers; at += 64 / sizeof(Element)) __builtin_prefetch(from + at, 0, 2);
  }

  const Element* Value(const Element* key) const { return key + queries.value_bytes / static_cast<int64_t>(sizeof(Element)); }

  void Transpose() {
    for (int64_t column = 0; column < columns; column += kLanes) {
      for (int64_t word = 0; word < words; word += kLanes) {
        const int64_t at = word * kPerWord;
        Floats square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          __builtin_prefetch(coming[column + i] + at, 0, 2);
          square[i] = Words::Load(keys[column + i] + at, queries.dim - at);
        }
        V::Transpose(square);
        for (int i = 0; i < kLanes; ++i) V::Write(tile + (word + i) * kBlock + column, square[i]);
      }
    }
  }

  void Join() {
    const int64_t low = Low(0), high = High(rows - 1), dim = queries.value_dim;
    for (int64_t first = low / kPerWord * kPerWord; first < high; first += kPerWord) {
      const Element* values[kPerWord];
      for (int i = 0; i < kPerWord; ++i) {
        const int64_t key = first + i;
        values[i] = low <= key && key < high ? Value(keys[key]) : nullptr;
        Prefetch(Value(coming[key]), dim);
      }
      Words::Join(values, dim, lines + first / kPerWord * stride);
    }
  }

  // Dot products of ROWS queries with the keys of the block.
  template <int ROWS>
  struct Scores {
    static void Run(const Attention& of, int64_t row) {
      int64_t column = 0;
      for (; column + V::kVectors * kLanes <= of.columns; column += V::kVectors * kLanes) Tile<V::kVectors>(of, row, column);
      for (; column < of.columns; column += kLanes) Tile<1>(of, row, column);
    }
    template <int VECTORS>
    static void Tile(const Attention& of, int64_t row, int64_t column) {
      Floats sums[ROWS][VECTORS] = {};
      const float* query = of.q + row * of.words;
      const float* tile = of.tile + column;
      for (int64_t word = 0; word < of.words; ++word) {
        Floats keys[VECTORS];
        for (int v = 0; v < VECTORS; ++v) keys[v] = V::Read(tile + word * kBlock + v * kLanes);
        for (int r = 0; r < ROWS; ++r) {
          const Floats value = V::Broadcast(query[r * of.words + word]);
          for (int v = 0; v < VECTORS; ++v) sums[r][v] = Words::MulAdd(sums[r][v], value, keys[v]);
        }
      }
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) V::Write(of.weights + (row + r) * kBlock + column + v * kLanes, sums[r][v]);
    }
  };

  // Scores of a row become weights, and its state makes room for a larger score.
  void Weigh(int64_t row) {
    const int64_t low = Low(row), high = High(row);
    float* line = weights + row * kBlock;
    fades[row] = 1.0f;
    if (low >= high) {
      std::memset(line, 0, 4 * columns);
      return;
    }
    Floats largest = V::Broadcast(kLowest);
    for (int64_t column = 0; column < columns; column += kLanes) {
      Floats scores = V::Read(line + column) * queries.scale;
      if constexpr (kQuantized) scores *= V::Read(key_scales + column);
      if (queries.soft_cap > 0.0f) scores = Tanh<V>(scores / queries.soft_cap) * queries.soft_cap;
      if (column < low || column + kLanes > high) {
        const auto lane = V::Read(kLane) + static_cast<float>(column);
        scores = (lane >= static_cast<float>(low)) & (lane < static_cast<float>(high)) ? scores : V::Broadcast(kLowest);
      }
      largest = largest > scores ? largest : scores;
      V::Write(line + column, scores);
    }
    float* sums = totals + row * kLanes;
    const float before = state.largest[row], found = V::Largest(largest), now = before > found ? before : found;
    Floats total{};
    for (int64_t column = 0; column < columns; column += kLanes) {
      Floats weight = Exp<V>(V::Read(line + column) - now);
      total += weight;
      if constexpr (kQuantized) weight *= V::Read(value_scales + column);
      Words::WriteWeights(line, column, weight);
    }
    const Floats fade = Exp<V>(V::Broadcast(before - now));
    V::Write(sums, V::Read(sums) * fade + total);
    fades[row] = fade[0];
    state.largest[row] = now;
  }
  static constexpr float kLane[kMostLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  // The weighted sum of the block's values, added to those of ROWS rows.
  template <int ROWS>
  struct Values {
    static void Run(const Attention& of, int64_t row) {
      const int64_t low = of.Low(row), high = of.High(row + ROWS - 1);
      if (low >= high) return;
      const int64_t dim = of.queries.value_dim, first = low / kPerWord, last = (high + kPerWord - 1) / kPerWord;
      int64_t at = 0;
      for (; at + V::kVectors * kLanes <= dim; at += V::kVectors * kLanes) Tile<V::kVectors>(of, row, at, first, last);
      for (; at < dim; at += kLanes) Tile<1>(of, row, at, first, last);
    }
    // Numbers of values from `at` on.
    template <int VECTORS>
    static void Tile(const Attention& of, int64_t row, int64_t at, int64_t first, int64_t last) {
      float* values = of.state.values + row * of.stride + at;
      Floats sums[ROWS][VECTORS];
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = V::Read(values + r * of.stride + v * kLanes) * of.fades[row + r];
      const float* weights = of.weights + row * kBlock;
      for (int64_t word = first; word < last; ++word) {
        Floats value[VECTORS];
        for (int v = 0; v < VECTORS; ++v) value[v] = V::Read(of.lines + word * of.stride + at + v * kLanes);
        for (int r = 0; r < ROWS; ++r) {
          const Floats weight = V::Broadcast(weights[r * kBlock + word]);
          for (int v = 0; v < VECTORS; ++v) sums[r][v] = Words::MulAdd(sums[r][v], weight, value[v]);
        }
      }
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) V::Write(values + r * of.stride + v * kLanes, sums[r][v]);
    }
  };
};

template <class V, class Words>
void AttendWith(const Queries& queries, int64_t first, int64_t last, const Softmax& state, float* scratch) {
  Attention<V, Words>(queries, state, scratch).Run(first, last);
}

template <class V>
constexpr Kernels InFloats() {
  return {AttendWith<V, Plain<V, uint16_t>>,         AttendWith<V, Plain<V, float>>,
          AttendWith<V, Plain<V, int8_t, uint16_t>>, AttendWith<V, Plain<V, Float8, uint16_t>>,
          AttendWith<V, Plain<V, int8_t, float>>,    AttendWith<V, Plain<V, Float8, float>>};
}

}  // namespace
}  // namespace jaxserve::attention
