"""New weights while serving: from the engine's own process, from another process, and from disk.

    python -m benchmarks.weight_transfer [--rounds 3]

The model is that of benchmarks/llama150m.py with random weights: 400 MB in bfloat16. "In place" is `LLM.update_weights` of arrays
in the same process. "Another process" is this one, which gives its arrays to `python -m jaxserve.serve` by WeightSender; of it,
"finishing" is the last request, by which all are checked and put in place. "From disk" is POST /update_weights to that server,
with the checkpoint in the page cache. Seconds are of the whole call, to the answer that the weights are served. The first update
compiles what makes parameters of arrays and is told apart from the others, of which medians are told. Peaks of memory are over
what a process had before that update. Meanwhile a client of the server, a thread of this process, reads one stream, which goes on
("keep"): "gap" is the longest time between two of its tokens, without updates, during one, and while one is finished. Steps that
compiled are those of the whole run; there should be none. Writes benchmarks/results/weight_transfer.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import jax
import psutil

from benchmarks import machine, servers
from benchmarks.peers import checkpoint
from jaxserve import LLM
from jaxserve.rollout.transfer import PIECE_BYTES, WeightSender

RESULTS = servers.ROOT / "benchmarks" / "results" / "weight_transfer.json"
SIZES: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 2048}
KEY = "the benchmark's"
QUIET_SECONDS = 5.0
MODULES = {"engine": "jaxserve.engine.remote.child", "front_end": "server.processes.frontend"}


def memory(pid: int, name: str) -> int:
    """Bytes of a process, as Linux counts them: "VmRSS" now, "VmHWM" at most since `forget_peak`."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


class Peaks:
    """Memory of processes over what they have now."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: memory(pid, "VmRSS") for name, pid in pids.items()}
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak

    def megabytes(self) -> dict[str, float]:
        return {name: round((memory(pid, "VmHWM") - self._before[name]) / 1e6, 1) for name, pid in self._pids.items()}


class Stream:
    """A client that reads one long answer after the other, in a thread, and notes when each token came."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._times: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def longest_gap(self, begun: float, ended: float) -> float:
        """Seconds between two tokens of which one came in a time, or the one before and the other after it."""
        while self._times[-1] <= ended:
            time.sleep(0.01)
        return max(after - before for before, after in pairwise(self._times) if after >= begun and before <= ended)

    def _read(self) -> None:
        asked = {"prompt": [5] * 8, "max_tokens": 1900, "ignore_eos": True, "temperature": 0.0, "stream": True}
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(timeout=60.0, headers=headers) as client:
            while not self._stopped.is_set():
                with client.stream("POST", f"{self._url}/v1/completions", json=asked) as reply:
                    for line in reply.iter_lines():
                        if line.startswith("data: {"):
                            self._times.append(time.monotonic())
                        if self._stopped.is_set():
                            break


def update(send: Callable[[], object], pids: dict[str, int], stream: Stream | None = None) -> dict[str, Any]:
    """One update: seconds, memory and the stream's longest gap."""
    peaks, begun = Peaks(pids), time.monotonic()
    send()
    ended = time.monotonic()
    found: dict[str, Any] = {"seconds": round(ended - begun, 3), "peak_mb": peaks.megabytes()}
    if stream is not None:
        found["gap_seconds"] = round(stream.longest_gap(begun, ended), 3)
    return found


def summary(updates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first, and medians of the others."""
    later = updates[1:]
    told: dict[str, Any] = {
        "first_seconds": updates[0]["seconds"],
        "seconds": machine.median([one["seconds"] for one in later]),
        "peak_mb": {name: machine.median([one["peak_mb"][name] for one in later]) for name in updates[0]["peak_mb"]},
    }
    for name in ("finishing_seconds", "gap_seconds", "finishing_gap_seconds"):
        if name in updates[0]:
            told[name] = machine.median([one[name] for one in later])
    return {**told, "updates": list(updates)}


def tree() -> dict[str, jax.Array]:
    return {name: jax.device_put(array) for name, array in checkpoint.weights()}


def in_place(directory: Path, rounds: int) -> dict[str, Any]:
    """In this process, which is one of its own."""
    llm, arrays = LLM(str(directory), **SIZES), jax.block_until_ready(tree())
    pids = {"process": psutil.Process().pid}
    updates = [update(lambda: llm.update_weights(arrays), pids) for _ in range(rounds + 1)]
    return {**summary(updates), "steps_compiled": llm._built.core.executor.counts().late_compiles}


class Sender(WeightSender):
    """Knows when the last request that put weights in place began, and when it was answered."""

    finishing = 0.0, 0.0

    def _request(self, path: str, *, kind: str | None = None, **request: Any) -> Any:
        begun = time.monotonic()
        answer = super()._request(path, kind=kind, **request)
        if path == "/finish_weight_update":
            self.finishing = begun, time.monotonic()
        return answer


def sending(sender: Sender, arrays: dict[str, jax.Array], pids: dict[str, int], stream: Stream) -> dict[str, Any]:
    found = update(lambda: sender.send(arrays, mode="keep"), pids, stream)
    begun, ended = sender.finishing
    gap = stream.longest_gap(begun, ended)
    return {**found, "finishing_seconds": round(ended - begun, 3), "finishing_gap_seconds": round(gap, 3)}


def of_server(directory: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """From this process and from disk to a server."""
    keys = scratch / "keys.toml"
    keys.write_text(f'[[key]]\nsha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"\ntenant = "all"\nadmin = true\n')
    flags = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    arrays = jax.block_until_ready(tree())
    with servers.ready([str(directory), "--keys", str(keys), *flags]) as one:
        stream = Stream(one.http)
        with Sender(one.http, KEY) as sender, stream.running():
            pids = processes(one.popen.pid)
            begun = time.monotonic()
            time.sleep(QUIET_SECONDS)
            quiet = stream.longest_gap(begun + 1.0, time.monotonic())
            sent = [sending(sender, arrays, pids, stream) for _ in range(rounds + 1)]
            read = [update(lambda: from_disk(one.http, directory), pids, stream) for _ in range(rounds + 1)]
        compiled = late_compiles(one.http)
    return {
        "another_process": summary(sent),
        "from_disk": summary(read),
        "quiet_gap_seconds": round(quiet, 3),
        "steps_compiled": compiled,
    }


def processes(supervisor: int) -> dict[str, int]:
    """The server's engine and front end, and this process, which trains."""
    found = {"trainer": psutil.Process().pid}
    for child in psutil.Process(supervisor).children(recursive=True):
        command = " ".join(child.cmdline())
        found |= {name: child.pid for name, module in MODULES.items() if f"'{module}'" in command}
    return found


def from_disk(url: str, directory: Path) -> None:
    info = {"path": str(directory), "mode": "keep"}
    headers = {"Authorization": f"Bearer {KEY}"}
    httpx.post(f"{url}/update_weights", json={"update_info": info}, headers=headers, timeout=300.0).raise_for_status()


def late_compiles(url: str) -> int:
    lines = httpx.get(f"{url}/metrics", timeout=60.0).text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("jaxserve:late_compiles_total")))


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="updates of every kind after the first")
    parser.add_argument("--in-place", type=Path, metavar="DIRECTORY", help="measure this part alone, and print it")
    arguments = parser.parse_args()
    results = machine.describe() | {"command": machine.command("benchmarks.weight_transfer"), "piece_bytes": PIECE_BYTES}
    if arguments.in_place is not None:
        print(json.dumps(in_place(arguments.in_place, arguments.rounds)))
        return
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        directory = checkpoint.write_directory(scratch / "llama150m", dict(checkpoint.weights()))
        line = [sys.executable, "-m", "benchmarks.weight_transfer", "--in-place", str(directory)]
        line += ["--rounds", str(arguments.rounds)]
        said = subprocess.run(line, cwd=servers.ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        results["in_place"] = json.loads(said.splitlines()[-1])
        results |= of_server(directory, scratch, arguments.rounds)
        results["model_mb"] = round((directory / "model.safetensors").stat().st_size / 1e6, 1)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
