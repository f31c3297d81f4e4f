// Every kernel of native_kernels.h against a plain loop; results must be equal, for all sums are exact.
#include "pallas_kernels/matmul/native_kernels.h"
#include "pallas_kernels/native/self_test.h"

namespace jaxserve::matmul {
namespace {

using self_test::All;
using self_test::Numbers;

constexpr int64_t kOutputs = kBlock + 22, kWideOutputs = kWide + 22;  // a whole block, and a last one that is narrower
constexpr int64_t kOddInputs = 103;       // that fill no word of 2 or 4
constexpr int64_t kEvenInputs = 128, kGroup = 32;
constexpr int64_t kSomeRows[] = {1, 3, 19};  // few; fewer than a tile; a tile and more

// x [rows, inputs] times matrix [inputs, outputs], a group's sum times its scale [inputs / group, outputs].
struct Problem {
  Problem(int64_t rows, int64_t inputs, int64_t group, int64_t outputs = kOutputs)
      : rows(rows), inputs(inputs), group(group), outputs(outputs), x(numbers.Take(rows * inputs)),
        matrix(numbers.Take(inputs * outputs)), scales(numbers.TakeScales(inputs / group * outputs)), y(rows * outputs) {}

  // Whether y is the result, of which each row is multiplied by `steps`, if there are any.
  bool IsRight(bool scaled, const std::vector<float>& steps = {}) const {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t output = 0; output < outputs; ++output) {
        float sum = 0;
        for (int64_t input = 0; input < inputs; ++input)
          sum += x[row * inputs + input] * matrix[input * outputs + output] *
                 (scaled ? scales[input / group * outputs + output] : 1.0f);
        if (y[row * outputs + output] != sum * (steps.empty() ? 1.0f : steps[row])) return false;
      }
    return true;
  }

  Numbers numbers;
  int64_t rows, inputs, group, outputs;
  std::vector<float> x, matrix, scales, y;
};

// The matrix in panels of PER_WORD inputs a word.
template <int PER_WORD, class Element>
std::vector<Element> PanelsOf(const std::vector<Element>& matrix, int64_t inputs) {
  std::vector<Element> panels(matrix.size());
  for (int64_t begin = 0; begin < kOutputs; begin += kBlock) {
    const int64_t width = kOutputs - begin < kBlock ? kOutputs - begin : kBlock;
    for (int64_t input = 0; input < inputs; ++input)
      for (int64_t column = 0; column < width; ++column) {
        const int64_t word = input / PER_WORD * PER_WORD;
        const int64_t at = word + PER_WORD <= inputs ? word * width + column * PER_WORD + input % PER_WORD : input * width + column;
        panels[begin * inputs + at] = matrix[input * kOutputs + begin + column];
      }
  }
  return panels;
}

template <class Element>
std::vector<Element> RowsOf(const std::vector<Element>& matrix, int64_t inputs) {
  std::vector<Element> rows(matrix.size());
  for (int64_t input = 0; input < inputs; ++input)
    for (int64_t output = 0; output < kOutputs; ++output) rows[output * inputs + input] = matrix[input * kOutputs + output];
  return rows;
}

template <class Kernel, class Product>
void Run(Kernel kernel, const Product& product, int64_t columns = kBlock) {
  for (int64_t block = 0; block * columns < product.outputs; ++block) kernel(product, block);
}

// A kernel for x and a matrix of one dtype, which `arrange` has put into the kernel's form.
template <class Element, class Arrange>
bool Multiplies(Compute kernel, int64_t rows, const Arrange& arrange) {
  Problem problem(rows, kOddInputs, kOddInputs);
  const auto x = All<Element>(problem.x), matrix = arrange(All<Element>(problem.matrix), kOddInputs);
  Run(kernel, Product{x.data(), matrix.data(), problem.y.data(), rows, kOddInputs, kOutputs});
  return problem.IsRight(false);
}

template <class Element>
bool MultipliesPlain(Compute kernel, int64_t rows) {
  Problem problem(rows, kOddInputs, kOddInputs, kWideOutputs);
  const auto x = All<Element>(problem.x), matrix = All<Element>(problem.matrix);
  Run(kernel, Product{x.data(), matrix.data(), problem.y.data(), rows, kOddInputs, kWideOutputs}, kWide);
  return problem.IsRight(false);
}

// A kernel for panels of bytes, int8 or E4M3.
template <class Element>
bool MultipliesBytes(Compute kernel, int64_t rows, bool float8, int64_t inputs, int64_t group) {
  Problem problem(rows, inputs, group);
  std::vector<uint8_t> bytes;
  for (const float value : problem.matrix)
    bytes.push_back(float8 ? self_test::ToFloat8(value) : static_cast<uint8_t>(static_cast<int8_t>(value)));
  const auto x = All<Element>(problem.x);
  const auto panels = PanelsOf<4>(bytes, inputs);
  Run(kernel, Product{x.data(), panels.data(), problem.y.data(), rows, inputs, kOutputs, problem.scales.data(), group});
  return problem.IsRight(true);
}

bool MultipliesW8A8(ComputeW8A8 kernel, int64_t rows) {
  Problem problem(rows, kOddInputs, kOddInputs);
  std::vector<uint8_t> x;
  for (const float value : problem.x) x.push_back(static_cast<uint8_t>(value + 128));
  const auto panels = PanelsOf<4>(All<int8_t>(problem.matrix), kOddInputs);
  const auto steps = problem.numbers.TakeScales(rows);
  Run(kernel,
      W8A8Product{x.data(), panels.data(), problem.y.data(), rows, kOddInputs, kOutputs, steps.data(), problem.scales.data()});
  return problem.IsRight(true, steps);
}

// A code stands for its value minus 8 here, minus the zero of its group if there are zeros.
template <class Element>
bool MultipliesCodes(ComputeFourBit kernel, int64_t rows, bool with_zeros) {
  Problem problem(rows, kEvenInputs, kGroup);
  const std::vector<float> zeros = problem.numbers.Take(kEvenInputs / kGroup * kOutputs);
  std::vector<uint32_t> words(kEvenInputs / 8 * kOutputs);
  float table[16];
  for (int code = 0; code < 16; ++code) table[code] = static_cast<float>(code - 8);
  for (int64_t input = 0; input < kEvenInputs; ++input)
    for (int64_t output = 0; output < kOutputs; ++output) {
      const float zero = with_zeros ? zeros[input / kGroup * kOutputs + output] : 0.0f;
      const auto code = static_cast<uint32_t>(problem.matrix[input * kOutputs + output] + zero + 8);
      const int64_t begin = output / kBlock * kBlock, width = kOutputs - begin < kBlock ? kOutputs - begin : kBlock;
      words[begin * (kEvenInputs / 8) + input / 8 * width + output - begin] |= code << (4 * (input % 8));
    }
  const auto x = All<Element>(problem.x);
  Run(kernel, FourBitProduct{x.data(), words.data(), problem.y.data(), rows, kEvenInputs, kOutputs, kGroup, table,
                             problem.scales.data(), with_zeros ? zeros.data() : nullptr});
  return problem.IsRight(true);
}

const char* WrongFor(const Kernels& kernels, ComputeW8A8 w8a8, int64_t rows) {
  if (!Multiplies<uint16_t>(kernels.panels_bfloat16, rows, PanelsOf<2, uint16_t>)) return "matmul, panels of bfloat16";
  if (!Multiplies<float>(kernels.panels_float32, rows, PanelsOf<1, float>)) return "matmul, panels of float32";
  if (!Multiplies<uint16_t>(kernels.rows_bfloat16, rows, RowsOf<uint16_t>)) return "matmul, rows of bfloat16";
  if (!Multiplies<float>(kernels.rows_float32, rows, RowsOf<float>)) return "matmul, rows of float32";
  if (!MultipliesPlain<uint16_t>(kernels.plain_bfloat16, rows)) return "matmul, plain bfloat16";
  if (!MultipliesPlain<float>(kernels.plain_float32, rows)) return "matmul, plain float32";
  if (!MultipliesBytes<uint16_t>(kernels.int8_bfloat16, rows, false, kOddInputs, kOddInputs)) return "matmul, int8 by bfloat16";
  if (!MultipliesBytes<float>(kernels.int8_float32, rows, false, kOddInputs, kOddInputs)) return "matmul, int8 by float32";
  for (const int64_t group : {kGroup, kEvenInputs}) {
    if (!MultipliesBytes<uint16_t>(kernels.float8_bfloat16, rows, true, kEvenInputs, group)) return "matmul, E4M3 by bfloat16";
    if (!MultipliesBytes<float>(kernels.float8_float32, rows, true, kEvenInputs, group)) return "matmul, E4M3 by float32";
  }
  for (const bool zeros : {false, true})
    if (!MultipliesCodes<float>(kernels.four_bit, rows, zeros)) return "matmul, 4-bit codes by float32";
  if (kernels.four_bit_bfloat16 != nullptr && !MultipliesCodes<uint16_t>(kernels.four_bit_bfloat16, rows, false))
    return "matmul, 4-bit codes by bfloat16";
  return MultipliesW8A8(w8a8, rows) ? nullptr : "matmul, int8 by int8";
}

}  // namespace

const char* WrongKernel(std::string_view instruction_set) {
  for (const int64_t rows : kSomeRows)
    if (const char* wrong = WrongFor(Choose(instruction_set), ChooseW8A8(instruction_set), rows)) return wrong;
  return nullptr;
}

}  // namespace jaxserve::matmul
