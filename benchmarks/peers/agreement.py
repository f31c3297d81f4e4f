"""Whether speed changed an answer: outputs of the measured runs against what the model must say, and HF transformers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.batch_requests import VOCABULARY, word
from benchmarks.peers.clients import Stream
from benchmarks.peers.decisive import continuation
from benchmarks.peers.engines import ROOT

TOKENS = 64


def wrong_tokens(stream: Stream) -> int:
    """How many tokens of an output are not what the benchmark model says after the prompt."""
    expected = "".join(map(word, continuation(stream.request.prompt, stream.request.output)))
    size = len(word(0))
    return sum(stream.text[at : at + size] != expected[at : at + size] for at in range(0, len(expected), size))


def agreement(python: str, directory: str, dtype: str, streams: Mapping[str, Sequence[Stream]]) -> dict[str, Any]:
    """For each workload: tokens compared, tokens that are not the best ones, and the largest gap between logits.

    Args:
        python: interpreter with torch and transformers.
        directory: the checkpoint.
        dtype: in which transformers computes.
        streams: some of each workload; the first 64 tokens of each are compared.

    `gap` is in units of the deviation of the logits: those of bfloat16 are exact to about a hundredth of it.
    """
    tokens = {word(token): token for token in range(VOCABULARY)}
    jobs = [
        {"prompt": stream.request.prompt, "output": _tokens(stream.text, tokens)[:TOKENS]}
        for some in streams.values()
        for stream in some
    ]
    done = subprocess.run(
        [python, "-m", "benchmarks.peers.reference", directory, dtype],
        cwd=ROOT,
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    answers = iter(json.loads(done.stdout))
    made = {}
    for workload, some in streams.items():
        found = [next(answers) for _ in some]
        gaps = [gap / one["deviation"] for one in found for gap in one["gaps"]]
        made[workload] = {"tokens": len(gaps), "others": sum(gap > 0 for gap in gaps), "gap": max(gaps)}
    return made


def _tokens(text: str, known: Mapping[str, int]) -> list[int]:
    size = len(next(iter(known)))
    return [known[text[at : at + size]] for at in range(0, len(text), size)]
