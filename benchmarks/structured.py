"""Structured output: what of public JSON schemas is compiled, how long it takes, and whether what comes of it is right.

    python -m benchmarks.structured --schemas DIRECTORY [--suite DIRECTORY] [--every 1]

`--schemas` has MaskBench's files (github.com/guidance-ai/jsonschemabench, maskbench/data: 11,306 schemas of JSONSchemaBench, of
functions and of others, each with instances that are valid and invalid; no licence is given, so none are here). `--suite` is a
checkout of the official JSON-Schema-Test-Suite (MIT); a part of it is in tests/data/json_schema. No model runs: masks are
llguidance's alone, over the 200,000 tokens of o200k_base, which the package litellm has.

Of each set: schemas that are compiled, and those that llguidance compiles as given; times to prepare and compile one with its
first mask; times of a mask before each token of valid instances; instances that are judged wrongly; and, for one random walk a
schema, whether it ends and is valid (jsonschema-rs, formats checked). Passing is MaskBench's word: compiled, and every instance
judged rightly; it gives 8,909 for llguidance of March 2025. Writes benchmarks/results/structured_schemas.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance.numpy
import llguidance.tiktoken
import numpy as np
import tiktoken
from llguidance import LLMatcher, LLTokenizer
from rich.table import Table

from benchmarks import machine
from jaxserve.commands import wide_console
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.locate import first_line
from jaxserve.grammar.source import grammar_source
from jaxserve.sampling.structured import StructuredOutputsParams

RESULTS = Path(__file__).parent / "results" / "structured_schemas.json"
ENCODING = "o200k_base"
LONGEST = 1000  # tokens of an instance whose masks are timed
WALK = 80  # tokens of a walk that are chosen freely
LAST = 400  # and those after which it is given up
ENDINGS = '"}]0e,:{ ['  # what brings most JSON to its end, best first


@dataclass(slots=True)
class Set:
    """What was found of one set of schemas."""

    schemas: int = 0
    compiled: int = 0
    compiled_as_given: int = 0
    passing: int = 0
    accepted: int = 0
    refused: int = 0
    valid_refused: int = 0
    invalid_accepted: int = 0
    walks: int = 0
    walks_failed: int = 0
    walks_ended: int = 0
    walks_valid: int = 0
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.__slots__ if isinstance(getattr(self, name), int)}
        reasons = sorted(self.reasons.items(), key=lambda item: -item[1])[:12]
        return {
            **counts,
            "compile_ms": _quantiles(self.compile_ms),
            "mask_us": _quantiles(self.mask_us),
            "refused_for": dict(reasons),
            "wrong": self.wrong[:20],
        }


class Bench:
    """Goes through schemas; `tokens` are those of a large vocabulary."""

    def __init__(self, tokens: LLTokenizer) -> None:
        self._tokens = tokens
        self._mask = llguidance.numpy.allocate_token_bitmask(1, tokens.vocab_size)
        self._endings = [tokens.tokenize_str(text)[0] for text in ENDINGS]

    def add(self, found: Set, name: str, schema: Any, tests: Sequence[dict[str, Any]]) -> None:
        found.schemas += 1
        text = json.dumps(schema)
        as_given = LLMatcher(self._tokens, f'{{"grammars": [{{"json_schema": {text}}}]}}', log_level=0)
        found.compiled_as_given += not as_given.is_error()
        started = time.perf_counter()
        try:
            params = StructuredOutputsParams(json=text)
            matcher = compile_grammar(grammar_source(params), self._tokens, params.param)
        except InvalidRequestError as error:
            found.reasons[_kind(error.message)] += 1
            return
        found.compile_ms.append((time.perf_counter() - started) * 1e3)
        found.compiled += 1
        rightly = [self._judge(found, name, matcher, test) for test in tests]
        found.passing += all(rightly)
        self._check_walk(found, name, schema, matcher)

    def _judge(self, found: Set, name: str, start: LLMatcher, test: dict[str, Any]) -> bool:
        matcher = start.deep_copy()
        tokens = self._tokens.tokenize_str(json.dumps(test["data"], ensure_ascii=False))
        taken = 0
        for token in tokens:
            if taken < LONGEST and test["valid"]:
                started = time.perf_counter()
                llguidance.numpy.fill_next_token_bitmask(matcher, self._mask)
                found.mask_us.append((time.perf_counter() - started) * 1e6)
            if not matcher.consume_token(token):
                break
            taken += 1
        accepted = taken == len(tokens) and matcher.is_accepting()
        if accepted:
            found.accepted += 1
            found.invalid_accepted += not test["valid"]
        else:
            found.refused += 1
            found.valid_refused += bool(test["valid"])
        if accepted and not test["valid"]:
            found.wrong.append(f"{name}: accepts what is invalid")
        return accepted is bool(test["valid"])

    def _check_walk(self, found: Set, name: str, schema: Any, start: LLMatcher) -> None:
        try:
            checker = jsonschema_rs.validator_for(schema, validate_formats=True)
        except (ValueError, jsonschema_rs.ValidationError):  # no schema, strictly
            return
        found.walks += 1
        matcher = start.deep_copy()
        text = self._walk(matcher, random.Random(name))
        if matcher.is_error():
            found.walks_failed += 1
            found.wrong.append(f"{name}: {first_line(matcher.get_error())[:120]}")
        if text is None or matcher.is_error():
            return
        found.walks_ended += 1
        error = next(checker.iter_errors(json.loads(text, parse_float=_number)), None)
        found.walks_valid += error is None
        if error is not None:
            found.wrong.append(f"{name}: a walk is invalid: {error.message[:120]}")

    def _walk(self, matcher: LLMatcher, choose: random.Random) -> str | None:
        taken: list[int] = []
        end = self._tokens.eos_token
        while len(taken) < LAST:
            llguidance.numpy.fill_next_token_bitmask(matcher, self._mask)
            bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
            free = len(taken) < WALK
            if bits[end] and (not free or bits.sum() == 1 or choose.random() < 0.2):
                return self._tokens.decode_str(taken)
            bits[end] = 0
            nearest = None if free else next((token for token in self._endings if bits[token]), None)
            choices = np.flatnonzero(bits) if nearest is None else [nearest]
            if not len(choices):
                return None
            taken.append(int(choose.choice(choices)))
            if not matcher.consume_token(taken[-1]):
                return None
        return None


def main() -> None:
    arguments = _arguments()
    bench = Bench(_tokens())
    sets: dict[str, Set] = defaultdict(Set)
    for name, schema, tests in (*_mask_bench(arguments.schemas, arguments.every), *_official(arguments.suite)):
        bench.add(sets[re.split(r"---|_\d+$", name)[0]], name, schema, tests)
    whole = _together([found for name, found in sets.items() if not name.startswith("official")])
    rows = {**{name: found.as_dict() for name, found in sorted(sets.items())}, "MaskBench": whole.as_dict()}
    _show(rows)
    result = {
        "command": machine.command("benchmarks.structured"),
        "machine": machine.describe(),
        "llguidance": llguidance.get_version(),
        "vocabulary": ENCODING,
        "sets": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, help="MaskBench's data")
    parser.add_argument("--suite", type=Path, help="a checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--every", type=int, default=1, help="take one schema of so many")
    return parser.parse_args()


def _tokens() -> LLTokenizer:
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")
    return llguidance.tiktoken.lltokenizer_from_encoding(tiktoken.get_encoding(ENCODING))


def _mask_bench(folder: Path | None, every: int) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for file in sorted(folder.glob("*.json"))[::every] if folder is not None else ():
        content = json.loads(file.read_text())
        yield file.stem, content["schema"], content["tests"]


def _official(folder: Path | None) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for file in sorted((folder / "tests" / "draft2020-12").glob("*.json")) if folder is not None else ():
        for place, group in enumerate(json.loads(file.read_text())):
            yield f"official 2020-12---{file.stem} {place}", group["schema"], group["tests"]


def _together(sets: Sequence[Set]) -> Set:
    whole = Set()
    for found in sets:
        for name in Set.__slots__:
            value = getattr(found, name)
            if isinstance(value, dict):
                for reason, count in value.items():
                    whole.reasons[reason] += count
            else:
                setattr(whole, name, getattr(whole, name) + value)
    return whole


def _number(text: str) -> float:
    """A number that may be too large for a float, and is one all the same."""
    return min(max(float(text), -sys.float_info.max), sys.float_info.max)


def _kind(message: str) -> str:
    """A refusal without what is of one schema alone."""
    said = message.removeprefix("structured_outputs.json").removeprefix(": ")
    for pattern in (
        r"([$\w]+) is not supported(?: where| beyond)?",
        r"format '.*' is not supported",
        "cannot be satisfied",
        "[Uu]nsatisfiable",
    ):
        found = re.search(pattern, said)
        if found:
            return found[0]
    return re.sub(r"'[^']*'|/.*/|[\d\"].*", "...", said.rpartition(": ")[2])[:60]


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    points = np.quantile(values, (0.5, 0.99, 0.999))
    named = dict(zip(("p50", "p99", "p999"), points, strict=True))
    return {name: round(float(value), 3) for name, value in (("mean", np.mean(values)), *named.items(), ("max", max(values)))}


def _show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(
        "set", "schemas", "compiled", "as given", "passing", "walks", "ended", "valid", "ms p50", "p99", "mask us", "p50", "p99"
    )
    for name, row in rows.items():
        counts = ("schemas", "compiled", "compiled_as_given", "passing", "walks", "walks_ended", "walks_valid")
        compiled, mask = row["compile_ms"], row["mask_us"]
        times = (compiled.get("p50"), compiled.get("p99"), mask.get("mean"), mask.get("p50"), mask.get("p99"))
        table.add_row(name, *(str(row[count]) for count in counts), *("" if value is None else f"{value:.1f}" for value in times))
    wide_console(160).print(table)


if __name__ == "__main__":
    main()
