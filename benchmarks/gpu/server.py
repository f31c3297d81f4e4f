"""Serve the engine's model with `python -m jaxserve.serve`, and measure clients that stream over HTTP in a closed loop.

This process never starts jax: the GPU belongs to the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.planner import catalogue

if TYPE_CHECKING:
    from jaxserve.load.connection import Connections

TOKENIZER = Path(__file__).parents[2] / "tests" / "golden" / "data" / "llama3-layout4" / "tokenizer.json"
NEEDED = ("fastapi", "grpc", "httptools", "llguidance", "msgspec", "uvicorn", "zmq")
NAME = "model"
WARM_UP = 1  # responses of each client that are not measured: the server still compiles programs
Times = tuple[float, float, float]
"""Of a response: when it was requested, when its first token arrived, and when it ended."""


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Start the server, then measure each number of clients."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing or sizes.scratch is None:
        reason = f"not installed: {', '.join(missing)}" if missing else "the run has no scratch directory"
        yield Task({}, lambda: {"skipped": reason})
        return
    from benchmarks.servers import ready  # noqa: PLC0415  (needs packages that a bare machine may lack)

    start = time.perf_counter()
    limits = ["--max-num-seqs", str(max(sizes.clients)), "--max-num-batched-tokens", str(sizes.engine.step_tokens)]
    flags = ["--before-ready", "fewest", "--no-prefix-caching", "--attention-kernel", sizes.engine.kernel]
    with ready([*_model(sizes), *limits, *flags, "--served-model-name", NAME]) as server:
        seconds = time.perf_counter() - start
        labels = {"model": sizes.server_model}
        yield Task(labels | {"what": "start"}, lambda: {"start_seconds": seconds})
        for clients in sizes.clients:
            case = {"what": "streams", "clients": clients, "context": sizes.engine.context, "output": sizes.output_tokens}
            yield Task(labels | case, partial(_streams, server.http, sizes, clients))


def _model(sizes: Sizes) -> list[str]:
    """Flags for a shape that the planner knows, with dummy weights, or for the bundled model."""
    config = catalogue.known_config(sizes.server_model)
    if config is None:
        return [sizes.server_model]
    assert sizes.scratch is not None
    directory = sizes.scratch / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **config}))
    longest = sizes.engine.context + sizes.output_tokens + 1
    shape = ["--load-format", "dummy", "--tokenizer", str(TOKENIZER), "--dtype", "bfloat16"]
    return [str(directory), *shape, "--max-model-len", str(longest)]


def _streams(url: str, sizes: Sizes, clients: int) -> Figure:
    import uvloop  # noqa: PLC0415  (comes with the server)

    times = uvloop.run(_request_all(url, sizes, clients))
    start, end = min(requested for requested, _, _ in times), max(ended for _, _, ended in times)
    return {
        "requests": len(times),
        "seconds": end - start,
        "tokens_per_second": len(times) * sizes.output_tokens / (end - start),
        "first_token_seconds": _percentiles([first - requested for requested, first, _ in times]),
        "seconds_per_token": _percentiles([(ended - first) / (sizes.output_tokens - 1) for _, first, ended in times]),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 99)}


async def _request_all(url: str, sizes: Sizes, clients: int) -> list[Times]:
    """Run the clients at once, each sending a request when its last one has ended. Returns the times of measured responses."""
    from jaxserve.load.connection import Connections  # noqa: PLC0415  (needs httptools)

    connections, rng = Connections(url), np.random.default_rng(0)

    async def client() -> list[Times]:
        times = [await _request(connections, sizes, rng) for _ in range(WARM_UP + sizes.responses)]
        return times[WARM_UP:]

    measured = await asyncio.gather(*(client() for _ in range(clients)))
    connections.close()
    return [times for one in measured for times in one]


async def _request(connections: Connections, sizes: Sizes, rng: np.random.Generator) -> Times:
    """Stream one completion of a random prompt. Raises RuntimeError if it fails or breaks off."""
    prompt = rng.integers(3, 250, sizes.engine.context).tolist()
    body = {"model": NAME, "prompt": prompt, "max_tokens": sizes.output_tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}  # without ids the server sends no event for a token without text
    arrivals: list[float] = []
    last = b""

    def on_body(piece: bytes, now: float) -> None:
        nonlocal last
        arrivals.append(now)
        last = piece

    requested = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    reply = await connections.exchange("POST", "/v1/completions", headers, json.dumps(body).encode(), on_body)
    if reply.status != 200 or not last.endswith(b"[DONE]\n\n"):
        raise RuntimeError(f"status {reply.status}: {last!r:.300}")
    return requested, arrivals[0], arrivals[-1]
