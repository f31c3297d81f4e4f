"""Python's garbage collector in a process that serves: what is there for good is not looked through again and again.

Every object that a stream's token passes through is freed as soon as nothing refers to it. The collector only looks for cycles,
and by its defaults it looks for them every 700 new objects, which with hundreds of streams is several times a step, and from time
to time through everything that was ever imported.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 50_000  # more than are freed since the last look, before the next one; some ten megabytes


def settle() -> None:
    """Call it once, when everything is built and nothing is served yet."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
