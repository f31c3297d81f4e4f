"""OpenVINO GenAI's continuous batching behind HTTP: `PYTHON -m benchmarks.peers.host_openvino MODEL.gguf PORT THREADS`.

Needs openvino-genai. bfloat16 math, prefix cache on, 1 GB of KV cache; the rest as it comes.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.hosting import Put, arguments, serve

CACHE_GB, ROWS, STEP_TOKENS = 1, 64, 512


class Engine:
    """The pipeline, stepped by a thread of its own."""

    def __init__(self, model: str, threads: int) -> None:
        settings = openvino_genai.SchedulerConfig()
        settings.cache_size, settings.max_num_seqs, settings.max_num_batched_tokens = CACHE_GB, ROWS, STEP_TOKENS
        settings.enable_prefix_caching = True
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", properties)
        self._arrivals: queue.SimpleQueue[tuple[list[int], int, Put]] = queue.SimpleQueue()
        self._running: list[tuple[Any, Put]] = []
        self._number = 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        """See `Hosted`."""
        self._arrivals.put((prompt, count, put))

    def _run(self) -> None:
        while True:
            self._take(wait=not self._running)
            self._pipeline.step()
            for handle, put in self._running:
                while handle.can_read():
                    for output in handle.read().values():
                        put(output.generated_ids)
            if not self._pipeline.has_non_finished_requests():
                self._running.clear()

    def _take(self, *, wait: bool) -> None:
        """Add what has arrived; waits for one where nothing runs."""
        while wait or not self._arrivals.empty():
            prompt, count, put = self._arrivals.get()
            wait = False
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            tokens = openvino.Tensor(np.array([prompt], np.int64))
            self._running.append((self._pipeline.add_request(self._number, tokens, config), put))
            self._number += 1


def main() -> None:
    """Load and serve."""
    model, port, threads = arguments()
    serve(Engine(model, threads), port)


if __name__ == "__main__":
    main()
