"""What the native library is made of, and where it may be: in the package, or in the person's cache.

Its sources are the .cc files in the operations' folders, which include headers from there and from here. A file whose name ends
with an instruction set, as in `matmul_avx2.cc`, is compiled for CPUs that have it; all others are for every CPU, and choose at
run time. No code of a file for an instruction set runs before that choice: see `objects`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

PACKAGE = Path(__file__).resolve().parents[1]
BUILT = Path(__file__).resolve().parent / "built"
CACHED = Path(".cache") / "jaxserve" / "native"
"""Below the home directory, where the package's folder cannot be written to."""
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_BFLOAT16 = (*_AVX512, "-mavx512bf16", "-mavx512vbmi", "-mfma")
INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: ("-fno-exceptions", *flags)  # exception tables define a weak symbol
        for name, flags in {
            "avx2": ("-mavx2", "-mfma"),
            "avx512": (*_AVX512, "-mfma"),
            "avx512vnni": (*_AVX512, "-mavx512vnni"),
            "avx512bf16": _BFLOAT16,
            "amx": (*_BFLOAT16, "-mavx512vnni", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        }.items()
    }
)
"""The compiler's flags by the end of a file's name. All are of x86: elsewhere such files are left out."""
_FUNCTION = re.compile(r"XLA_FFI_DEFINE_HANDLER_SYMBOL\(\s*(\w+)")


def sources() -> list[Path]:
    """The files to compile on this machine."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return [path for path in sorted(PACKAGE.rglob("*.cc")) if x86 or instruction_set(path) is None]


def instruction_set(source: Path) -> str | None:
    """The instruction set that a file is compiled for, by its name; None for every CPU."""
    end = source.stem.rpartition("_")[2]
    return end if end in INSTRUCTION_SETS else None


@cache
def digest() -> str:
    """Hash of the library's inputs: sources, flags, jaxlib's release (for its headers), and the check of the objects."""
    found = hashlib.blake2b(f"{version('jaxlib')} {FLAGS} {dict(INSTRUCTION_SETS)}".encode(), digest_size=8)
    for path in sorted([*PACKAGE.rglob("*.cc"), *PACKAGE.rglob("*.h"), PACKAGE / "native" / "objects.py"]):
        found.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def functions() -> list[str]:
    return [name for path in sources() for name in _FUNCTION.findall(path.read_text(encoding="utf-8"))]


def library_name() -> str:
    """The library's file. It says what it was made from, so one of other sources or another jaxlib is never loaded."""
    return f"{version('jaxlib')}-{digest()}.so"


def folders() -> list[Path]:
    """Where a library may be, in the order in which it is looked for and written."""
    home = os.path.expanduser("~")  # "~" for a user whom the system does not know
    if not os.path.isabs(home):
        return [BUILT]
    return [BUILT, Path(home) / CACHED / platform.machine()]  # machines of several kinds may have one home


def libraries() -> list[Path]:
    """The files that are there for these sources and this jaxlib."""
    name = library_name()
    return [path for folder in folders() if os.path.isfile(path := folder / name)]  # false for a folder that cannot be entered
