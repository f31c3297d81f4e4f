"""The engine's model behind `python -m jaxserve.serve`: clients that stream over HTTP and ask again when an answer has ended.

This process never starts jax: the GPU is the server's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.planner import catalogue

TOKENIZER = Path(__file__).parents[2] / "tests" / "golden" / "data" / "llama3-layout4" / "tokenizer.json"
NEEDED = ("fastapi", "grpc", "httptools", "llguidance", "msgspec", "uvicorn", "zmq")
NAME = "model"
WARM_UP = 1  # answers of each client that are not counted: programs are compiled meanwhile


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Start, then a task for each number of clients."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing or sizes.scratch is None:
        reason = f"not installed: {', '.join(missing)}" if missing else "the run has no scratch directory"
        yield Task({}, lambda: {"skipped": reason})
        return
    from benchmarks.servers import ready  # noqa: PLC0415  (needs packages that a run on a bare machine does without)

    start = time.perf_counter()
    most = max(sizes.clients)
    flags = [*_model(sizes), "--max-num-seqs", str(most), "--max-num-batched-tokens", str(sizes.engine.step_tokens)]
    with ready([*flags, "--before-ready", "fewest", "--no-prefix-caching", "--served-model-name", NAME]) as server:
        seconds = time.perf_counter() - start
        labels = {"model": sizes.server_model}
        yield Task(labels | {"what": "start"}, lambda: {"start_seconds": seconds})
        for clients in sizes.clients:
            case = {"what": "streams", "clients": clients, "context": sizes.engine.context, "output": sizes.answer_tokens}
            yield Task(labels | case, partial(_streams, server.http, sizes, clients))


def _model(sizes: Sizes) -> list[str]:
    """Flags: a directory with the configuration of a planner's shape and weights made from a seed, or a model by its name."""
    config = catalogue.known_config(sizes.server_model)
    if config is None:
        return [sizes.server_model]  # the bundled one
    assert sizes.scratch is not None
    directory = sizes.scratch / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **config}))
    longest = sizes.engine.context + sizes.answer_tokens + 1
    shape = ["--load-format", "dummy", "--tokenizer", str(TOKENIZER), "--dtype", "bfloat16"]
    return [str(directory), *shape, "--max-model-len", str(longest)]


@dataclass(slots=True)
class _Seen:
    """Answers of one client: when each was asked for, when its first token came, and when it ended."""

    times: list[tuple[float, float, float]] = field(default_factory=list)


def _streams(url: str, sizes: Sizes, clients: int) -> Figure:
    import uvloop  # noqa: PLC0415  (comes with the server)

    seen = [_Seen() for _ in range(clients)]
    uvloop.run(_ask_all(url, sizes, seen))
    counted = [times for one in seen for times in one.times[WARM_UP:]]
    began, ended = min(asked for asked, _, _ in counted), max(end for _, _, end in counted)
    first = [came - asked for asked, came, _ in counted]
    between = [(end - came) / (sizes.answer_tokens - 1) for _, came, end in counted]
    return {
        "requests": len(counted),
        "seconds": ended - began,
        "tokens_per_second": len(counted) * sizes.answer_tokens / (ended - began),
        "first_token_seconds": _percentiles(first),
        "seconds_per_token": _percentiles(between),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 99)}


async def _ask_all(url: str, sizes: Sizes, seen: list[_Seen]) -> None:
    from jaxserve.load.connection import Connections  # noqa: PLC0415  (needs httptools)

    connections = Connections(url)
    rng = np.random.default_rng(0)

    async def client(one: _Seen) -> None:
        for _ in range(WARM_UP + sizes.answers):
            prompt = rng.integers(3, 250, sizes.engine.context).tolist()
            body = {"model": NAME, "prompt": prompt, "max_tokens": sizes.answer_tokens, "temperature": 0}
            body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}  # else nothing comes for a token without text
            pieces: list[float] = []
            last = [b""]

            def keep(piece: bytes, now: float, pieces: list[float] = pieces, last: list[bytes] = last) -> None:
                pieces.append(now)
                last[0] = piece

            asked = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            reply = await connections.exchange("POST", "/v1/completions", headers, json.dumps(body).encode(), keep)
            if reply.status != 200 or not last[0].endswith(b"[DONE]\n\n"):
                raise RuntimeError(f"status {reply.status}: {last[0]!r:.300}")
            one.times.append((asked, pieces[0], pieces[-1]))

    await asyncio.gather(*(client(one) for one in seen))
    connections.close()
