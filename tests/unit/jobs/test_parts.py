"""Parts of jobs by themselves: shards, order, weights of bodies, summaries, what is displayed."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxserve.errors import ConfigError
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.display import display
from jaxserve.jobs.lines import Line, parse, raw_lines
from jaxserve.jobs.order import ORDERS, Waiting, sequences
from jaxserve.jobs.scan import Shard, first_offset, scan
from jaxserve.jobs.summary import Counts, JobProgress, Summary


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")), max_size=12), st.booleans(), st.integers(1, 5))
def test_shards_partition_the_lines_of_any_file(tmp_path_factory: Any, lines: list[bytes], ends: bool, count: int) -> None:
    path: Path = tmp_path_factory.mktemp("shards") / "in"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends and lines else b""))
    text = path.read_bytes()
    expected = text.split(b"\n")
    expected = expected[:-1] if not expected[-1] else expected
    found: list[tuple[int, bytes]] = []
    for index in range(1, count + 1):
        shard, seen = Shard(index, count), list[int]()
        with path.open("rb") as file:
            result = scan(file, shard, lambda done, total: seen.append(done))  # noqa: B023
            begin, end = shard.span(result.size)
            offset = first_offset(file, begin, result.size)
            raws = list(raw_lines(file, number=result.first, offset=offset, end=end, size=result.size, longest=100))
        assert result.lines == len(raws)
        assert seen == sorted(seen)
        assert not text or seen[-1] == len(text)
        found += [(raw.number, (raw.data or b"").removesuffix(b"\n")) for raw in raws]
    assert found == list(enumerate(expected, 1))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "a/b", "1", "1/2/3", "-1/2", "", "1/", "²/3"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="i/n"):
        Shard.parse(text)


def test_a_shard_is_read_as_it_is_written() -> None:
    assert Shard.parse("2/8") == Shard(2, 8)
    assert str(Shard(2, 8)) == "2/8"


def waiting(number: int, prompt: Any, key: str = "prompt") -> Waiting:
    line = Line(number, str(number), "/v1/completions", {key: prompt})
    return Waiting.of(line, len(json.dumps(line.body)))


def test_prompts_that_begin_alike_go_together() -> None:
    first, second = "a shared beginning of a prompt " * 4, "another beginning of other prompts " * 4
    prompts = [first + "1", second + "1", "alone", first + "2", second + "2" * 400, first + "1 and more"]
    ordered = [one.line.number for one in ORDERS["prefix"]([waiting(number, prompt) for number, prompt in enumerate(prompts)])]
    assert ordered == [5, 0, 3, 2, 1, 4]
    assert [one.line.number for one in ORDERS["file"]([waiting(n, p) for n, p in enumerate(prompts)])] == list(range(6))


def test_conversations_are_grouped_by_what_was_said_first() -> None:
    system = {"role": "system", "content": "You are a helpful assistant who answers in one word, always."}
    talks = [[system, {"role": "user", "content": text}] for text in "abc"]
    other = [{"role": "user", "content": "x" * 80}]
    window = [
        waiting(0, talks[0], "messages"),
        waiting(1, other, "messages"),
        *(waiting(n, talks[n - 1], "messages") for n in (2, 3)),
    ]
    assert [one.line.number for one in ORDERS["prefix"](window)] == [0, 2, 3, 1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["prompt", "messages", "n"]), json_values), max_size=8))
def test_an_order_takes_any_body_and_loses_none(bodies: list[dict[str, Any]]) -> None:
    window = [Waiting.of(Line(number, str(number), "", body), number) for number, body in enumerate(bodies)]
    for order in ORDERS.values():
        assert sorted(one.line.number for one in order(window)) == list(range(len(bodies)))
    assert all(sequences(body) >= 1 for body in bodies)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]], "n": 3}, 6),
        ({"messages": [{}, {}], "n": 4}, 4),
        ({"n": "x"}, 1),
        ({"n": -1, "prompt": []}, 1),
        ({}, 1),
    ],
)
def test_sequences_of_a_body(body: dict[str, Any], count: int) -> None:
    assert sequences(body) == count


def test_a_value_in_a_message_is_cut() -> None:
    path = io.BytesIO(json.dumps({"custom_id": ["x" * 1000]}).encode())
    (raw,) = raw_lines(path, number=1, offset=0, end=10**6, size=len(path.getvalue()), longest=10**6)
    found = parse(raw)
    assert not isinstance(found, Line)
    assert found is not None
    assert len(found.message) < 140


COUNTS = Counts(80, 3, 2, 1, 4, 1000, 250, 500, 20.0, 10.0, Counter({"invalid_json": 2, "model_not_found": 3}))


def summary(**changes: Any) -> Summary:
    given: dict[str, Any] = {
        "model": "pico", "shard": "1/1", "lines": 90, "complete": False, "runs": 2, "run": COUNTS, "all_runs": COUNTS.plus(COUNTS)
    }  # fmt: skip
    return Summary(**{**given, **changes})


def test_a_summary_tells_everything_in_words_and_as_json() -> None:
    text = summary(all_runs=COUNTS).text(3.6)
    assert "4 lines left" in text
    assert "80 answered, 3 failed, 2 invalid" in text
    assert "model_not_found 3, invalid_json 2" in text
    assert "1,000 in (25% cached), 500 out" in text
    assert "100 tokens/s in, 50 out, 8.3 requests/s" in text
    assert "4 times" in text
    assert "20.0 s, all 2 runs 20.0 s" in text
    assert "$0.0200 at $3.6/hour" in text
    figures = json.loads(json.dumps(summary().as_dict(3.6)))
    assert figures["all_runs"]["answered"] == 160
    assert figures["all_runs"]["codes"] == {"invalid_json": 4, "model_not_found": 6}
    assert figures["this_run"]["completion_tokens_per_second"] == 50.0
    assert figures["this_run"]["cost"] == pytest.approx(0.02)
    assert "cost" not in summary().as_dict()["this_run"]


def test_a_summary_leaves_out_what_there_is_not() -> None:
    text = summary(complete=True, runs=1, run=Counts(wall_seconds=3700.0), all_runs=Counts(), shard="2/3").text()
    assert "pico, shard 2/3:" in text
    assert "complete" in text
    assert "1 h 1 min" in text
    for word in ("errors", "asked again", "cost", "runs"):
        assert word not in text


def test_counts_survive_json() -> None:
    assert Counts.from_dict(json.loads(json.dumps(COUNTS.as_dict()))) == COUNTS


def test_usage_may_be_missing() -> None:
    counts = Counts()
    for body in ({}, {"usage": None}, {"usage": {"prompt_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": None}}):
        counts.count_usage(body)
    assert (counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens) == (2, 1, 0)


def progress(done: int, seconds: float) -> JobProgress:
    run = Counts(answered=done, prompt_tokens=100 * done, cached_tokens=50 * done, completion_tokens=10 * done)
    run.answering_seconds = seconds
    return JobProgress(100, run, run.plus(Counts(failed=10)))


def shown(*, terminal: bool) -> str:
    clock = iter(range(1000))
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=160)
    with display(console, lambda: float(next(clock))) as display_:
        for read in (0, 2**20, 2**21):
            display_.scanned(read, 2**21)
        for built in range(4):
            display_.started("compiling", built, 3)
        for done in range(0, 91, 10):
            display_.worked(progress(done, done / 10), 0.25)
        display_.worked(progress(90, 10.0), 0.25)
    return out.getvalue()


def test_a_log_gets_a_line_now_and_then_and_one_at_each_end() -> None:
    lines = shown(terminal=False).splitlines()
    assert "reading the input, MiB: 2/2" in lines
    assert "compiling: 3/3" in lines
    working = [line for line in lines if line.startswith("requests")]
    assert 2 <= len(working) < 6
    assert working[-1].startswith("requests: 100/100, 10 in the error file, tokens/s ")
    assert "KV 25%, prefix hits 50%, 0:00 left" in working[-1]
    assert sum("100/100" in line for line in working) == 1


def test_a_terminal_gets_bars() -> None:
    text = shown(terminal=True)
    assert "compiling" in text
    assert "100/100" in text
    assert "prefix hits 50%" in text


def test_settings_of_a_job_are_checked() -> None:
    for name, value in (("window", 0), ("max_line_mib", 0), ("window_mib", 0), ("commit_seconds", 0.0), ("order", "shuffled")):
        with pytest.raises(ConfigError, match=name):
            JobConfig(**{name: value})  # type: ignore[arg-type]
