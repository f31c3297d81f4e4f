// Every other CPU: arrays that compilers turn into what vectors there are.
#include "pallas_kernels/matmul/native_four_bit.h"
#include "pallas_kernels/matmul/native_int8.h"

namespace jaxserve::matmul {
namespace {

template <class Lane>
struct Four {
  Lane lane[4];
};

struct Portable {
  using Words = Four<uint32_t>;
  using Sums = Four<float>;
  static constexpr int kLanes = 4, kRows = 4, kVectors = 2;
  static Sums Zero() { return {}; }
  static Sums Read(const float* y) { return ReadPart(y, kLanes); }
  static Sums ReadPart(const float* y, int64_t lanes) {
    Sums sums{};
    std::memcpy(&sums, y, 4 * lanes);
    return sums;
  }
  static void Write(float* y, Sums sums) { WritePart(y, kLanes, sums); }
  static void WritePart(float* y, int64_t lanes, Sums sums) { std::memcpy(y, &sums, 4 * lanes); }
  static Words Load(const void* words) { return LoadPart(words, kLanes); }
  static Words LoadPart(const void* words, int64_t lanes) {
    Words loaded{};
    std::memcpy(&loaded, words, 4 * lanes);
    return loaded;
  }
  static void Store(void* to, Words words) { StorePart(to, kLanes, words); }
  static void StorePart(void* to, int64_t lanes, Words words) { std::memcpy(to, &words, 4 * lanes); }
  static Words Broadcast(const void* word) {
    uint32_t value;
    std::memcpy(&value, word, sizeof value);
    return {{value, value, value, value}};
  }
  static float Total(Sums sums) { return (sums.lane[0] + sums.lane[1]) + (sums.lane[2] + sums.lane[3]); }
  template <int BYTE>
  static Words Number(Words quads) {
    Sums numbers;
    for (int i = 0; i < kLanes; ++i) numbers.lane[i] = static_cast<int8_t>(quads.lane[i] >> (8 * BYTE));
    return Load(&numbers);
  }
  template <int BYTE>
  static Words Float8Number(Words quads) {
    Sums numbers;
    for (int i = 0; i < kLanes; ++i) numbers.lane[i] = ToFloat(Float8{static_cast<uint8_t>(quads.lane[i] >> (8 * BYTE))});
    return Load(&numbers);
  }
  static float AsFloat(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

struct Float32 : Portable {
  using Element = float;
  static constexpr int kPerWord = 1;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    for (int i = 0; i < kLanes; ++i) sums.lane[i] += AsFloat(x.lane[i]) * AsFloat(w.lane[i]);
    return sums;
  }
  static void Widen(Words quads, Words (&words)[4]) {
    words[0] = Number<0>(quads), words[1] = Number<1>(quads), words[2] = Number<2>(quads), words[3] = Number<3>(quads);
  }
  using Table = const float*;
  static Table ReadTable(const float* numbers) { return numbers; }
  template <int I>
  static Words LookUp(Table table, Words eights) {
    Sums numbers;
    for (int i = 0; i < kLanes; ++i) numbers.lane[i] = table[eights.lane[i] >> (4 * I) & 15];
    return AsWords(numbers);
  }
  static Words AsWords(const Sums& sums) { return Load(&sums); }
  static Words Minus(Words words, Sums sums) {
    for (int i = 0; i < kLanes; ++i) sums.lane[i] = AsFloat(words.lane[i]) - sums.lane[i];
    return AsWords(sums);
  }
};

struct Bfloat16 : Portable {  // the first of two numbers is in the lower half: little-endian
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static Sums MulAdd(Sums sums, Words x, Words w) {
    for (int i = 0; i < kLanes; ++i) {
      sums.lane[i] += AsFloat(x.lane[i] << 16) * AsFloat(w.lane[i] << 16);
      sums.lane[i] += AsFloat(x.lane[i] & 0xffff0000) * AsFloat(w.lane[i] & 0xffff0000);
    }
    return sums;
  }
  static Words Pair(Words even, Words odd) {  // a small whole number in float32 is one in bfloat16 and 16 zeros
    for (int i = 0; i < kLanes; ++i) odd.lane[i] |= even.lane[i] >> 16;
    return odd;
  }
  static void Widen(Words quads, Words (&words)[2]) {
    words[0] = Pair(Number<0>(quads), Number<1>(quads)), words[1] = Pair(Number<2>(quads), Number<3>(quads));
  }
};

}  // namespace

constexpr Kernels kPortable = {Panels<Bfloat16>,
                               Panels<Float32>,
                               Rows<Bfloat16>,
                               Rows<Float32>,
                               Plain<Bfloat16>,
                               Plain<Float32>,
                               BytePanels<Bfloat16, int8_t>,
                               BytePanels<Float32, int8_t>,
                               GroupedBytePanels<OfFloat8<Bfloat16>, Float8>,
                               GroupedBytePanels<OfFloat8<Float32>, Float8>,
                               FourBitPanels<Float32>};

}  // namespace jaxserve::matmul
