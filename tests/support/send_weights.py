"""A trainer in a process of its own: it sends a server weights of a seed for a config.json, and prints a line of what came of it.

    python -m tests.support.send_weights URL KEY CONFIG SEED VERSION WHAT...

They are a tree of arrays on devices for each WHAT: "whole" dicts, an nnx "state", or what is wrong with them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
from flax import nnx

from jaxserve.errors import JaxserveError
from jaxserve.rollout.transfer import WeightSender
from tests.support.live import on_devices, random_tensors

SPOILT = "model.layers.0.mlp.up_proj.weight"
PIECE_BYTES = 2000


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = array
    return tree


def spoilt(arrays: dict[str, Any], what: str) -> Any:
    if what == "shape":
        arrays[SPOILT] = arrays[SPOILT].T
    elif what == "nan":
        arrays[SPOILT] = arrays[SPOILT].at[1, 2].set(jnp.nan)
    elif what == "missing":
        del arrays[SPOILT]
    elif what == "state":
        return nnx.State(nested(arrays))
    return nested(arrays)


class _Dies:
    """Kills its process as it sends the fourth piece."""

    def __init__(self) -> None:
        self._pieces = 0

    def __call__(self, request: httpx.Request) -> None:
        self._pieces += request.url.path == "/update_weights"
        if self._pieces == 4:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    url, key, config, seed, version, *wrong = sys.argv[1:]
    for what in wrong:
        arrays = on_devices(random_tensors(json.loads(Path(config).read_text()), int(seed)))
        hooks: list[Any] = [_Dies()] if what == "dies" else []
        with (
            httpx.Client(event_hooks={"request": hooks}) as client,
            WeightSender(url, key, piece_bytes=PIECE_BYTES, client=client) as sender,
        ):
            try:
                print(json.dumps({"version": sender.send(spoilt(arrays, what), int(version))}), flush=True)
            except JaxserveError as error:
                print(json.dumps({"error": error.message}), flush=True)


if __name__ == "__main__":
    main()
