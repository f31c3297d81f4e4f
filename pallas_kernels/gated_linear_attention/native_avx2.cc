#include "pallas_kernels/gated_linear_attention/native_columns.h"

namespace jaxserve::linear {
namespace {

typedef float Vector __attribute__((vector_size(32)));
using Own = Columns<Vector, 8>;

}  // namespace

constexpr Kernels kAvx2 = {Own::kColumns, Own::Attend};

}  // namespace jaxserve::linear
