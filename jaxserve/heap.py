"""Memory of a process that serves: the collector of garbage passes over what is there for good; what building took is given back.

Every object that a stream's token passes through is freed as soon as nothing refers to it. The collector only looks for cycles,
and by its defaults it looks for them every 700 new objects, which with hundreds of streams is several times a step, and from time
to time through everything that was ever imported.
"""

from __future__ import annotations

import ctypes
import gc
import sys

NEW_OBJECTS = 50_000  # more than are freed since the last look, before the next one; some ten megabytes


def freeze_gc() -> None:
    """Call it once, when everything is built and nothing is served yet."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    give_back()


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def allocated() -> int | None:
    """Bytes that the C library has handed out and not got back; None where it does not say (glibc does from 2.33 on)."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def give_back() -> None:
    """Give the operating system what was freed: glibc keeps it, and loading and compiling free hundreds of megabytes."""
    gc.collect()  # arrays that only cycles of objects hold
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(ctypes.c_size_t(0))
