"""A server on eight devices answers as one on one device does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest

from tests.support.serve_process import Process, Served
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SMALL = ("--max-num-seqs", "2", "--max-num-batched-tokens", "2", "--max-model-len", "96", "--dtype", "float32")
CASES: list[dict[str, object]] = [
    {"temperature": 0.0, "logprobs": 4},
    {"temperature": 0.8, "seed": 1, "top_p": 0.9, "n": 2},
    {"temperature": 1.0, "seed": 2, "presence_penalty": 0.5, "extra_body": {"top_k": 20}},
    {"temperature": 0.0, "logit_bias": {"60": 3.0}},
]
Model = Callable[[Path], tuple[str, ...]]


def pico(folder: Path) -> tuple[str, ...]:
    """The bundled model: four KV heads, each on two devices."""
    return ()


def eight_kv_heads(folder: Path) -> tuple[str, ...]:
    """A random model with a KV head a device."""
    directory = write_tiny_checkpoint(folder / "tiny")
    path = directory / "config.json"
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8}
    path.write_text(json.dumps(json.loads(path.read_text()) | heads))
    return (str(directory), "--load-format", "dummy")


@contextmanager
def serving(served: Served, folder: Path, model: Model, tensor: int) -> Iterator[Process]:
    folder.mkdir()
    devices = ("--tensor-parallel-size", str(tensor))
    yield from served(folder, *model(folder), *SMALL, *devices, devices=tensor)


def answers(process: Process) -> list[list[tuple[str, str, list[float]]]]:
    """Text, finish reason and log-probabilities of every choice of every case."""
    with openai.OpenAI(base_url=f"{process.http}/v1", api_key="none", max_retries=0) as client:
        name = client.models.list().data[0].id
        replies = [
            client.completions.create(model=name, prompt="17 plus 25 is", max_tokens=16, **case)  # type: ignore[call-overload]
            for case in CASES
        ]
    return [
        [
            (choice.text, choice.finish_reason, choice.logprobs.token_logprobs if choice.logprobs else [])
            for choice in reply.choices
        ]
        for reply in replies
    ]


@pytest.mark.one_server("processes of the cluster have one device")
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(pico, id="pico"),
        # Engines of this and other models are compared in one process.
        pytest.param(eight_kv_heads, id="eight_kv_heads", marks=pytest.mark.extended),
    ],
)
def test_the_same_answers(served: Served, model: Model, tmp_path: Path) -> None:
    with ExitStack() as running:
        one, eight = (running.enter_context(serving(served, tmp_path / str(tensor), model, tensor)) for tensor in (1, 8))
        assert "cpu x8" in eight.err.read_text()
        alone, shared = answers(one), answers(eight)
    for want, got in zip(alone, shared, strict=True):
        assert [choice[:2] for choice in got] == [choice[:2] for choice in want]
        for mine, theirs in zip(got, want, strict=True):
            assert mine[2] == pytest.approx(theirs[2], abs=1e-4)
    assert len({text for choices in alone for text, _, _ in choices}) >= 4
