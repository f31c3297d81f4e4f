"""Whether answers satisfy their schemas: thousands of them at temperature 1, from random weights, which would write anything.

    python -m benchmarks.structured_answers [--each 20] [--max-tokens 160]

The schemas are those of tests/data/json_schema, a part of the official JSON-Schema-Test-Suite (MIT), that the engine takes; the
model is the bundled one's shape with weights of a seed. Every answer must be valid (jsonschema-rs) or say that it was cut off
(`length`). Writes benchmarks/results/structured_answers.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs

from benchmarks import machine
from jaxserve import LLM, SamplingParams, StructuredOutputsParams
from jaxserve.errors import InvalidRequestError
from jaxserve.types import FinishReason

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "data" / "json_schema" / "suite.json"
RESULTS = ROOT / "benchmarks" / "results" / "structured_answers.json"
PROMPT = "JSON:"
AT_ONCE = 64  # schemas whose answers are asked for in one call


def schemas() -> list[Any]:
    """All of the suite's part."""
    files = json.loads(SUITE.read_text())["files"]
    return [group["schema"] for groups in files.values() for group in groups]


def outcome(schema: Any, text: str, reason: FinishReason | None) -> str:
    """What an answer is."""
    if reason is FinishReason.LENGTH:
        return "length"
    try:
        value = json.loads(text, parse_float=_number)
    except ValueError:
        return "no JSON"
    return "valid" if jsonschema_rs.is_valid(schema, value) else "invalid"


def _number(text: str) -> float:
    """A number of JSON; one too large for this machine's, as the largest: it is a number all the same."""
    value = float(text)
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def taken(llm: LLM, every: list[Any]) -> list[Any]:
    """Those schemas that the engine takes."""
    found = []
    for schema in every:
        form = StructuredOutputsParams(json=json.dumps(schema))
        try:
            llm.generate(PROMPT, SamplingParams(max_tokens=1, structured_outputs=form))
        except InvalidRequestError:
            continue
        found.append(schema)
    return found


def measure(each: int, max_tokens: int) -> dict[str, Any]:
    """Ask for all the answers, and count what they are."""
    llm = LLM(model="pico", load_format="dummy", max_model_len=512, max_num_seqs=64)
    every = schemas()
    found = taken(llm, every)
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    began = time.perf_counter()
    for first in range(0, len(found), AT_ONCE):
        some = found[first : first + AT_ONCE]
        params = [
            SamplingParams(
                n=each,
                max_tokens=max_tokens,
                temperature=1.0,
                seed=first + place,
                structured_outputs=StructuredOutputsParams(json=json.dumps(schema)),
            )
            for place, schema in enumerate(some)
        ]
        for schema, request in zip(some, llm.generate([PROMPT] * len(some), params), strict=True):
            for output in request.outputs:
                reason = None if output.finish_reason is None else FinishReason(output.finish_reason)
                kind = outcome(schema, output.text, reason)
                counts[kind] += 1
                if kind not in ("valid", "length"):
                    wrong.append({"schema": schema, "text": output.text, "is": kind})
        print(f"{first + len(some)} of {len(found)} schemas: {dict(counts)}", flush=True)
    seconds = time.perf_counter() - began
    about = {
        **machine.describe(),
        "command": machine.command("benchmarks.structured_answers"),
        "model": "pico's shape, dummy weights",
    }
    sizes = {"schemas": len(every), "taken": len(found), "each": each, "max_tokens": max_tokens, "seconds": seconds}
    return {**about, **sizes, "answers": dict(counts), "wrong": wrong[:20]}


def main() -> int:
    """Run, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=20, help="answers for a schema")
    parser.add_argument("--max-tokens", type=int, default=160)
    given = parser.parse_args()
    report = measure(given.each, given.max_tokens)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
