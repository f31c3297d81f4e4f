#include "pallas_kernels/gated_linear_attention/native_columns.h"

namespace jaxserve::linear {
namespace {

typedef float Vector __attribute__((vector_size(16)));
using Own = Columns<Vector, 4>;

}  // namespace

constexpr Kernels kPortable = {Own::kColumns, Own::Attend};

}  // namespace jaxserve::linear
