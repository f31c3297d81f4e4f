"""Multiple choice: pairs a second of `LLM.loglikelihood` beside a request for each pair that asks for `prompt_logprobs`.

    python -m benchmarks.likelihood [--documents 64] [--rounds 5]

The model is the one of 150M parameters, with dummy weights; each document has four choices. `letters` have one token each behind
a context of 400, as MMLU asks with examples, and are the likeliest ones, as letters are to a model that knows what it is asked;
`sentences` have 20 behind 80, as HellaSwag; `words` have 4 behind 30, as ARC. Both ways have the pairs in the order of their
documents, an empty prefix cache at each round, and turns in one process. `against_requests` is the median of the rounds'
quotients. Writes benchmarks/results/likelihood.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.llama150m import CONFIG, write_config
from jaxserve import LLM, SamplingParams

RESULTS = Path(__file__).parent / "results" / "likelihood.json"
SHAPES = {"letters": (400, 1), "sentences": (80, 20), "words": (30, 4)}
CHOICES = 4

Pairs = list[tuple[list[int], list[int]]]


def draw(rng: np.random.Generator, documents: int, context: int, continuation: int) -> Pairs:
    """Pairs of random tokens, document by document."""
    found: Pairs = []
    for _ in range(documents):
        shared = rng.integers(3, CONFIG["vocab_size"], context).tolist()
        found += [(shared, rng.integers(3, CONFIG["vocab_size"], continuation).tolist()) for _ in range(CHOICES)]
    return found


def likeliest(llm: LLM, pairs: Pairs) -> Pairs:
    """The same contexts, each with continuations of the tokens that are likeliest behind it."""
    contexts: list[Any] = [{"prompt_token_ids": context} for context, _ in pairs[::CHOICES]]
    outputs = llm.generate(contexts, SamplingParams(max_tokens=1, logprobs=CHOICES, temperature=0.0), use_tqdm=False)
    found: Pairs = []
    for output in outputs:
        assert output.outputs[0].logprobs is not None
        found += [(output.prompt_token_ids, [token]) for token in list(output.outputs[0].logprobs[0])[:CHOICES]]
    return found


def requests(llm: LLM, pairs: Pairs) -> list[float]:
    """A request a pair."""
    prompts: list[Any] = [{"prompt_token_ids": context + continuation} for context, continuation in pairs]
    starts = [SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(context)) for context, _ in pairs]
    found = []
    for output, (context, continuation) in zip(llm.generate(prompts, starts, use_tqdm=False), pairs, strict=True):
        assert output.prompt_logprobs is not None
        rows = zip(continuation, output.prompt_logprobs[len(context) :], strict=True)
        found.append(sum(row[token].logprob for token, row in rows if row is not None))
    return found


def likelihoods(llm: LLM, pairs: Pairs) -> list[float]:
    return [output.logprob for output in llm.loglikelihood(pairs, use_tqdm=False)]


def measure(llm: LLM, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Rounds of both, the first of which is not counted."""
    rng, rounds = np.random.default_rng(0), []
    for number in range(given.rounds + 1):
        pairs = draw(rng, given.documents, *SHAPES[name])
        pairs = likeliest(llm, pairs) if name == "letters" else pairs
        speeds, values = {}, []
        for way in [requests, likelihoods][:: 1 if number % 2 else -1]:
            llm.reset_prefix_cache()
            begin = time.perf_counter()
            values.append(way(llm, pairs))
            speeds[way.__name__] = len(pairs) / (time.perf_counter() - begin)
        np.testing.assert_allclose(values[0], values[1], atol=1e-3)
        if number:
            rounds.append(speeds)
            print(name, json.dumps(speeds), flush=True)
    quotients = [one["likelihoods"] / one["requests"] for one in rounds]
    return {"name": name, "pairs_per_s": rounds, "against_requests": machine.median(quotients)}


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.likelihood")}
    with tempfile.TemporaryDirectory() as scratch:
        model = write_config(Path(scratch) / "llama150m")
        llm = LLM(
            str(model), load_format="dummy", max_num_seqs=32, max_num_batched_tokens=512, max_model_len=512, dtype="float32"
        )
        report["runs"] = [measure(llm, name, given) for name in SHAPES]
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
