"""`python -m pallas_kernels.native`: compiles the native library if there is a compiler, and says in one line what happened.

The exit status is 0 unless there is a compiler and it fails.
"""

from __future__ import annotations

import sys
import time

from pallas_kernels.native.build import COMPILERS, BuildError, build, find_compiler
from pallas_kernels.native.library import library_path


def main() -> int:
    """Build; returns the exit status."""
    compiler = find_compiler()
    if library_path().is_file():
        said = f"there already, {library_path().name}"
    elif compiler is None:
        said = f"not built, for there is no compiler ({' or '.join(COMPILERS)}): XLA computes everything"
    else:
        start = time.perf_counter()
        try:
            built = build(compiler)
        except (BuildError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            sys.stdout.write("native kernels: not built, the compiler failed: XLA computes everything\n")
            return 1
        said = f"{built.name} built with {compiler} in {time.perf_counter() - start:.0f} s"
    sys.stdout.write(f"native kernels: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
