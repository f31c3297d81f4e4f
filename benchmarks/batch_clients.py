"""Clients of the batch benchmark, as a process of their own: send the lines of a batch file to a server, so many at a time.

    python -m benchmarks.batch_clients http://127.0.0.1:8000 requests.jsonl 32 [batch]

Each of the clients sends its next line when its last one was answered, without streaming: the cheapest way to ask a server. With
a fourth argument, requests say that they are of this service class. Prints {"seconds": ..., "output_tokens": ...} as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop

_REFUSALS = (429, 503, 504)  # not now, or it waited too long: such a line is sent again when the server says so


async def send(base_url: str, lines: list[dict[str, Any]], clients: int) -> int:
    """Send every line; returns the output tokens. Raises httpx.HTTPStatusError for one that cannot be answered."""
    waiting = iter(lines)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=base_url, timeout=None, limits=limits) as http:
        counts = await asyncio.gather(*(_client(http, waiting) for _ in range(clients)))
    return sum(counts)


async def _client(http: httpx.AsyncClient, waiting: Iterator[dict[str, Any]]) -> int:
    tokens = 0
    for line in waiting:
        while (answer := await http.post(line["url"], json=line["body"])).status_code in _REFUSALS:
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        answer.raise_for_status()
        tokens += answer.json()["usage"]["completion_tokens"]
    return tokens


def main() -> None:
    """Send and say how long it took."""
    base_url, path, clients, *service_class = sys.argv[1:]
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for line in lines:
        line["body"] |= {"service_class": service_class[0]} if service_class else {}
    start = time.perf_counter()
    tokens = uvloop.run(send(base_url, lines, int(clients)))
    print(json.dumps({"seconds": time.perf_counter() - start, "output_tokens": tokens}))


if __name__ == "__main__":
    main()
