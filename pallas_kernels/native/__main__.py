"""`python -m pallas_kernels.native`: compile the native library if there is a compiler, test it, and report the result.

The exit status is 0 unless there is a compiler and it fails, no folder is writable, or the library fails its self-test.
"""

from __future__ import annotations

import sys
import time

from pallas_kernels.native.build import BuildError, NoCompilerError, provide
from pallas_kernels.native.library import libraries
from pallas_kernels.native.self_test import failure


def main() -> int:
    there, start = libraries(), time.perf_counter()
    try:
        library = provide()
    except NoCompilerError as error:
        said = f"not built, for {error}: XLA computes everything"
    except BuildError as error:
        why, _, details = str(error).partition("\n")
        sys.stderr.write(f"{why}\n{details}\n")
        sys.stdout.write(f"native kernels: not built, {why.partition(':')[0]}: XLA computes everything\n")
        return 1
    else:
        if (failed := failure(library)) is not None:
            sys.stdout.write(f"native kernels: {library} is not used, {failed}: XLA computes everything\n")
            return 1
        said = f"there already, {library}" if there else f"{library} built in {time.perf_counter() - start:.0f} s"
    sys.stdout.write(f"native kernels: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
