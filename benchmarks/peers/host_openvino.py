"""OpenVINO GenAI's continuous batching behind HTTP: `PYTHON -m benchmarks.peers.host_openvino MODEL.gguf PORT THREADS`.

Needs openvino-genai. bfloat16 math, prefix cache on, 1 GB of KV cache; the rest as it comes.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import threading
from typing import Any

from benchmarks.peers.hosting import Put, arguments, serve


class Engine:
    """The pipeline, in a process of its own: a step keeps Python's lock to its end, and in one process HTTP would wait for it."""

    def __init__(self, model: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        context.Process(target=_run, args=(other, model, threads), daemon=True).start()
        self._pipe.recv()
        self._puts: dict[int, Put] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._read, daemon=True).start()

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        """See `Hosted`."""
        number = next(self._numbers)
        self._puts[number] = put
        self._pipe.send((number, prompt, count))

    def _read(self) -> None:
        while True:
            some, ended = self._pipe.recv()
            for number, tokens in some:
                self._puts[number](tokens)
            for number in ended:
                del self._puts[number]


def _run(*given: Any) -> None:
    """In the other process: this one need not load OpenVINO."""
    importlib.import_module("benchmarks.peers.pipeline_openvino").run(*given)


def main() -> None:
    """Load and serve."""
    model, port, threads = arguments()
    serve(Engine(model, threads), port)


if __name__ == "__main__":
    main()
