// Which instruction sets native kernels may use, decided at run time.
#pragma once

#include <string_view>

namespace jaxserve {

// Whether this CPU has instruction set `name`, one of native/library.py, and `allowed` is that name or "best".
inline bool MayUse(std::string_view name, std::string_view allowed) {
  if (allowed != "best" && allowed != name) return false;
#if defined(__x86_64__)
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (name == "avx512") return avx512;
  if (name == "avx512vnni") return avx512 && __builtin_cpu_supports("avx512vnni");
  if (name == "avx512bf16")
    return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
#endif
  return false;
}

}  // namespace jaxserve
