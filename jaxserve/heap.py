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


def give_back() -> None:
    """Give the operating system what was freed: glibc keeps it, and loading and compiling free hundreds of megabytes."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(ctypes.c_size_t(0))
