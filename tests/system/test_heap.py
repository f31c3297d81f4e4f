"""What is built before serving is left alone by the garbage collector, and new garbage is not left for long."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, weakref
from jaxserve.heap import NEW_OBJECTS, freeze_gc

class Node: pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

old = cycle()
built = [Node() for _ in range(1000)]
freeze_gc()
assert old() is None, "garbage is kept for good"
assert gc.get_freeze_count() >= 1000, "what was built is looked through again"
new = cycle()
looks = sum(generation["collections"] for generation in gc.get_stats())
kept = [[] for _ in range(NEW_OBJECTS // 2)]
assert sum(generation["collections"] for generation in gc.get_stats()) == looks and new() is not None
kept += [[] for _ in range(NEW_OBJECTS)]
assert new() is None, "garbage stays"
"""


def test_settled() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
