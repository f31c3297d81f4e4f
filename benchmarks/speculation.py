"""Guessed tokens: decoding with prompt lookup and with suffixes beside decoding without, of texts that repeat and others.

    python -m benchmarks.speculation [--model llama150m|pico] [--kinds copy turns random] [--sides none ngram suffix]
                                     [--streams 1 4 16 32] [--rounds 9] [--tokens 256]

Each side is an engine of its own in this process; all take turns, so that a busy moment meets them alike. Weights are dummies, so
what is written is chosen for how it repeats:

    copy     greedy, of two tokens only: a text that goes in circles, as a copy of what stands in the prompt does
    turns    drawn, and asked for again with the same seed: the answer came before, as an agent's next turn has much of the last
    random   drawn with new seeds: nothing comes twice

Texts are compared, too: steps of other shapes may round otherwise, which shows where two tokens are as likely. Tokens a second
are the median of rounds, and `against_none` the median of a round's quotients. Writes benchmarks/results/speculation.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.llama150m import write_config
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams

RESULTS = Path(__file__).parent / "results" / "speculation.json"
SIDES: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 3, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6},
}
KINDS = ("copy", "turns", "random")
PROMPT = 48  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama150m", help="llama150m, or pico")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sides", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=256, help="of each stream and round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    report: dict[str, Any] = {
        "machine": machine.describe(),
        "command": machine.command("benchmarks.speculation"),
        "model": given.model,
        "tokens": given.tokens,
        "rounds": given.rounds,
        "sides": SIDES,
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        engines = {side: _engine(given.model, Path(scratch), SIDES[side], max(given.streams)) for side in given.sides}
        for kind in given.kinds:
            for count in given.streams:
                report["rows"].append(_measure(engines, kind, count, rounds=given.rounds, tokens=given.tokens))
                given.out.write_text(json.dumps(report, indent=1) + "\n")  # after each: they take long


def _engine(model: str, scratch: Path, side: dict[str, Any], rows: int) -> LLM:
    settings: dict[str, Any] = {
        "max_num_seqs": rows,
        "max_num_batched_tokens": 512,
        "max_model_len": 512,
        "speculative_config": side,
    }
    if model == "llama150m":
        folder = scratch / model
        return LLM(str(folder if folder.exists() else write_config(folder)), load_format="dummy", **settings)
    return LLM(model, **settings)


def _measure(engines: dict[str, LLM], kind: str, streams: int, *, rounds: int, tokens: int) -> dict[str, Any]:
    """Rounds of all sides, the first of which is not counted: steps are compiled, costs and texts become known."""
    speeds: dict[str, list[float]] = {side: [] for side in engines}
    same: dict[str, list[bool]] = {side: [] for side in engines}
    before = {side: _counted(engine) for side, engine in engines.items()}
    for number in range(rounds + 1):
        texts = {}
        for side in sorted(engines, key=lambda side: (number + list(engines).index(side)) % len(engines)):
            speed, texts[side] = _decode(engines[side], kind, streams, number, tokens)
            if number:
                speeds[side].append(speed)
        first = next(iter(texts.values()))
        for side, text in texts.items():
            same[side] += [ours == its for ours, its in zip(text, first, strict=True)]
    row: dict[str, Any] = {"kind": kind, "streams": streams, "sides": {}}
    for side, engine in engines.items():
        found: dict[str, Any] = {"tokens_per_second": round(statistics.median(speeds[side]), 1)}
        found |= {name: count - before[side][name] for name, count in _counted(engine).items()}
        found["texts_as_the_first_sides"] = round(statistics.mean(same[side]), 3)
        if "none" in engines:
            quotients = [ours / none for ours, none in zip(speeds[side], speeds["none"], strict=True)]
            found["against_none"] = round(statistics.median(quotients), 3)
            found["against_none_range"] = [round(min(quotients), 3), round(max(quotients), 3)]
        row["sides"][side] = found
        print(kind, streams, side, found, flush=True)
    return row


def _decode(engine: LLM, kind: str, streams: int, number: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Tokens a second, and the tokens; prompts are short, and the same of every round but for random text."""
    again = 0 if kind != "random" else 1 + number + 100 * streams  # or what one stream had would come again among four
    prompts: list[Any] = [
        {"prompt_token_ids": [3 + (17 * stream + 29 * again + place * place) % 200 for place in range(PROMPT)]}
        for stream in range(streams)
    ]
    temperature = 0.0 if kind == "copy" else 1.0
    params = [
        SamplingParams(
            max_tokens=tokens,
            temperature=temperature,
            seed=1000 * again + stream,
            ignore_eos=True,
            allowed_token_ids=(5, 6) if kind == "copy" else None,
        )
        for stream in range(streams)
    ]
    started = time.perf_counter()
    outputs = engine.generate(prompts, params)
    seconds = time.perf_counter() - started
    return streams * tokens / seconds, [list(output.outputs[0].token_ids) for output in outputs]


def _counted(engine: LLM) -> dict[str, float]:
    counts = engine._built.core.scheduler.counts()
    return {
        "drafts": counts.spec_decode_num_draft_tokens,
        "accepted": counts.spec_decode_num_accepted_tokens,
        "guessing_seconds": round(counts.spec_decode_seconds, 4),
    }


if __name__ == "__main__":
    main()
