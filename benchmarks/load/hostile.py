"""A hostile client: bodies that try to stop a server, one after the other, in a process that ends with its parent.

    python -m benchmarks.load.hostile URL REPORT [--clients 2] [--only ATTACK | --ordinary REQUESTS_PER_SECOND]

Each client sends the attacks of ATTACKS in turn, then mutated copies of ordinary bodies, and begins again; with `--only`, one
attack. With `--ordinary` the process sends ordinary requests at a fixed rate instead: the baseline that a run with attacks is
compared with. REPORT is a JSON file with the number of requests and of each status, rewritten every few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.load.files import write

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.2  # between two requests of one client, so that attacks and not their number are measured
MUTATED = 10  # bodies after each round of attacks
_REPORT_SECONDS = 5.0
_TENANT = {"X-Tenant": "hostile"}

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Body = Callable[[Random], tuple[str, bytes]]  # a path and what is posted there; nothing asks with GET


def _completion(**fields: Any) -> tuple[str, bytes]:
    return COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 4, **fields}).encode()


def _constrained(**constraint: Any) -> tuple[str, bytes]:
    return _completion(structured_outputs=constraint)


def _huge_bound(random: Random) -> tuple[str, bytes]:
    """A bound that no float holds, on an array that has no elements."""
    digits = "1" + "0" * random.randint(300, 4000)
    return _constrained(json='{"type":"array","minItems":' + digits + ',"items":false}')


def _long_reference(random: Random) -> tuple[str, bytes]:
    index = "9" * random.randint(4000, 6000)
    return _constrained(json='{"allOf":[{"type":"integer"}],"$ref":"#/allOf/' + index + '"}')


def _surrogate_key(random: Random) -> tuple[str, bytes]:
    half = f"\\ud8{random.randrange(256):02x}"
    return _constrained(structural_tag='{"type":"structural_tag","format":{"type":"const_string","value":"x","' + half + '":1}}')


def _nested_tag(random: Random) -> tuple[str, bytes]:
    """Two ends for each tag: written out, the grammar doubles with each level."""
    form: dict[str, Any] = {"type": "const_string", "value": "x"}
    for _ in range(random.randint(14, 30)):
        form = {"type": "tag", "begin": "<a>", "content": form, "end": ["</a>", "</b>"]}
    return _constrained(structural_tag=json.dumps({"type": "structural_tag", "format": form}))


def _overlapping_options(random: Random) -> tuple[str, bytes]:
    """Every pair of options must be told apart, and each takes a walk."""
    n = random.randint(60, 200)
    definitions = {"c": {"allOf": [{"$ref": "#/$defs/d"}] * n}, "d": {"allOf": [{"enum": ["u", "v"]}] * n}}
    return _constrained(json={"$defs": definitions, "oneOf": [{"allOf": [{"$ref": "#/$defs/c"}, {"const": x}]} for x in "uv"]})


def _many_patterns(random: Random) -> tuple[str, bytes]:
    """An intersection of automata that is exponential in its number of states."""
    patterns = [{"pattern": f".*a.{{{k}}}b.*"} for k in range(random.randint(12, 30))]
    return _constrained(json={"type": "string", "allOf": patterns})


def _long_repeat(random: Random) -> tuple[str, bytes]:
    inner, outer = (f"{{1,{random.randint(1000, 30000)}}}" for _ in range(2))
    return _constrained(regex=f"(a{inner}b){outer}")


def _wide_schema(random: Random) -> tuple[str, bytes]:
    names = [f"p{random.randrange(10**9)}" for _ in range(1900)]
    properties = {name: {"type": "string"} for name in names}
    return _constrained(json={"type": "object", "properties": properties, "required": names})


def _deep_body(random: Random) -> tuple[str, bytes]:
    depth = random.randint(100, 100_000)
    return _completion()[0], b'{"prompt":"x","extra":' + b"[" * depth + b"]" * depth + b"}"


def _hostile_tool(random: Random) -> tuple[str, bytes]:
    parameters = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "array", "minItems": 10**400, "items": False}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    messages = [{"role": "user", "content": "x"}]
    return CHAT, json.dumps({"messages": messages, "tools": tools, "tool_choice": "required", "max_tokens": 4}).encode()


def _control_tokens(random: Random) -> tuple[str, bytes]:
    content = "<|end|><|system|>" * random.randint(1, 50)
    return CHAT, json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}).encode()


def _spaces(random: Random) -> tuple[str, bytes]:
    """A response that is nothing but one token again and again, read by the tool-call parser."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    fields = {"allowed_token_ids": [random.randrange(16, 900)], "ignore_eos": True, "tools": tools, "max_tokens": 64}
    return CHAT, json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


def _long_path(random: Random) -> tuple[str, bytes]:
    return "/v1/load_lora_adapter", json.dumps({"lora_name": "x", "lora_path": "a/" * random.randint(1000, 5000)}).encode()


def _negative_count(random: Random) -> tuple[str, bytes]:
    return "/rerank", json.dumps({"query": "x", "documents": ["y"] * 50, "top_n": -random.randint(1, 99)}).encode()


def _long_pooled(random: Random) -> tuple[str, bytes]:
    return "/pooling", json.dumps({"input": ["x " * random.randint(100, 1000)] * 50, "task": "token_embed"}).encode()


def _all_logprobs(random: Random) -> tuple[str, bytes]:
    return _completion(
        prompt="x " * random.randint(50, 150), logprobs=20, prompt_logprobs=20, n=4, temperature=1.0, max_tokens=32
    )


def _open_page(random: Random) -> tuple[str, bytes]:
    return random.choice(("/metrics", "/docs", "/openapi.json", "/v1/models")), b""


def _disconnected(random: Random) -> tuple[str, bytes]:
    return _completion(max_tokens=200, stream=True, n=4, temperature=1.0)


ATTACKS: tuple[Body, ...] = (
    *(_huge_bound, _long_reference, _surrogate_key, _nested_tag, _overlapping_options, _many_patterns, _long_repeat),
    *(_wide_schema, _deep_body, _hostile_tool, _control_tokens, _spaces, _disconnected),
    *(_long_path, _negative_count, _long_pooled, _all_logprobs, _open_page),
)


def _mutated(random: Random) -> tuple[str, bytes]:
    """An ordinary body with one value replaced by an odd one, or with bytes changed."""
    messages = [{"role": "user", "content": "What is 17 + 25?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 4, "temperature": 0.5, "stop": ["x"], "seed": 1, "logprobs": True}
    odd: tuple[Any, ...] = (None, True, -1, 2**63, 1e308, "", "\x00", [], {}, [[]] * 50, "a" * 10_000, {"a": {"a": {}}})
    body[random.choice(list(body))] = random.choice(odd)
    raw = bytearray(json.dumps(body).encode())
    for _ in range(random.randrange(3)):
        raw[random.randrange(len(raw))] = random.randrange(256)
    return CHAT, bytes(raw)


BY_NAME: dict[str, Body] = {make.__name__.strip("_"): make for make in (*ATTACKS, _mutated)}


def _ordinary(random: Random) -> tuple[str, bytes]:
    return _completion(prompt=f"{random.random()} hello there", max_tokens=random.choice((8, 16, 32)), ignore_eos=True)


class Hostile:
    """The clients of one process.

    Args:
        url: of the server.
        report: file for the counts.
    """

    def __init__(self, url: str, report: Path) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, timeout=PATIENCE_SECONDS, headers=_TENANT, limits=httpx.Limits(max_connections=None)
        )
        self._report = report
        self._statuses: dict[str, Counter[str]] = {}
        self._begin = time.monotonic()
        self._written = 0.0

    async def attack(self, seed: int, only: str | None) -> None:
        """Send attacks and mutated bodies in turn, or one attack again and again, without end."""
        random = Random(f"hostile {seed}")
        while True:
            every = (*random.sample(ATTACKS, len(ATTACKS)), *[_mutated] * MUTATED)
            for make in every if only is None else (BY_NAME[only],):
                await self._send(make, random)
                await asyncio.sleep(PAUSE_SECONDS)

    async def ask(self, rate: float) -> None:
        """Send ordinary requests at random times, without end."""
        random, asked = Random("ordinary"), set()
        while True:
            await asyncio.sleep(random.expovariate(rate))
            task = asyncio.create_task(self._send(_ordinary, random))
            asked.add(task)
            task.add_done_callback(asked.discard)

    async def _send(self, make: Body, random: Random) -> None:
        path, content = make(random)
        status = "?"
        try:
            verb, headers = "POST" if content else "GET", {"Content-Type": "application/json"}
            async with self._client.stream(verb, path, content=content, headers=headers) as reply:
                status = str(reply.status_code)
                if make is not _disconnected:
                    await reply.aread()
        except httpx.HTTPError as error:
            status = type(error).__name__
        self._statuses.setdefault(make.__name__.strip("_"), Counter())[status] += 1
        if time.monotonic() > self._written + _REPORT_SECONDS:
            self._written = time.monotonic()
            counts = {name: dict(of) for name, of in self._statuses.items()}
            total = sum(sum(of.values()) for of in counts.values())
            seconds = round(time.monotonic() - self._begin, 1)
            write(self._report, {"requests": total, "seconds": seconds, "statuses": counts})


@contextmanager
def hostile(url: str, report: Path, clients: int, ordinary: float | None = None, only: str | None = None) -> Iterator[None]:
    """The process, ended at the end."""
    command = [sys.executable, "-m", "benchmarks.load.hostile", url, str(report), "--clients", str(clients)]
    chosen = ["--ordinary", str(ordinary)] if ordinary is not None else ["--only", only] if only is not None else []
    process = subprocess.Popen([*command, *chosen])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _run(given: argparse.Namespace) -> None:
    parent, one = os.getppid(), Hostile(given.url, given.report)
    attacks = [one.attack(seed, given.only) for seed in range(given.clients)]
    work = attacks if given.ordinary is None else [one.ask(given.ordinary)]
    tasks = [asyncio.create_task(each) for each in work]
    while os.getppid() == parent and not any(task.done() for task in tasks):
        await asyncio.sleep(1.0)
    for task in tasks:
        if task.done():
            task.result()


def main() -> None:
    """Run until the parent ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("report", type=Path)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--only", choices=BY_NAME, metavar="ATTACK", help=", ".join(BY_NAME))
    parser.add_argument("--ordinary", type=float, help="ordinary requests per second instead of attacks")
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
