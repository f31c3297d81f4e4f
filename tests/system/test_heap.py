"""What is built before serving is left alone by the garbage collector; garbage, and what sleeps, does not stay in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_checkpoint import write_tiny_checkpoint

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


SLEEP = """
import sys
from pathlib import Path
from jaxserve import LLM, SamplingParams

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

llm = LLM(sys.argv[1], load_format="dummy", max_num_seqs=1, max_num_batched_tokens=8, kv_cache_memory_gib=0.01)
llm.generate(["a"], SamplingParams(max_tokens=2))
awake = resident()
llm.sleep(level=1)
assert resident() < awake + 20, "the weights are there twice"
llm.wake_up()
assert resident() < awake + 20, "the host's copy stays"
llm.sleep(level=2)
assert resident() < awake - 80, "the weights stay"
"""


def test_what_sleeps_gives_its_memory_back(tmp_path: Path) -> None:
    file = write_tiny_checkpoint(tmp_path) / "config.json"
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}  # 100 MiB of weights
    file.write_text(json.dumps(json.loads(file.read_text()) | sizes))
    subprocess.run([sys.executable, "-c", SLEEP, str(tmp_path)], check=True, timeout=300)
