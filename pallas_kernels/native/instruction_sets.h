// Which instruction sets native kernels may use, decided at run time.
#pragma once

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace jaxserve {

#if defined(__x86_64__)

// Whether this CPU has tiles of AMX with products of int8 and bfloat16, and the system lets this process use them. It is asked the
// first time: Linux lets no process use them that does not ask, and says no where a thread's stack for signals is too small for them.
inline bool MayUseTiles() {
  static const bool may = [] {
    unsigned a, b, c, d, states, upper;
    constexpr unsigned kTiles = 1u << 24 | 1u << 25 | 1u << 22, kTileStates = 1u << 17 | 1u << 18;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTiles) != kTiles) return false;
    asm("xgetbv" : "=a"(states), "=d"(upper) : "c"(0));
    if ((states & kTileStates) != kTileStates) return false;
#if defined(__linux__)
    constexpr long kAskForState = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
    return false;
#endif
  }();
  return may;
}

#endif

// Whether this CPU has instruction set `name`, one of native/library.py, and `allowed` is that name or "best".
inline bool MayUse(std::string_view name, std::string_view allowed) {
  if (allowed != "best" && allowed != name) return false;
#if defined(__x86_64__)
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bfloat16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (name == "avx512") return avx512;
  if (name == "avx512vnni") return vnni;
  if (name == "avx512bf16") return bfloat16;
  if (name == "amx") return vnni && bfloat16 && MayUseTiles();
#endif
  return false;
}

}  // namespace jaxserve
