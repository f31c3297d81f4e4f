"""A model with recurrent layers: speed beside HF transformers, growth with context, prefix hits by the spacing of snapshots.

    python -m benchmarks.hybrid [--sections growth beside prefix] [--transformers-python PATH] [--vllm-python PATH] [--repeats 3]
        [--output benchmarks/results/hybrid.json]

PATHs are interpreters, one with torch and transformers (extra "parity") and one with vllm (benchmarks/peers/README.md). Models
are `hybrid150m.CONFIG` and, of as many layers that all attend, `hybrid150m.DENSE`, with dummy weights in bfloat16. A decode
step's time is what tokens after the first take, once the prompts are there: of jaxserve in its prefix cache, of others behind the
first token of all rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hybrid150m, llama150m, machine
from benchmarks.peer import Peer
from benchmarks.peers.engines import vllm_environment
from jaxserve import LLM, SamplingParams
from jaxserve.commands import write_json
from jaxserve.types import TokensPrompt

RESULTS = Path(__file__).parent / "results" / "hybrid.json"
SECTIONS = ("growth", "beside", "prefix")
STEPS = 32  # after the first token
DECODES = ((1, 1024), (16, 1024), (1, 16384))  # rows, and tokens before them
PREFILLS = (512, 8192)
CONTEXTS = (512, 2048, 16384)
SIZES = {"max_model_len": 16384 + 64, "max_num_seqs": 16, "num_pages": 2500}
INTERVALS = (64, 256, 1024)  # tokens between snapshots
SNAPSHOTS = (8, 10, 32)  # of 8 conversations; 10 is the default
CONVERSATIONS, TURNS, SYSTEM, QUESTION, ANSWER = 8, 6, 512, 90, 60


class Ours:
    """The engine in this process."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self._rng = np.random.default_rng(0)
        self.llm = LLM(model=str(directory), load_format="dummy", dtype="bfloat16", **settings)

    def prompts(self, rows: int, length: int) -> list[TokensPrompt]:
        """Random ones."""
        return [{"prompt_token_ids": ids} for ids in self._rng.integers(3, 32000, (rows, length)).tolist()]

    def seconds(self, prompts: list[TokensPrompt], output: int) -> float:
        """Until all have so many tokens."""
        start = time.perf_counter()
        self.llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True), use_tqdm=False)
        return time.perf_counter() - start

    def prefill(self, length: int) -> float:
        return self.seconds(self.prompts(1, length), 1)

    def decode(self, rows: int, context: int) -> float:
        """Seconds of a step."""
        prompts = self.prompts(rows, context)
        self.seconds(prompts, 1)
        first = self.seconds(prompts, 1)
        return (self.seconds(prompts, 1 + STEPS) - first) / STEPS


class Theirs:
    """Another engine, in a process of its own."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.versions: dict[str, str] = peer.hello["versions"]

    def prefill(self, length: int) -> float:
        return float(self._asked(1, length, 1)["first"])

    def decode(self, rows: int, context: int) -> float:
        """Seconds of a step."""
        return float(self._asked(rows, context, 1 + STEPS)["step"])

    def close(self) -> None:
        """End the process."""
        self._peer.close()

    def _asked(self, rows: int, prompt: int, output: int) -> dict[str, Any]:
        return self._peer.ask({"rows": rows, "prompt": prompt, "output": output})


def in_turns(engines: Mapping[str, Ours | Theirs], method: str, *arguments: int, repeats: int) -> dict[str, float]:
    """Each engine's median in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            times[name].append(getattr(engine, method)(*arguments) * 1e3)
    return {name: round(machine.median(each), 2) for name, each in times.items()}


def warm_up(engines: Mapping[str, Ours | Theirs]) -> None:
    """Compile, and touch all memory, before anything is timed."""
    for engine in engines.values():
        for rows in (1, 16):
            engine.decode(rows, 128)


@dataclass(frozen=True, slots=True)
class Conversations:
    """Some that begin with one system prompt and take turns, each turn's prompt being all that was said before it."""

    rng: np.random.Generator

    def turns(self) -> Iterator[list[list[int]]]:
        """The prompts of one turn after the other."""
        system = self._tokens(SYSTEM)
        said = [list(system) for _ in range(CONVERSATIONS)]
        for _ in range(TURNS):
            said = [each + self._tokens(QUESTION) for each in said]
            yield said
            said = [each + self._tokens(ANSWER) for each in said]

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(3, 32000, count)]


def hits(directory: Path, interval: int, snapshots: int) -> dict[str, Any]:
    """Of the prompts' tokens after the first turn the share that was found, and bytes of what snapshots are kept in."""
    ours = Ours(
        directory, max_model_len=2048, max_num_seqs=CONVERSATIONS, state_snapshot_interval=interval, state_snapshots=snapshots
    )
    asked = found = 0
    for turn, prompts in enumerate(Conversations(np.random.default_rng(1)).turns()):
        given: list[TokensPrompt] = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = ours.llm.generate(given, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        if turn:
            asked += sum(len(ids) for ids in prompts)
            found += sum(output.num_cached_tokens or 0 for output in outputs)
    return {"interval": interval, "snapshots": snapshots, "hit_rate": round(found / asked, 3)}


def growth(hybrid: Path, dense: Path, repeats: int) -> list[dict[str, Any]]:
    """A decode step of either model behind more and more tokens."""
    ours = {"hybrid": Ours(hybrid, **SIZES), "dense": Ours(dense, **SIZES)}
    warm_up(ours)
    return [{"context": context, "ms_a_step": in_turns(ours, "decode", 1, context, repeats=repeats)} for context in CONTEXTS]


def beside(hybrid: Path, peers: Mapping[str, Theirs], repeats: int) -> dict[str, Any]:
    """All engines in turns: prefill and decode."""
    engines: dict[str, Ours | Theirs] = {"jaxserve": Ours(hybrid, **SIZES), **peers}
    warm_up(engines)
    prefill = [{"tokens": length, "ms": in_turns(engines, "prefill", length, repeats=repeats)} for length in PREFILLS]
    decode = [
        {"rows": rows, "context": context, "ms_a_step": in_turns(engines, "decode", rows, context, repeats=repeats)}
        for rows, context in DECODES
    ]
    return {"prefill": prefill, "decode": decode}


def peers_of(given: argparse.Namespace, hybrid: Path) -> dict[str, Theirs]:
    """Those whose interpreters were named."""
    peers = {}
    if given.transformers_python:
        threads = str(len(os.sched_getaffinity(0)))
        peers["transformers"] = Theirs(Peer(given.transformers_python, "peer_transformers.py", str(hybrid), "bfloat16", threads))
    if given.vllm_python:
        sizes = str(SIZES["max_model_len"]), str(SIZES["max_num_seqs"])
        environment = vllm_environment(given.vllm_python)
        peers["vllm"] = Theirs(Peer(given.vllm_python, "peer_vllm.py", str(hybrid), *sizes, environment=environment))
    return peers


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="what to measure")
    parser.add_argument("--transformers-python", help="interpreter that has torch and transformers")
    parser.add_argument("--vllm-python", help="interpreter that has vllm")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.hybrid")}
    with tempfile.TemporaryDirectory() as scratch:
        hybrid = llama150m.write_config(Path(scratch) / "hybrid", hybrid150m.CONFIG)
        dense = llama150m.write_config(Path(scratch) / "dense", hybrid150m.DENSE)
        if "growth" in given.sections:
            report["growth"] = growth(hybrid, dense, given.repeats)
        if "beside" in given.sections:
            peers = peers_of(given, hybrid)
            for peer in peers.values():
                report["versions"] |= peer.versions
            report |= beside(hybrid, peers, given.repeats)
            for peer in peers.values():
                peer.close()
        if "prefix" in given.sections:
            report["prefix"] = [hits(hybrid, interval, count) for interval in INTERVALS for count in SNAPSHOTS]
    write_json(given.output, report)


if __name__ == "__main__":
    main()
