"""What the benchmark of front ends reads out of its streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.front_ends import case
from benchmarks.paced_engine import STAMP_SECONDS, VOCABULARY, seconds_since, stamp, text_of, token_of, write_tokenizer
from benchmarks.stream_clients import grpc_tokens, http_tokens
from jaxserve.proto import inference_pb2 as pb
from jaxserve.tokenizer.load import load_tokenizer


def test_every_token_has_a_text_of_its_own_and_its_text_tells_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    for token in (0, 31, 32, 1023, 1024, 12345, VOCABULARY - 1):
        assert tokenizer.token_bytes(token) == text_of(token).encode()
        assert token_of(text_of(token).encode()) == token
    assert len({text_of(token) for token in range(VOCABULARY)}) == VOCABULARY


@pytest.mark.parametrize("end", [0.0, 3.2767, 3.27675, 1e6])
@pytest.mark.parametrize("passed", [0.0, 0.001, 0.5, 3.0])
def test_a_token_tells_how_long_ago_its_step_ended(end: float, passed: float) -> None:
    assert seconds_since(stamp(end), end + passed) == pytest.approx(passed, abs=STAMP_SECONDS)


def test_pieces_hold_events_and_events_hold_tokens() -> None:
    one, two = text_of(7), text_of(8)
    first = b'data: {"choices":[{"index":0,"text":"' + (one + two).encode() + b'","logprobs":null}]}\n\n'
    second = b'data: {"choices":[{"index":0,"text":"' + one.encode() + b'"}]}\n\ndata: [DONE]\n\n'
    assert http_tokens(first) == (1, [7, 8])
    assert http_tokens(first + second) == (3, [7, 8, 7])
    event = pb.GenerateEvent(index=0, delta=pb.Delta(token_ids=[7, 8]))
    assert grpc_tokens(event.SerializeToString()) == (1, [7, 8])


@pytest.mark.parametrize("surface", ["http", "grpc"])
def test_it_runs(surface: str) -> None:
    """A few streams through two front ends are seen."""
    seen = case(surface, 4, 2, 0.01, 0.5)
    assert seen["tokens_per_s"] >= seen["events_per_s"] > 0
    assert set(seen["cores"]) == {"engine", "front_end_0", "front_end_1", "clients"}
    assert 0.0 < seen["late_ms"]["p50"] < 3000.0
