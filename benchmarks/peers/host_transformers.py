"""HF transformers' generate behind HTTP: `PYTHON -m benchmarks.peers.host_transformers DIRECTORY PORT THREADS`.

Needs torch and transformers. Requests that wait are answered together, padded on the left, until the longest of them has ended:
what a service around `generate` does. bfloat16, no prefix cache.
"""

from __future__ import annotations

import queue
import threading

import torch
import transformers

from benchmarks.peers.hosting import Put, arguments, serve

ROWS = 32
Arrival = tuple[list[int], int, Put]


class Engine:
    """The model, and a thread that answers batch after batch."""

    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        """See `Hosted`."""
        self._arrivals.put((prompt, count, put))

    def _run(self) -> None:
        while True:
            batch = [self._arrivals.get()]
            while len(batch) < ROWS and not self._arrivals.empty():
                batch.append(self._arrivals.get())
            self._generate(batch)

    def _generate(self, batch: list[Arrival]) -> None:
        width, count = max(len(prompt) for prompt, _, _ in batch), max(count for _, count, _ in batch)
        tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _, _ in batch])
        with torch.inference_mode():
            self._model.generate(
                tokens,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=0,
                streamer=_Streams(batch),
            )


class _Streams:
    """What `generate` calls with the prompts first and then with a token for each row."""

    def __init__(self, batch: list[Arrival]) -> None:
        self._left = [count for _, count, _ in batch]
        self._puts = [put for _, _, put in batch]
        self._prompts_seen = False

    def put(self, tokens: torch.Tensor) -> None:
        """A step's tokens."""
        if not self._prompts_seen:
            self._prompts_seen = True
            return
        for row, token in enumerate(tokens.reshape(-1).tolist()):
            if self._left[row]:
                self._left[row] -= 1
                self._puts[row]([token])

    def end(self) -> None:
        """The batch has ended."""


def main() -> None:
    """Load and serve."""
    model, port, threads = arguments()
    serve(Engine(model, threads), port)


if __name__ == "__main__":
    main()
