"""Host time of submitting a step, by how many arrays its weights are: each norm an array, or all of them one.

    python -m benchmarks.step_leaves [--model llama-3-70b] [--devices 8] [--calls 2000]

A program takes as many arrays as the model's step has, divided as the weights are but tiny, and does next to nothing with them:
what is timed is jax on its way to the devices, which are CPUs of this process. Both trees are timed in turns; the time is that of
the call alone, and the next one begins when the devices are done. The ratio is the median over rounds of what the second takes
of the first's time: on a machine that others use too, it is worth more than microseconds. Writes
benchmarks/results/step_leaves.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import machine
from jaxserve.aot.shapes import known_decoder
from jaxserve.executor.flat_params import FlatParams
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.abstract import placed_params
from sharding import make_mesh

RESULTS = Path(__file__).parent / "results" / "step_leaves.json"
STATE, ROUND, WARM = 5, 50, 4
"""Arrays of a step besides weights; calls of one tree before it is the other's turn; rounds not counted."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-70b", help="a shape that jaxserve.plan knows")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--calls", type=int, default=2000, help="of each tree")
    settings = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", settings.devices)
    mesh, config = make_mesh(settings.devices), known_decoder(settings.model)
    one = placed_params(config, mesh, "bfloat16")
    trees = {"a norm an array": _norms_apart(one, config, mesh), "norms one array": one}
    submits = {name: Submit(tree, mesh) for name, tree in trees.items()}
    rounds = _measure(submits, settings.calls)
    figures = {name: _figure(submits[name].arrays, rounds[name]) for name in trees}
    first, second = ([machine.median(times) for times in each] for each in rounds.values())
    ratio = machine.median([after / before for before, after in zip(first, second, strict=True)])
    for name, figure in figures.items():
        print(f"{name}: {figure['arrays']} arrays, {figure['median_us']:.0f} us")
    print(f"ratio: {ratio:.2f}")
    about = {"command": machine.command("benchmarks.step_leaves"), "machine": machine.describe()}
    RESULTS.write_text(json.dumps(about | {"figures": figures, "ratio": ratio}, indent=1) + "\n")
    return 0


class Submit:
    """A program that takes the weights of a tree, shrunk, and a state that is donated."""

    def __init__(self, tree: Params, mesh: Mesh) -> None:
        params = FlatParams.of(jax.tree.map(_shrunk, tree))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._state = [jax.device_put(jnp.zeros(8, jnp.int32), everywhere) for _ in range(STATE)]
        self.arrays = len(jax.tree.leaves(params)) + STATE

        def step(params: FlatParams, state: list[jax.Array]) -> list[jax.Array]:
            return state

        jitted = jax.jit(step, donate_argnums=1, keep_unused=True, out_shardings=everywhere)
        compiled: Any = jitted.lower(params, self._state).compile()
        self._call: Callable[[list[jax.Array]], list[jax.Array]] = partial(compiled, params)

    def seconds(self) -> float:
        """Of one call, until it returns."""
        started = time.perf_counter()
        self._state = self._call(self._state)
        taken = time.perf_counter() - started
        jax.block_until_ready(self._state)
        return taken


def _measure(submits: dict[str, Submit], calls: int) -> dict[str, list[list[float]]]:
    """Seconds of each call, by round."""
    taken: dict[str, list[list[float]]] = {name: [] for name in submits}
    for _ in range(WARM + calls // ROUND):
        for name, submit in submits.items():
            taken[name].append([submit.seconds() for _ in range(ROUND)])
    return {name: rounds[WARM:] for name, rounds in taken.items()}


def _figure(arrays: int, rounds: list[list[float]]) -> dict[str, Any]:
    times = [seconds for times in rounds for seconds in times]
    fastest = float(np.quantile(times, 0.1))
    return {"arrays": arrays, "median_us": machine.median(times) * 1e6, "fastest_tenth_us": fastest * 1e6}


def _norms_apart(params: Params, config: DecoderConfig, mesh: Mesh) -> Params:
    """The same weights with an array for each norm."""
    stacked = params["norms"]["scale"]
    each = jax.ShapeDtypeStruct(stacked.shape[1:], stacked.dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    count = len(config.layer_norms) + 1
    return {**params, "norms": {str(number): each for number in range(count)}}


def _shrunk(leaf: Any) -> jax.Array:
    """An array that is divided as the leaf is, with one number on each device."""
    mesh, spec = leaf.sharding.mesh, leaf.sharding.spec
    sizes = []
    for axis in range(len(leaf.shape)):
        names = spec[axis] if axis < len(spec) else None
        names = () if names is None else (names,) if isinstance(names, str) else names
        sizes.append(int(np.prod([mesh.shape[name] for name in names], dtype=int)))
    array: jax.Array = jax.device_put(jnp.zeros(sizes, leaf.dtype), leaf.sharding)
    return array


if __name__ == "__main__":
    sys.exit(main())
