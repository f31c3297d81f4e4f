#include "pallas_kernels/gated_linear_attention/native_columns.h"

namespace jaxserve::linear {
namespace {

typedef float Vector __attribute__((vector_size(64)));
using Own = Columns<Vector, 16>;

}  // namespace

constexpr Kernels kAvx512 = {Own::kColumns, Own::Attend};

}  // namespace jaxserve::linear
