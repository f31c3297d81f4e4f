// Loads the native library, which runs its initializers, and runs its self-test within each instruction set named:
//   native_driver LIBRARY INSTRUCTION_SET...
// One line for each says "right", "not on this CPU", or which kernel is wrong.
#include <dlfcn.h>

#include <cstdio>

int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) {
    std::puts(dlerror());
    return 2;
  }
  const auto has = reinterpret_cast<int (*)(const char*)>(dlsym(library, "JaxserveHasInstructionSet"));
  const auto test = reinterpret_cast<const char* (*)(const char*)>(dlsym(library, "JaxserveSelfTest"));
  for (int i = 2; i < count; ++i) {
    const char* wrong = has(arguments[i]) ? test(arguments[i]) : "not on this CPU";
    std::printf("%s: %s\n", arguments[i], wrong == nullptr ? "right" : wrong);
  }
}
