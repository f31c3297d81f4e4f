// The library's self-test as other programs call it: a child process before the library is used, and the tests' driver.
#include "pallas_kernels/native/self_test.h"

#include "pallas_kernels/native/instruction_sets.h"

// Whether this CPU has an instruction set, one of native/library.py; every CPU has "portable" and "best".
extern "C" int JaxserveHasInstructionSet(const char* name) {
  const std::string_view wanted = name;
  return wanted == "portable" || wanted == "best" || jaxserve::MayUse(wanted, wanted);
}

// Runs the kernels that the dispatch chooses within `instruction_set`. Returns null if all results are right, else the name of a kernel
// whose result is wrong.
extern "C" const char* JaxserveSelfTest(const char* instruction_set) {
  if (const char* wrong = jaxserve::matmul::WrongKernel(instruction_set)) return wrong;
  if (const char* wrong = jaxserve::attention::WrongKernel(instruction_set)) return wrong;
  return jaxserve::linear::WrongKernel(instruction_set);
}
