"""What a schema costs an engine: constrained rows beside free ones, in one run, in turns, on a vocabulary of 128K tokens.

    python -m benchmarks.structured_engine [--rows 1 16 64] [--repeats 3]

The model is the 150M one with a larger vocabulary and weights of a seed, so that it writes whatever the schema leaves. For every
number of rows: tokens a second of free rows, of constrained rows, and of constrained rows that are never forced (they ask for
log-probabilities), with the time that the engine's thread waited for masks. Writes benchmarks/results/structured_engine.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks import llama150m, machine
from jaxserve import LLM, SamplingParams, StructuredOutputsParams
from jaxserve.commands import wide_console
from jaxserve.types import TokensPrompt

VOCABULARY, PROMPT, OUTPUT = 128_000, 64, 96
RESULTS = Path(__file__).parent / "results" / "structured_engine.json"
SCHEMA = {
    "type": "array",
    "minItems": 50,
    "items": {
        "type": "object",
        "properties": {
            "customer_name": {"type": "string", "maxLength": 24},
            "quantity": {"type": "integer", "minimum": 0, "maximum": 9999},
            "shipping_method": {"enum": ["standard", "express", "pick_up"]},
        },
        "required": ["customer_name", "quantity", "shipping_method"],
        "additionalProperties": False,
    },
}
FORM = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
KINDS: dict[str, dict[str, Any]] = {
    "free": {"ignore_eos": True},
    "constrained": {"structured_outputs": FORM},
    "never forced": {"structured_outputs": FORM, "logprobs": 0},
}


def write_model(directory: Path) -> Path:
    """A checkpoint without weights, whose tokens are all bytes and pairs of shorter tokens drawn at random."""
    llama150m.write_config(directory)
    config = {**llama150m.CONFIG, "vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 257}
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<s>": 256, "</s>": 257}
    words = [token for token in vocabulary if len(token) == 1 and ((token.isascii() and token.isalnum()) or token == "Ġ")]
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < VOCABULARY:
        first, second = (words[int(place)] for place in rng.integers(0, len(words), 2))
        if len(first + second) <= 12 and first + second not in vocabulary:
            vocabulary[first + second] = len(vocabulary)
            merges.append((first, second))
            words.append(first + second)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


def run(llm: LLM, rows: int, **more: Any) -> dict[str, float]:
    """Steps, tokens and seconds of `rows` outputs, from their prompts on."""
    rng = np.random.default_rng(1)
    prompts: list[TokensPrompt] = [{"prompt_token_ids": rng.integers(300, VOCABULARY, PROMPT).tolist()} for _ in range(rows)]
    scheduler = llm._built.core.scheduler
    before, start = scheduler.counts(), time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(temperature=1.0, seed=5, max_tokens=OUTPUT, **more))
    seconds, after = time.perf_counter() - start, scheduler.counts()
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert tokens == rows * OUTPUT, "an output ended early"
    forced = after.forced_tokens - before.forced_tokens
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "ms_a_chosen_token": 1e3 * seconds * rows / (tokens - forced),
        "forced_share": forced / tokens,
        "mask_ms_a_step": 1e3 * (after.mask_seconds - before.mask_seconds) * rows / max(tokens - forced, 1),
    }


def measure(llm: LLM, rows: int, repeats: int) -> dict[str, Any]:
    """Medians of each kind, and ratios to free rows, from runs in turns."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats + 1):
        for kind, more in KINDS.items():
            one = run(llm, rows, **more)
            if repeat:  # the first warms up, and compiles the grammar
                found[kind].append(one)
    medians = {kind: {name: machine.median([one[name] for one in all_]) for name in all_[0]} for kind, all_ in found.items()}
    ratios = {
        kind: machine.median(
            [one["tokens_per_s"] / free["tokens_per_s"] for one, free in zip(found[kind], found["free"], strict=True)]
        )
        for kind in KINDS
    }
    return {"rows": rows, "kinds": medians, "tokens_per_s_to_free": ratios}


def table(report: dict[str, Any]) -> Table:
    shown = Table(title="A schema on a vocabulary of 128K tokens", title_justify="left")
    for column in ("rows", "kind", "tokens/s", "to free", "ms a chosen token", "masks, ms a step", "forced"):
        shown.add_column(column, justify="right")
    for case in report["cases"]:
        for kind, one in case["kinds"].items():
            numbers = (
                f"{one['tokens_per_s']:.1f}",
                f"{case['tokens_per_s_to_free'][kind]:.2f}x",
                f"{one['ms_a_chosen_token']:.2f}",
            )
            shown.add_row(str(case["rows"]), kind, *numbers, f"{one['mask_ms_a_step']:.3f}", f"{one['forced_share']:.0%}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.structured_engine")}
    report |= {"model": "Llama 150M with 128,000 tokens, dummy weights", "prompt": PROMPT, "output": OUTPUT, "cases": []}
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_model(Path(scratch) / "model")
        settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": PROMPT + OUTPUT, "prefix_caching": False}
        llm = LLM(model=str(directory), max_num_seqs=max(arguments.rows), **settings)
        llm._built.core.executor.wait_compiled()  # type: ignore[attr-defined]
        for rows in arguments.rows:
            report["cases"].append(measure(llm, rows, arguments.repeats))
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    wide_console(140).print(table(report))


if __name__ == "__main__":
    main()
