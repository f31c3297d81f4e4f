"""How fast weights load, against how fast the disk reads, and how much memory that takes: safetensors and Orbax, on a CPU device.

    python -m benchmarks.loading [--gb 4] [--rounds 3] [--directory /tmp]

Makes a random Llama of the given size in a temporary directory of `--directory`, which needs twice that size, and takes it
away at the end. Everything is measured in a process of its own. "Cold" is after the files were taken out of the page cache
(posix_fadvise). The disk's rate is that of as many threads as the loader has, which read the same files in large pieces into
the same memory, and do nothing else. "New memory" is how fast as many threads write to as much memory as the parameters take,
which loading has to do as well: virtual machines may get that memory from their host only then.

Parameters are made as the engine holds them: packed for native kernels where these are built. "Plain" are those that are not
packed, as for other devices. Peaks of memory are over what the process had before it loaded, parameters included: on CPU
devices the host holds them. Processor seconds are of user and system together. Writes benchmarks/results/loading.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks import machine
from jaxserve.executor.platform import choose_platform
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.weights import load
from jaxserve.weights.formats import LoadFormat
from jaxserve.weights.load import READERS, load_params
from jaxserve.weights.packed import Packer
from pallas_kernels import native
from sharding import make_mesh

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "loading.json"
_PIECE = 2**23  # bytes that the raw reading takes at a time
_FILE = 10**9  # bytes of a safetensors file
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 7168,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def write_model(directory: Path, size: float) -> int:
    """A random Llama of about so many bytes in bfloat16; returns how many."""
    layers = 1
    while decoder_config({**_CONFIG, "num_hidden_layers": layers + 1}).num_parameters * 2 <= size:
        layers += 1
    directory.mkdir(parents=True)
    config = {**_CONFIG, "num_hidden_layers": layers}
    (directory / "config.json").write_text(json.dumps(config))
    sources = [source for rule in weight_rules(decoder_config(config)) for source in rule.sources]
    weight_map: dict[str, str] = {}
    random, tensors, held, total = np.random.default_rng(0), {}, 0, 0
    for source in sources:
        bits = random.integers(0, 2**16, source.shape, np.uint16) & 0xBFFF  # below 2 in size
        tensors[source.name] = bits.view(ml_dtypes.bfloat16)
        held, total = held + bits.nbytes, total + bits.nbytes
        if held >= _FILE or source is sources[-1]:
            name = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
            save_file(tensors, directory / name)
            weight_map |= dict.fromkeys(tensors, name)
            tensors, held = {}, 0
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


def forget(directory: Path) -> None:
    """Take every file out of the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_raw(directory: Path) -> dict[str, float]:
    """Read every byte of every file, and nothing else."""
    files = [(path, path.stat().st_size) for path in directory.rglob("*") if path.is_file()]
    share = 2**26  # consecutive bytes that one thread reads
    parts = [(path, first, min(first + share, size)) for path, size in files for first in range(0, size, share)]
    started, worked = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(READERS) as pool:
        done = sum(pool.map(lambda part: _read_part(*part), parts))
    return {"seconds": time.monotonic() - started, "processor_seconds": time.process_time() - worked, "bytes": done}


def _read_part(path: Path, first: int, end: int) -> int:
    buffer = memoryview(bytearray(_PIECE))
    descriptor, at = os.open(path, os.O_RDONLY), first
    while at < end:
        at += os.preadv(descriptor, [buffer[: end - at]], at)
    os.close(descriptor)
    return at - first


def touch(size: int) -> dict[str, float]:
    """Write to so many bytes of new memory, with as many threads as the loader has, and do nothing else."""
    share = 2**26
    started, worked = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(READERS) as pool:
        held = list(pool.map(lambda first: np.full(min(share, size - first), 1, np.uint8), range(0, size, share)))
    done = sum(part.nbytes for part in held)
    return {"seconds": time.monotonic() - started, "processor_seconds": time.process_time() - worked, "bytes": done}


def load_model(directory: Path, load_format: LoadFormat, *, checks: bool, packs: bool, verify: bool) -> dict[str, float]:
    """Load, and say how long it took and what memory."""
    choose_platform()
    config = decoder_config(read_hf_config(directory))
    mesh = make_mesh(1)
    jax.block_until_ready(jax.device_put(np.ones(8), mesh.devices.flat[0]))
    packer = Packer(config, mesh) if packs else None
    if not checks:
        patch.object(load, "is_finite", lambda block: True).start()
    before = _memory("VmRSS")
    started, worked = time.monotonic(), time.process_time()
    params = load_params(directory, config, mesh, "bfloat16", load_format=load_format, verify=verify, packer=packer)
    seconds, processor = time.monotonic() - started, time.process_time() - worked
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    peak = _memory("VmHWM") - before
    return {"seconds": seconds, "processor_seconds": processor, "bytes": size, "peak_bytes": peak}


def _memory(name: str) -> int:
    """Bytes of this process, as Linux counts them: "VmRSS" now, "VmHWM" at most so far."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def measured(directory: Path, *arguments: str) -> dict[str, float]:
    """One of the three above in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loading", "--measure", str(directory), *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    answer: dict[str, float] = json.loads(output.splitlines()[-1])
    return answer


def rates(times: list[dict[str, float]]) -> dict[str, Any]:
    """GB/s: the median, and all of them; and the fewest processor seconds for a GB."""
    found = [one["bytes"] / one["seconds"] / 1e9 for one in times]
    processor = min(one["processor_seconds"] / one["bytes"] * 1e9 for one in times)
    median = round(statistics.median(found), 3)
    return {"gb_per_s": median, "all": [round(rate, 3) for rate in found], "processor_s_per_gb": round(processor, 2)}


def study(directory: Path, size: float, rounds: int) -> dict[str, Any]:
    """Measure both formats, in turns with the disk."""
    model, orbax = directory / "safetensors", directory / "orbax"
    total = write_model(model, size)
    subprocess.run([sys.executable, "-m", "jaxserve.convert", str(model), str(orbax)], cwd=ROOT, check=True)
    formats = {"safetensors": model, "orbax": orbax}
    raw: dict[str, list[dict[str, float]]] = {name: [] for name in formats}
    loads: dict[str, list[dict[str, float]]] = {name: [] for name in formats}
    new_memory = []
    for _ in range(rounds):
        new_memory.append(measured(model, "touch", "--bytes", str(total)))
        for name, place in formats.items():
            forget(place)
            raw[name].append(measured(place, "raw"))
            forget(place)
            loads[name].append(measured(place, name))
    warm = {kind: [measured(model, "safetensors", *flags) for _ in range(rounds)] for kind, flags in _WARM.items()}
    verified = [measured(orbax, "orbax", "--verify") for _ in range(rounds)]
    report: dict[str, Any] = {
        "checkpoint_bytes": total,
        "rounds": rounds,
        "readers": READERS,
        "native_kernels": native.missing() is None,
    }
    report["new_memory"], report["cold"] = rates(new_memory), {}
    for name in formats:
        disk, loading = rates(raw[name]), rates(loads[name])
        peak = max(one["peak_bytes"] for one in loads[name])
        report["cold"][name] = {
            "disk": disk,
            "load": loading,
            "share_of_disk": round(loading["gb_per_s"] / disk["gb_per_s"], 3),
            "load_seconds": round(statistics.median(one["seconds"] for one in loads[name]), 2),
            "peak_over_checkpoint": round(peak / total, 3),
            "peak_beside_parameters_bytes": int(peak - total),
        }
    report["warm"] = {kind: rates(times) for kind, times in warm.items()} | {"orbax_verified": rates(verified)}
    checked, unchecked = (report["warm"][kind]["gb_per_s"] for kind in ("checked", "unchecked"))
    report["finite_check_share"] = round(1 - checked / unchecked, 3)
    return report


_WARM: dict[str, tuple[str, ...]] = {"checked": (), "unchecked": ("--unchecked",), "plain": ("--plain",)}


def main() -> None:
    """Run the study, or one measurement of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=4.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured")
    parser.add_argument("--directory", default=None, help="where the temporary directory is made; the system's place by default")
    parser.add_argument("--output", default=str(RESULTS), help="file for the results")
    parser.add_argument("--measure", nargs=2, metavar=("DIRECTORY", "WHAT"), help=argparse.SUPPRESS)
    parser.add_argument("--unchecked", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--verify", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        place, what = Path(given.measure[0]), given.measure[1]
        options = {"checks": not given.unchecked, "packs": not given.plain, "verify": given.verify}
        match what:
            case "raw":
                answer = read_raw(place)
            case "touch":
                answer = touch(given.bytes)
            case _:
                answer = load_model(place, what, **options)
        print(json.dumps(answer))
        return
    with tempfile.TemporaryDirectory(dir=given.directory) as scratch:
        report = study(Path(scratch), given.gb * 1e9, given.rounds)
    command = f"python -m benchmarks.loading --gb {given.gb:g} --rounds {given.rounds}"
    Path(given.output).write_text(json.dumps({**machine.describe(), "command": command, **report}, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
